from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from modelreg.cli.repair_trials import Budget, Judged, Notebook, explain_failures
from modelreg.registry.errors import ConfigError
from modelreg.registry.records import GateResult
from modelreg.registry.words import GateOutcome


def test_a_notebook_remembers_every_trial_at_once_and_is_forgotten_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "repairs" / "one.json"
    book = Notebook.open(path)
    assert (book.taken_up, path.exists()) == (0, False)
    book.add(Judged(nodes=("a", "b"), passed=False, reason="cosine"))
    again = Notebook.open(path)
    assert again.taken_up == 1
    assert again.trials[frozenset({"b", "a"})].reason == "cosine"
    again.forget()
    assert not path.exists()
    again.forget()


def test_a_notebook_without_a_file_writes_nothing(tmp_path: Path) -> None:
    book = Notebook.open(None)
    book.add(Judged(nodes=("a",), passed=True, reason=""))
    book.forget()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["{", '{"schema": 1}', '{"schema": 1, "trials": [{"nodes": 3}]}', "[]"])
def test_a_damaged_notebook_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "one.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"one\.json cannot be read") as caught:
        Notebook.open(path)
    assert caught.value.hint() == "Remove it, and the repair begins anew."


def test_trials_of_another_program_are_made_again(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    path.write_text(json.dumps({"schema": 99, "trials": "whatever"}))
    assert Notebook.open(path).trials == {}


def test_a_budget_ends_by_trials_or_by_time() -> None:
    assert not Budget(trials=2, limit_s=None, used=1).is_spent
    assert Budget(trials=2, limit_s=None, used=2).is_spent
    assert Budget(trials=9, limit_s=5.0, began=time.monotonic() - 6).is_spent
    assert not Budget(trials=9, limit_s=3600.0).is_spent


def gate(name: str, outcome: GateOutcome, **more: float) -> GateResult:
    return GateResult(gate=name, subject="y", outcome=outcome, reason=f"{name} is bad", **more)  # type: ignore[arg-type]


def test_what_failed_is_said_in_short() -> None:
    gates = (
        gate("cosine", GateOutcome.FAIL, measured=0.5, limit=0.99),
        gate("finite", GateOutcome.PASS, measured=0.0, limit=0.0),
        gate("run", GateOutcome.ERROR),
        gate("sqnr_db", GateOutcome.FAIL, measured=1.0, limit=15.0),
        gate("task", GateOutcome.FAIL, measured=1.0, limit=0.0),
    )
    assert explain_failures(gates) == (
        "cosine of y 0.5, limit <= 0.99; run of y: run is bad; sqnr_db of y 1, limit <= 15; 1 more"
    )


def test_where_no_gate_failed_those_that_were_skipped_are_said() -> None:
    gates = (gate("finite", GateOutcome.PASS, measured=0.0, limit=0.0), gate("cosine", GateOutcome.SKIPPED))
    assert explain_failures(gates) == "cosine of y: cosine is bad"


def test_a_trial_that_could_not_be_run_is_tried_again_and_is_no_failure(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    book = Notebook.open(path)
    unjudged = Judged(nodes=("a",), passed=False, reason="run of plan: gone", was_judged=False)
    book.add(unjudged)
    book.add(Judged(nodes=("b",), passed=False, reason="cosine"))
    assert list(Notebook.open(path).trials) == [frozenset({"b"})]
    assert unjudged.say() == "is not judged: run of plan: gone"
    assert book.trials[frozenset({"b"})].say() == "fails: cosine"
