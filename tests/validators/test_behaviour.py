from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelreg.config.policy import Scope, load_policy
from modelreg.registry.contents import Signature
from modelreg.registry.records import GateResult
from modelreg.registry.tensor_sets import TensorSet
from modelreg.registry.words import GateOutcome, Json, Precision
from modelreg.validators import behaviour
from modelreg.validators.behaviour import Behaviour, Prober, difference
from modelreg.validators.behaviour_gates import behaviour_gates
from modelreg.validators.golden import check_golden
from modelreg.validators.interface import Runner
from modelreg_testing.golden import FunctionRunner, golden_file, signature, spec

DECLARED = signature([spec("x", ("N", "L"))], [spec("y", ("N", "L"))])
X = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)

Outputs = Mapping[str, Any]
Engine = Callable[[Mapping[str, Any]], Outputs]


def double(inputs: Mapping[str, Any]) -> Outputs:
    return {"y": 2 * inputs["x"]}


@pytest.fixture
def golden(tmp_path: Path) -> Iterator[TensorSet]:
    with golden_file(tmp_path / "set", {"input.x": X, "output.y": 2 * X}, {"batch": "16"}) as opened:
        yield opened


def probe(
    golden: TensorSet,
    engine: Engine,
    *,
    profiles: tuple[Json, ...] = (),
    source: Engine | None = double,
    declared: Signature = DECLARED,
) -> Behaviour:
    @contextmanager
    def open_source() -> Iterator[Runner]:
        assert source is not None
        yield FunctionRunner(source)

    prober = Prober(
        golden,
        check_golden(golden, declared),
        declared,
        profiles=profiles,
        open_source=None if source is None else open_source,
    )
    return prober.probe(FunctionRunner(engine))


def gates(found: Behaviour | None, precision: Precision = Precision.FP32) -> dict[str, GateResult]:
    return {gate.gate: gate for gate in behaviour_gates(found, policy=load_policy(precision))}


def outcomes(found: Behaviour, precision: Precision = Precision.FP32) -> dict[str, str]:
    return {name: str(gate.outcome) for name, gate in gates(found, precision).items()}


def only_failure(found: Behaviour, precision: Precision = Precision.FP32) -> GateResult:
    (failed,) = [gate for gate in gates(found, precision).values() if gate.outcome is GateOutcome.FAIL]
    return failed


def test_an_engine_that_gives_each_row_the_same_whatever_the_run_passes_all_three(golden: TensorSet) -> None:
    found = probe(golden, double)
    assert outcomes(found) == {"repeat_error": "pass", "batch_error": "pass", "shape_error": "pass"}
    assert found.same_bytes
    tried = [point.name for point in found.points]
    assert tried == ["batch 1", "batch 7", "batch 8", "batch 64", "half of L"]
    assert found.to_json()["repeat"]["same_bytes"]


def test_an_engine_that_is_not_deterministic_fails_by_how_much_it_differs(golden: TensorSet) -> None:
    rng = np.random.default_rng(1)

    def noisy(inputs: Mapping[str, Any]) -> Outputs:
        return {"y": 2 * inputs["x"] + rng.normal(scale=1e-2, size=inputs["x"].shape).astype(np.float32)}

    found = probe(golden, noisy)
    assert not found.same_bytes
    gate = gates(found)["repeat_error"]
    assert gate.outcome is GateOutcome.FAIL
    assert gate.reason.startswith("two runs on the same inputs differ in y by 0.0")
    assert gate.measured is not None
    assert 1e-3 < gate.measured < 2e-2


def test_bytes_that_differ_by_the_order_of_sums_alone_pass(golden: TensorSet) -> None:
    runs = iter(range(1000))
    found = probe(golden, lambda i: {"y": 2 * i["x"] + np.float32(1e-7) * next(runs)})
    assert not found.same_bytes
    assert gates(found)["repeat_error"].outcome is GateOutcome.PASS


def test_a_bug_at_batches_above_one_is_found_although_the_golden_set_was_run_one_by_one(tmp_path: Path) -> None:
    def mixed(inputs: Mapping[str, Any]) -> Outputs:
        x = inputs["x"]
        return {"y": 2 * x + 0.1 * (x - x.mean(axis=0))}

    with golden_file(tmp_path / "one", {"input.x": X, "output.y": 2 * X}, {"batch": "1"}) as one_by_one:
        found = probe(one_by_one, mixed)
    gate = gates(found)["shape_error"]
    assert gate.outcome is GateOutcome.FAIL
    assert "at batch 64 the samples of the golden set differ in y" in gate.reason
    assert gates(found)["batch_error"].outcome is GateOutcome.SKIPPED


def test_a_sample_that_is_wrong_alone_is_found(golden: TensorSet) -> None:
    found = probe(golden, lambda i: {"y": (1.9 if len(i["x"]) == 1 else 2) * i["x"]})
    gate = gates(found)["batch_error"]
    assert gate.outcome is GateOutcome.FAIL
    assert "a sample alone and the same sample in a batch differ in y" in gate.reason


def test_a_bug_at_the_largest_shape_of_a_profile_alone_is_found(golden: TensorSet) -> None:
    profile = {"x": {"min": [1, 6], "opt": [16, 6], "max": [48, 6]}}
    found = probe(golden, lambda i: {"y": (1.5 if len(i["x"]) > 40 else 2) * i["x"]}, profiles=(profile,))
    names = [point.name for point in found.points]
    assert names == ["min of profile 0", "max of profile 0", "a shape beside the optimum of profile 0"]
    assert "at max of profile 0" in only_failure(found).reason


def test_an_engine_that_does_not_run_at_a_shape_it_was_built_for_fails_with_the_reason(golden: TensorSet) -> None:
    def small(inputs: Mapping[str, Any]) -> Outputs:
        if len(inputs["x"]) > 16:
            raise RuntimeError("no kernel\nfor that")
        return double(inputs)

    gate = only_failure(probe(golden, small))
    assert (gate.gate, gate.reason) == ("shape_error", "at batch 64: RuntimeError: no kernel")


def test_an_output_that_loses_its_rows_fails(golden: TensorSet) -> None:
    gate = only_failure(probe(golden, lambda i: {"y": 2 * i["x"][:32]}))
    assert "output 'y' has not one row per sample any more" in gate.reason


def test_where_no_output_has_a_row_per_sample_nothing_is_passed_and_a_crash_still_fails(tmp_path: Path) -> None:
    declared = signature([spec("x", ("N", 6))], [spec("found", ("K", 6))])

    def positive(inputs: Mapping[str, Any]) -> Outputs:
        return {"found": inputs["x"][inputs["x"][:, 0] > 0]}

    def small(inputs: Mapping[str, Any]) -> Outputs:
        if len(inputs["x"]) > 16:
            raise RuntimeError("no kernel")
        return positive(inputs)

    with golden_file(tmp_path / "set", {"input.x": X, "output.found": X[X[:, 0] > 0]}, {"batch": "16"}) as golden:
        found = probe(golden, positive, declared=declared)
        assert outcomes(found) == {"repeat_error": "pass", "batch_error": "skipped", "shape_error": "skipped"}
        assert "it runs there, and no output has one row per sample" in gates(found)["shape_error"].reason
        assert "no kernel" in only_failure(probe(golden, small, declared=declared)).reason


def test_nan_at_another_batch_fails_however_loose_the_limit(golden: TensorSet) -> None:
    gate = only_failure(
        probe(golden, lambda i: {"y": 2 * i["x"] * (np.nan if len(i["x"]) == 7 else 1)}), Precision.INT8
    )
    assert gate.measured == np.inf


def test_other_axes_are_compared_with_the_source_by_the_limits_of_the_precision(golden: TensorSet) -> None:
    def baked(inputs: Mapping[str, Any]) -> Outputs:
        return {"y": 2 * inputs["x"] + (0.5 if inputs["x"].shape[1] != 6 else 0)}

    gate = only_failure(probe(golden, baked))
    assert gate.reason.startswith("at half of L: cosine of y with the source is 0.9")
    near = probe(golden, lambda i: {"y": i["x"] * (2 if i["x"].shape[1] == 6 else 2.01)})
    assert gates(near)["shape_error"].outcome is GateOutcome.FAIL
    assert gates(near, Precision.FP16)["shape_error"].outcome is GateOutcome.PASS
    nan = probe(golden, lambda i: {"y": 2 * i["x"] * (1 if i["x"].shape[1] == 6 else np.nan)})
    assert "y has 48 NaN and 0 infinite values" in only_failure(nan, Precision.FP16).reason
    other = probe(golden, lambda i: {"y": 2 * (i["x"] if i["x"].shape[1] == 6 else i["x"][:, :1])})
    assert "another shape than the source's" in only_failure(other).reason


def test_a_shape_that_the_source_does_not_run_at_is_no_fault_and_is_said(golden: TensorSet) -> None:
    def refuse(_inputs: Mapping[str, Any]) -> Outputs:
        raise ValueError("it takes six")

    gate = gates(probe(golden, double, source=refuse))["shape_error"]
    assert gate.outcome is GateOutcome.INCONCLUSIVE
    assert gate.reason == "half of L was not tried: the source does not run there: ValueError: it takes six"
    without = gates(probe(golden, double, source=None))["shape_error"]
    assert without.outcome is GateOutcome.INCONCLUSIVE


def test_a_point_that_takes_too_much_memory_is_not_tried(golden: TensorSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(behaviour, "BUDGET_BYTES", 1000)
    seen: list[int] = []

    def watch(inputs: Mapping[str, Any]) -> Outputs:
        seen.append(len(inputs["x"]))
        return double(inputs)

    gate = gates(probe(golden, watch))["shape_error"]
    assert gate.outcome is GateOutcome.INCONCLUSIVE
    assert "batch 64 was not tried: its tensors take 0 MiB" in gate.reason
    assert max(seen) <= 16


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        (signature([spec("x", (40, 6))], [spec("y", (40, 6))]), "every shape of the model is fixed"),
        (signature([spec("x", (20, 6))], [spec("y", (20, 6))]), "the batch of the model is fixed"),
        (signature([spec("x", ("N", 6))], [spec("y", (40, "N"))]), "the axis 'N' is more than the batch"),
    ],
)
def test_where_a_batch_means_nothing_only_the_repetition_is_judged(
    tmp_path: Path, declared: Signature, reason: str
) -> None:
    y = 2 * X if declared.outputs[0].shape != (40, "N") else np.zeros((40, 40), np.float32)
    with golden_file(tmp_path / "set", {"input.x": X, "output.y": y}) as golden:
        found = probe(golden, lambda i: {"y": 2 * i["x"]}, declared=declared)
    assert outcomes(found) == {"repeat_error": "pass", "batch_error": "skipped", "shape_error": "skipped"}
    assert gates(found)["shape_error"].reason == reason


def test_an_engine_that_fails_the_second_time_is_no_crash_of_the_validation(golden: TensorSet) -> None:
    runs = [double]

    def once(inputs: Mapping[str, Any]) -> Outputs:
        return runs.pop()(inputs)

    gate = gates(probe(golden, once))["repeat_error"]
    assert gate.outcome is GateOutcome.FAIL
    assert gate.reason == "the second run on the same inputs failed: IndexError: pop from empty list"


def test_without_a_measurement_every_gate_is_skipped() -> None:
    found = behaviour_gates(None, policy=load_policy(Precision.INT8))
    assert {gate.outcome for gate in found} == {GateOutcome.SKIPPED}
    assert len(found) == len(load_policy(Precision.INT8).rules_for(Scope.BEHAVIOUR))


def test_integers_differ_by_how_many_are_others() -> None:
    assert difference(np.array([1, 2, 3, 4]), np.array([1, 2, 3, 9]), scale=3.0) == 0.25
    assert difference(np.zeros(0, np.int64), np.zeros(0, np.int64), scale=1.0) == 0.0


def test_a_difference_is_a_part_of_the_scale_and_infinite_where_one_is_not_finite() -> None:
    one = np.array([1.0, np.nan, np.inf, -2.0], np.float32)
    assert difference(one, one.copy(), scale=0.0) == 0.0
    assert difference(one, np.array([1.5, np.nan, np.inf, -2.0], np.float32), scale=2.0) == 0.25
    assert difference(one, np.array([1.0, np.nan, 5.0, -2.0], np.float32), scale=2.0) == np.inf
    assert difference(one, np.array([np.nan, np.nan, np.inf, -2.0], np.float32), scale=2.0) == np.inf
    assert difference(np.ones(2), np.zeros(2), scale=0.0) == np.inf
    large = np.zeros(300_000, np.float16)
    changed = large.copy()
    changed[-1] = 1
    assert difference(large, changed, scale=4.0) == 0.25
