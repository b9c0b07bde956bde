from __future__ import annotations

from typing import Any

import pytest

from modelreg.cli.layer_validation import worst_samples, wrong_batch
from modelreg.registry.records import GateResult
from modelreg.registry.words import GateOutcome, Verdict
from modelreg.validators.validation import ValidationOutcome


def gate(name: str, *samples: int, outcome: GateOutcome = GateOutcome.FAIL, limit: float = 0.01) -> GateResult:
    return GateResult(gate=name, subject="y", outcome=outcome, measured=1.0, limit=limit, worst_samples=samples)


def outcome(*gates: GateResult, points: Any = (), batch: int = 500) -> ValidationOutcome:
    report = {"passes": [{"behaviour": {"points": points}}, {"behaviour": None}], "golden": {"batch": batch}}
    return ValidationOutcome(verdict=Verdict.FAIL, gates=gates, report=report)


POINTS = [{"point": "batch 8", "error": 0.001, "rows": 8}, {"point": "batch 64", "error": 0.2, "rows": 64}]


def test_the_worst_samples_are_those_of_failed_gates_in_turns() -> None:
    found = worst_samples([gate("finite", 9), gate("cosine", 4, 9, 2), gate("sqnr_db", 1, outcome=GateOutcome.PASS)])
    assert found == (9, 4, 2)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (outcome(gate("shape_error"), points=POINTS), (64, 0.01)),
        (outcome(gate("shape_error"), gate("batch_error"), points=POINTS), (64, 0.01)),
        (outcome(gate("shape_error"), gate("repeat_error", limit=1e-5), points=POINTS), (16, 1e-5)),
        (outcome(gate("repeat_error", limit=1e-5), batch=1), (1, 1e-5)),
        (outcome(gate("shape_error"), gate("cosine"), points=POINTS), (0, 0.0)),  # its own runs are wrong too
        (outcome(gate("shape_error"), points=[{"point": "batch 1 of 9", "error": 0.0}]), (0, 0.0)),
        (outcome(gate("shape_error", outcome=GateOutcome.PASS), points=POINTS), (0, 0.0)),
        (outcome(), (0, 0.0)),
    ],
)
def test_a_batch_is_looked_into_where_only_runs_of_it_are_wrong(
    found: ValidationOutcome, expected: tuple[int, float]
) -> None:
    assert wrong_batch(found) == expected
