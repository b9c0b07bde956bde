from __future__ import annotations

from modelreg.builders.failures import build_error
from modelreg.registry.toolchains.process import WorkerJobError


def job_error(message: str, kind: str, **details: object) -> WorkerJobError:
    return WorkerJobError(message, remote_type=kind, remote_details=dict(details))


def test_a_reason_that_a_job_gave_is_passed_on_with_its_hint() -> None:
    error = build_error(job_error("no node 'a'", "VariantError", hint="Close names: b."))
    assert (str(error), error.hint()) == ("no node 'a'", "Close names: b.")


def test_an_unexpected_exception_keeps_its_class_and_becomes_one_line() -> None:
    error = build_error(job_error("a\n  b " + "x" * 2000, "KeyError"))
    assert str(error).startswith("KeyError: a b xxx")
    assert len(str(error)) == 800
    assert error.hint() == ""  # whoever knows the engine says where its log is
