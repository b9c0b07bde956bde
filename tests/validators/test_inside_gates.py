from __future__ import annotations

from modelreg.config.policy import load_policy
from modelreg.registry.records import GateResult
from modelreg.registry.words import GateOutcome, Precision
from modelreg.validators.inside_gates import inside_gates
from modelreg.validators.interface import RangeUse


def use(node: str, *, saturated: int = 0, values: int = 1000, part: float = 0.9) -> RangeUse:
    return RangeUse(node=node, saturated=saturated, values=values, use=part)


def gates(ranges: list[RangeUse] | None) -> dict[str, GateResult]:
    policy = load_policy(Precision.INT8)
    return {gate.gate: gate for gate in inside_gates(None, ranges, policy=policy, subject="inside (ranges)")}


def test_ranges_that_fit_pass_by_the_worst_tensor() -> None:
    found = gates([use("conv1", saturated=9, part=0.1), use("conv2")])
    assert {gate.outcome for gate in found.values()} == {GateOutcome.PASS}
    assert found["saturation"].measured == 0.009
    assert found["range_use"].measured == 0.1


def test_tensors_that_are_cut_off_are_named_in_the_order_of_execution() -> None:
    found = gates([use("conv1"), *(use(f"conv{i}", saturated=20 * i) for i in range(2, 7))])
    gate = found["saturation"]
    assert gate.outcome is GateOutcome.FAIL
    assert gate.reason == (
        "values beyond their calibrated range are cut off, first in conv2 (4.00%), conv3 (6.00%), conv4 (8.00%), …"
    )


def test_a_range_that_is_hardly_used_is_named() -> None:
    gate = gates([use("conv1", part=0.004), use("conv2")])["range_use"]
    assert (gate.outcome, gate.measured) == (GateOutcome.FAIL, 0.004)
    assert gate.reason == "little of the calibrated range is used, first in conv1 (0.40%)"


def test_where_nothing_can_be_seen_both_are_skipped() -> None:
    for found in (gates(None), gates([])):
        assert {gate.outcome for gate in found.values()} == {GateOutcome.SKIPPED}


def test_a_tensor_without_values_is_not_cut_off() -> None:
    assert use("empty", values=0).saturation == 0.0
