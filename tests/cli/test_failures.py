from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from modelreg.cli.failures import report, report_after_result, tell, tell_foreign
from modelreg.registry import errors
from modelreg.registry.toolchains.process import WorkerJobError
from modelreg_testing.cli import Shop, run_cli


def subclasses(kind: type[errors.ModelregError]) -> set[type[errors.ModelregError]]:
    """Return the tree of errors.py, without what other modules and tests have added to it."""
    children = [child for child in kind.__subclasses__() if child.__module__ == errors.__name__]
    return {kind, *(deeper for child in children for deeper in subclasses(child))}


def test_an_error_is_one_line_of_fact_and_one_of_advice(shop: Shop) -> None:
    result = shop.cli("show", "nothing")
    assert result.code == 1
    assert result.out == ""
    assert result.err == "modelreg: error: there is no model 'nothing'\n  hint: Run `modelreg list`.\n"


def test_an_error_is_a_document_with_json(shop: Shop) -> None:
    result = shop.cli("show", "nothing", "--json")
    assert result.document == {
        "schema": 1,
        "error": {
            "kind": "not-found",
            "message": "there is no model 'nothing'",
            "hint": "Run `modelreg list`.",
            "exit_code": 1,
        },
    }


def test_a_traceback_is_shown_only_with_verbose(shop: Shop) -> None:
    assert "Traceback" not in shop.cli("show", "nothing").err
    assert "Traceback" in shop.cli("show", "nothing", "-v").err


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["promot"], "no such command 'promot', did you mean 'promote'?"),
        (["xyzzy"], "no such command 'xyzzy'"),
        (["promote", "lenet:1"], "missing option '--to'\n  hint: Add --to CHANNEL."),
        (["promote"], "missing argument 'REF'"),
        (["list", "--limit", "0"], "'--limit'"),
        (["db"], "missing command"),
        (["--nonsense"], "no such option"),
        (["show", "lenet:0"], "'0' is not a version number"),
        (["show", "Lenet"], "'Lenet' is not allowed"),
        (["show", "../x"], "not allowed"),
        (["build", "lenet:1", "--precision", "fp12"], "'fp12' is not one of"),
        (["build", "lenet:1", "--target", "a,,b"], "'a,,b' has a comma with nothing beside it"),
        (["build", "lenet:1", "--precision", "fp32,"], "'fp32,' has a comma with nothing beside it"),
        (["build", "lenet:1", "--target", ""], "it is empty"),
        (["build", "lenet:1", "--seed", "x"], "'x' is not a whole number"),
        (["build", "lenet:1", "--timeout", "x"], "'x' is not a number"),
        (["build", "lenet:1", "--timeout", "0"], "0 is not a number above 0"),
        (["build", "lenet:1", "--timeout", "nan"], "nan is not a number above 0"),
        (["list", "--limit", "1.5"], "'1.5' is not a whole number"),
        (["list", "--limit", "0"], "0 is below 1"),
        (["validate", "lenet:1", "--engine", str(2**63)], f"{2**63} is above {2**63 - 1}"),
        (["rollback", "lenet"], "Write lenet@CHANNEL; `modelreg show lenet` lists"),
        (["rollback", "lenet:1"], "lenet:1 names a version"),
        (["rollback", "lenet@a", "--channel", "b"], "lenet@a and --channel b name two channels"),
        (["register", "lenet", "x.onnx", "--tag", "k"], "'k' is not KEY=VALUE"),
        (["which", "lenet"], "names no channel"),
        (["which", "lenet@a", "--path-only", "--explain"], "exclude each other"),
        (["verify", "lenet:1", "--events"], "leave REF out"),
        (["history", "lenet:1"], "lenet:1 names a version"),
        (["history", "lenet@a", "--channel", "b"], "lenet@a and --channel b name two channels"),
        (["build", "lenet:1", "--percentile", "99", "--calibration-method", "entropy"], "--percentile belongs to"),
    ],
)
def test_a_wrong_command_line_exits_with_2_in_the_same_form(words: list[str], fact: str) -> None:
    result = run_cli(*words)
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("modelreg: error: ")
    assert fact in result.err
    assert "Usage:" not in result.err
    assert len(result.err.splitlines()) <= 2


def test_json_holds_for_a_command_line_that_cannot_be_parsed() -> None:
    assert run_cli("promote", "--json", "--nonsense").document["error"]["kind"] == "usage"
    assert run_cli("--nonsense", "--json").document["error"]["exit_code"] == 2
    assert run_cli("show", "--", "--json").out == ""


def test_every_error_of_ours_has_a_kind_of_its_own_and_a_known_exit_code() -> None:
    kinds = set()
    for kind in subclasses(errors.ModelregError):
        error = kind.__new__(kind)
        errors.ModelregError.__init__(error, "fact")
        if kind is errors.GateFailedError:
            error = errors.GateFailedError("fact")
        if kind is WorkerJobError:
            error = WorkerJobError("fact", remote_type="KeyError", remote_details={})
        if kind is errors.ActivationConflictError:
            error = errors.ActivationConflictError("production", expected=1, found=2)
        failure = tell(error)
        assert failure.exit_code in range(1, 7)
        assert failure.kind == failure.kind.lower()
        kinds.add(failure.kind)
    assert len(kinds) == len(subclasses(errors.ModelregError))
    assert {"activation-unknown", "gate-failed", "schema-version", "integrity"} <= kinds


@pytest.mark.parametrize("particular", [float("nan"), object()])
def test_particulars_that_json_cannot_say_are_left_out(particular: object, capsys: pytest.CaptureFixture[str]) -> None:
    class OddError(errors.ModelregError):
        def details(self) -> dict[str, object]:
            return {"message": "not this one", "particular": particular}

    error = OddError("fact")
    assert report(tell(error), error, as_json=True, verbose=False) == 1
    assert json.loads(capsys.readouterr().out)["error"] == {
        "kind": "odd",
        "message": "fact",
        "hint": "",
        "exit_code": 1,
    }


def test_exit_codes_are_those_of_the_documentation() -> None:
    codes: dict[type[errors.ModelregError], int] = {
        errors.ModelregError: 1,
        errors.UsageError: 2,
        errors.ConfigError: 2,
        errors.GateFailedError: 3,
        errors.BusyError: 4,
        errors.ActivationConflictError: 4,
        errors.ActivationUnknownError: 5,
        errors.IntegrityError: 6,
    }
    assert {kind: kind.exit_code for kind in codes} == codes


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_what_the_system_refuses_is_one_line_that_names_the_path(number: int) -> None:
    failure = tell_foreign(OSError(number, os.strerror(number), "/srv/home/x"))
    assert failure.exit_code == 1
    assert failure.kind == "system"
    assert failure.message == f"/srv/home/x: {os.strerror(number)}"
    assert failure.hint


def test_a_system_error_without_path_or_advice_is_still_told() -> None:
    assert tell_foreign(OSError("odd")).message == "odd"
    assert tell_foreign(OSError(errno.EMFILE, "Too many open files")).hint == ""


def test_ctrl_c_is_one_line_with_exit_130(capsys: pytest.CaptureFixture[str]) -> None:
    for error in (KeyboardInterrupt(), click.Abort()):
        assert report(tell_foreign(error), error, as_json=False, verbose=True) == 130
        assert capsys.readouterr().err == "modelreg: error: interrupted\n"


def test_a_fault_of_ours_says_so_and_how_to_see_more(capsys: pytest.CaptureFixture[str]) -> None:
    error = ZeroDivisionError("division by zero")
    assert report(tell_foreign(error), error, as_json=True, verbose=False) == 1
    shown = capsys.readouterr()
    assert "internal error: ZeroDivisionError: division by zero" in shown.err
    assert "-v" in shown.err
    assert json.loads(shown.out)["error"]["kind"] == "internal"


def test_a_fault_in_a_command_is_caught_once(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("modelreg.cli.context.open_database", fail)
    assert shop.cli("list").code == 1
    assert "internal error: ZeroDivisionError: oops" in shop.cli("list").err
    assert "Traceback" in shop.cli("list", "-v").err


def test_control_characters_and_line_ends_of_others_do_not_reach_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert report_after_result(errors.SourceError("bad\x1b[31m\nname", hint="a\tb")) == 1
    assert capsys.readouterr().err == "modelreg: error: bad\\x1b[31m name\n  hint: a\\tb\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 129)])
@pytest.mark.slow
def test_a_signal_ends_a_capture_at_once_and_leaves_nothing(shop: Shop, tmp_path: Path, number: int, code: int) -> None:
    lenet = Path(__file__).parents[2] / "examples" / "lenet"
    (tmp_path / "slow.py").write_text(
        "import pathlib, time\n"
        "def inputs():\n"
        f"    pathlib.Path({str(tmp_path / 'started')!r}).touch()\n"
        "    time.sleep(60)\n"
        "    yield None\n"
    )
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    child = subprocess.Popen(
        [
            *(sys.executable, "-m", "modelreg.cli", "--home", str(shop.path), "register", "lenet"),
            *(str(lenet / "lenet-v1.onnx"), "--reference", f"{lenet / 'model.py'}:LeNet"),
            *("--inputs", f"{tmp_path / 'slow.py'}:inputs"),
        ],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    child.send_signal(number)
    _, err = child.communicate(timeout=30)
    assert child.returncode == code
    assert err.rstrip().endswith("modelreg: error: interrupted")
    assert "Traceback" not in err
    assert list(temporary.glob("modelreg-*")) == []
    assert shop.cli("list", "--json").document["models"] == []
