from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelreg.config.policy import load_policy
from modelreg.registry.records import GateResult
from modelreg.registry.words import GateOutcome, Precision
from modelreg.validators.active import BesideActive, Decisions, active_gates, decide_in_step
from modelreg.validators.golden import check_golden
from modelreg.validators.pairing import PairedLatency, compare_pairs
from modelreg_testing.golden import function_pass, golden_file, signature, spec

DECLARED = signature([spec("x", ("N", 4))], [spec("y", ("N", 4))])


def gates(decisions: Decisions | None, latency: PairedLatency | None = None) -> dict[str, GateResult]:
    beside = BesideActive(
        name="net:1 in production", decisions=decisions, latency=latency, undecided="no labels", not_timed="no clock"
    )
    assert beside.to_json()["active"] == "net:1 in production"
    return {gate.gate: gate for gate in active_gates(beside, policy=load_policy(Precision.INT8))}


def decisions(lost: int, gained: int, samples: int = 500) -> Decisions:
    return Decisions(samples=samples, lost=lost, gained=gained, agreed=0, lost_samples=(3, 4))


def test_samples_that_users_would_lose_are_counted_in_pairs(tmp_path: Path) -> None:
    labels = np.arange(150) % 4
    x = np.eye(4, dtype=np.float32)[labels]

    def wrong_in(rows: list[int]) -> Any:
        def run(inputs: Any) -> Any:
            y = inputs["x"].copy()
            place = np.flatnonzero([np.array_equal(row, x[0]) for row in y])
            for row in rows:
                if row < len(place):
                    y[place[row]] = np.roll(y[place[row]], 1)
            return {"y": y}

        return run

    with golden_file(tmp_path / "set", {"input.x": x, "output.y": x, "label": labels}) as golden:
        checked = check_golden(golden, DECLARED)
        found = decide_in_step(
            function_pass(wrong_in([0, 1])), function_pass(wrong_in([1, 2])), golden=golden, checked=checked
        )
    # three runs of the set, in each of which one is lost, one gained, and one wrong on both sides
    assert (found.samples, found.lost, found.gained) == (150, 3, 3)
    assert found.agreed == 150 - 6
    assert found.lost_samples == (0, 64, 128)


def test_a_loss_that_is_no_chance_fails_with_the_samples() -> None:
    gate = gates(decisions(20, 2))["active_accuracy_drop"]
    assert gate.outcome is GateOutcome.FAIL
    assert gate.measured == pytest.approx(0.036)
    assert gate.reason.startswith("20 samples that net:1 in production gets right are lost, 2 gained, of 500")
    assert gate.worst_samples == (3, 4)


def test_a_loss_that_may_be_chance_is_inconclusive_and_a_gain_passes() -> None:
    assert gates(decisions(14, 8))["active_accuracy_drop"].outcome is GateOutcome.INCONCLUSIVE
    assert gates(decisions(2, 20))["active_accuracy_drop"].outcome is GateOutcome.PASS


def test_latency_fails_only_where_it_is_surely_too_long() -> None:
    rng = np.random.default_rng(0)
    base = np.exp(rng.normal(scale=0.02, size=(24, 2)))
    slow, close = (
        compare_pairs(base * [2.0, 1.0], samples=1),
        compare_pairs(np.exp(rng.normal(scale=0.5, size=(24, 2))) * [1.6, 1.0], samples=1),
    )
    assert gates(None, slow)["active_latency_ratio"].outcome is GateOutcome.FAIL
    assert gates(None, close)["active_latency_ratio"].outcome is GateOutcome.INCONCLUSIVE
    assert gates(None, compare_pairs(base, samples=1))["active_latency_ratio"].outcome is GateOutcome.PASS


def test_what_cannot_be_compared_is_skipped_with_the_reason() -> None:
    found = gates(None)
    assert {(gate.outcome, gate.reason) for gate in found.values()} == {
        (GateOutcome.SKIPPED, "no labels"),
        (GateOutcome.SKIPPED, "no clock"),
    }


def test_without_labels_nobody_is_right(tmp_path: Path) -> None:
    x = np.zeros((3, 4), np.float32)
    with golden_file(tmp_path / "set", {"input.x": x, "output.y": x}) as golden:
        checked = check_golden(golden, DECLARED)
        engine = function_pass(lambda i: {"y": i["x"]})
        with pytest.raises(ValueError, match="without labels"):
            decide_in_step(engine, engine, golden=golden, checked=checked)
