from __future__ import annotations

from dataclasses import replace

import pytest

from modelreg.cli.cells import count_outcomes, explain_gate, explain_realised, say_outcomes
from modelreg.registry.records import GateResult
from modelreg.registry.words import GateOutcome, Precision
from modelreg_testing.records import make_engine, make_gate

PASS, FAIL, SKIPPED, ERROR = GateOutcome.PASS, GateOutcome.FAIL, GateOutcome.SKIPPED, GateOutcome.ERROR


def make(outcome: GateOutcome, reason: str = "", **changes: object) -> GateResult:
    fields: dict[str, object] = {"gate": "cosine", "subject": "logits", "outcome": outcome, "reason": reason}
    return GateResult(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gates", "sentence", "cell"),
    [
        ([make(PASS)] * 5, "5 gates passed", "5 pass"),
        (
            [make(PASS), make(SKIPPED, "no labels"), make(SKIPPED, "no labels")],
            "1 gate passed, 2 skipped (no labels)",
            "1 pass, 2 skipped",
        ),
        ([make(PASS), make(FAIL, "too far")], "1 gate passed, 1 failed", "1 pass, 1 fail"),
        ([make(ERROR, "crashed")], "1 gate could not run", "1 error"),
        ([], "no gate ran", "-"),
    ],
)
def test_a_skipped_gate_is_told_from_a_failed_one(gates: list[GateResult], sentence: str, cell: str) -> None:
    assert say_outcomes(gates) == sentence
    assert count_outcomes(gates) == cell


@pytest.mark.parametrize(
    ("gate", "sentence"),
    [
        (
            make(FAIL, "cosine of logits is -0.04, the limit is >= 0.99; worst samples 9, 43", worst_samples=(9, 43)),
            "cosine of logits is -0.04, the limit is >= 0.99; worst samples 9, 43",
        ),
        (make(FAIL, "it fell", worst_samples=(9, 43)), "cosine of logits: it fell; worst samples 9, 43"),
        (
            make(FAIL, measured=0.2, comparison="<=", limit=0.1, worst_samples=tuple(range(9))),
            "cosine of logits: 0.2, limit <= 0.1; worst samples 0, 1, 2, 3, 4",
        ),
        (make(ERROR), "cosine of logits: error"),
    ],
)
def test_a_gate_that_did_not_pass_is_explained_once(gate: GateResult, sentence: str) -> None:
    assert explain_gate(gate) == sentence


@pytest.mark.parametrize(
    ("realised", "said"),
    [
        ({"compute": "mixed", "kept": ["c1 (Conv)"]}, "MIXED: kept in a higher precision: c1 (Conv)"),
        ({"compute": "mixed"}, "MIXED: some nodes compute in a higher precision"),
        ({"compute": "int8"}, ""),
    ],
)
def test_mixed_is_explained(realised: dict[str, object], said: str) -> None:
    assert explain_realised(replace(make_engine(3, Precision.INT8), realised=realised)) == said


def test_a_gate_of_the_records_is_explained() -> None:
    assert explain_gate(make_gate(FAIL)).startswith("cosine of logits")
