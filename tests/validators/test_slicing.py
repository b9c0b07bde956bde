from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelreg.config.policy import Metric, Policy, Rule, Scope
from modelreg.registry.errors import GoldenSetError
from modelreg.registry.records import GateResult
from modelreg.registry.words import GateOutcome, Precision
from modelreg.validators.golden import check_golden
from modelreg.validators.slicing import SliceAccumulator, SliceMetrics, sign_test, slice_gates
from modelreg_testing.golden import golden_file, signature, spec

POLICY = Policy(
    precision=Precision.INT8,
    rules=(
        Rule(metric=Metric.SQNR_DB, applies_to=Scope.SLICE, limit=20),
        Rule(metric=Metric.ACCURACY_DROP, applies_to=Scope.SLICE, limit=0.05),
        Rule(metric=Metric.TOP1_AGREEMENT, applies_to=Scope.SLICE, limit=0.5),
    ),
)
NAMES = {0: "day", 3: "night"}


def measure(reference: Any, candidate: Any, labels: Any, slices: Any, *, batch: int = 7) -> tuple[SliceMetrics, ...]:
    accumulator = SliceAccumulator(NAMES)
    for start in range(0, len(reference), batch):
        part = slice(start, start + batch)
        accumulator.update(reference[part], candidate[part], None if labels is None else labels[part], slices[part])
    return accumulator.result()


def gates(slices: tuple[SliceMetrics, ...] | None) -> dict[str, GateResult]:
    return {gate.gate: gate for gate in slice_gates(slices, policy=POLICY, subject="logits")}


def scores(classes: Any) -> Any:
    return np.eye(4, dtype=np.float32)[classes]


def test_each_slice_is_measured_alone_whatever_the_batches() -> None:
    rng = np.random.default_rng(0)
    labels, slices = rng.integers(0, 4, 50), rng.choice([0, 3], 50)
    reference = rng.normal(size=(50, 4)).astype(np.float32)
    candidate = reference + (slices == 3)[:, None] * rng.normal(scale=0.5, size=(50, 4)).astype(np.float32)
    day, night = measure(reference, candidate, labels, slices)
    assert measure(reference, candidate, labels, slices, batch=50) == (day, night)
    assert (day.name, day.samples, day.sqnr) == ("day", int((slices == 0).sum()), math.inf)
    was, now = reference[slices == 3], candidate[slices == 3]
    assert night.sqnr == pytest.approx(10 * np.log10((was**2).sum() / ((was - now) ** 2).sum()), rel=1e-5)
    right = labels[slices == 3]
    expected = (was.argmax(1) == right).mean() - (now.argmax(1) == right).mean()
    assert night.accuracy_drop == pytest.approx(expected)
    assert night.to_json()["top1_agreement"] == (was.argmax(1) == now.argmax(1)).mean()


def test_the_worst_slice_is_named() -> None:
    labels = np.arange(40) % 4
    slices = np.where(np.arange(40) < 20, 0, 3)
    wrong = np.where(slices == 3, (labels + 1) % 4, labels)
    found = gates(measure(scores(labels), scores(wrong), labels, slices))
    assert found["slice_sqnr_db"].subject == "logits, slice night"
    assert found["slice_accuracy_drop"].outcome is GateOutcome.FAIL
    assert "accuracy_drop of slice night (20 samples) is 1" in found["slice_accuracy_drop"].reason
    assert found["slice_accuracy_drop"].reason.endswith("20 samples lost, 0 gained")
    assert found["slice_top1_agreement"].outcome is GateOutcome.FAIL
    assert found["slice_top1_agreement"].worst_samples == tuple(range(20, 28))


def test_the_worst_samples_of_a_slice_are_named_the_worst_first_whatever_the_batches() -> None:
    reference = np.ones((30, 4), np.float32)
    slices = np.where(np.arange(30) % 2, 3, 0)
    candidate = reference.copy()
    candidate[[3, 21, 8], 0] = [5, 9, np.nan]
    for batch in (4, 30):
        day, night = measure(reference, candidate, None, slices, batch=batch)
        assert (day.worst, night.worst) == ((8,), (21, 3))


def test_one_lost_sample_of_a_small_slice_is_inconclusive_and_not_a_false_alarm() -> None:
    labels = np.arange(20) % 4
    slices = np.where(np.arange(20) < 10, 0, 3)
    wrong = labels.copy()
    wrong[15] = (wrong[15] + 1) % 4
    gate = gates(measure(scores(labels), scores(wrong), labels, slices))["slice_accuracy_drop"]
    assert (gate.outcome, gate.measured) == (GateOutcome.INCONCLUSIVE, 0.1)
    assert "1 lost and 0 gained may be chance (p 1)" in gate.reason


def test_a_drop_that_is_no_chance_fails_although_another_slice_drops_by_more() -> None:
    small = SliceMetrics(name="rare", samples=2, lost=1, gained=0, agreed=1, sqnr=30.0, has_decisions=True)
    large = SliceMetrics(name="often", samples=200, lost=30, gained=2, agreed=168, sqnr=30.0, has_decisions=True)
    gate = gates((small, large))["slice_accuracy_drop"]
    assert gate.outcome is GateOutcome.FAIL
    assert gate.subject == "logits, slice often"
    assert gate.measured == pytest.approx(0.14)


def test_a_slice_with_nan_has_no_decibels_and_the_others_are_judged() -> None:
    reference = np.ones((4, 2), np.float32)
    candidate = reference.copy()
    candidate[0, 0] = np.nan
    day, night = measure(reference, candidate, None, np.array([0, 0, 3, 3]))
    assert (day.sqnr, night.sqnr) == (None, math.inf)
    assert "accuracy_drop" not in day.to_json()
    found = gates((day, night))
    assert found["slice_sqnr_db"].subject == "logits, slice night"
    assert found["slice_accuracy_drop"].outcome is GateOutcome.SKIPPED


def test_without_slices_every_gate_is_skipped_with_the_reason() -> None:
    assert {(gate.outcome, gate.reason) for gate in gates(None).values()} == {
        (GateOutcome.SKIPPED, "the golden set has no slices")
    }


def test_the_sign_test_counts_every_way_that_is_as_bad() -> None:
    assert sign_test(0, 0) == 1.0
    assert sign_test(1, 0) == 0.5
    assert sign_test(5, 0) == 1 / 32
    for lost, gained in itertools.product(range(6), repeat=2):
        ways = [sum(way) >= lost for way in itertools.product([0, 1], repeat=lost + gained)]
        assert sign_test(lost, gained) == pytest.approx(sum(ways) / len(ways))


@pytest.mark.parametrize(
    ("arrays", "metadata", "reason"),
    [
        ({"slice": np.zeros(3, np.float32)}, {}, "slice is float32"),
        ({"slice": np.zeros(2, np.int64)}, {}, r"slice has shape \[2\], but the golden set has 3 samples"),
        ({"slice": np.zeros(3, np.int64)}, {"slice_names": "day"}, "no JSON list"),
        ({"slice": np.zeros(3, np.int64)}, {"slice_names": '{"0": "day"}'}, "no JSON list"),
        ({"label.mask": np.zeros((2, 4))}, {}, r"label.mask has shape \[2, 4\]"),
    ],
)
def test_slices_and_labels_that_do_not_fit_are_refused(
    tmp_path: Path, arrays: dict[str, Any], metadata: dict[str, str], reason: str
) -> None:
    x = np.zeros((3, 2), np.float32)
    declared = signature([spec("x", ("N", 2))], [spec("y", ("N", 2))])
    contents = {"input.x": x, "output.y": x, **arrays}
    with golden_file(tmp_path / "set", contents, metadata) as golden, pytest.raises(GoldenSetError, match=reason):
        check_golden(golden, declared)


def test_slices_have_their_names_or_their_numbers(tmp_path: Path) -> None:
    x = np.zeros((3, 2), np.float32)
    declared = signature([spec("x", ("N", 2))], [spec("y", ("N", 2))])
    contents = {"input.x": x, "output.y": x, "slice": np.array([0, 7, 1])}
    with golden_file(tmp_path / "set", contents, {"slice_names": '["day", "night"]'}) as golden:
        assert check_golden(golden, declared).slices == {0: "day", 1: "night", 7: "7"}
    many = {"input.x": np.zeros((1001, 2), np.float32), "output.y": np.zeros((1001, 2), np.float32)}
    with (
        golden_file(tmp_path / "many", {**many, "slice": np.arange(1001)}) as golden,
        pytest.raises(GoldenSetError, match="1001 groups, more than 1000"),
    ):
        check_golden(golden, declared)
