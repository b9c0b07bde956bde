from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from modelreg.config.policy import Policy, load_policy
from modelreg.registry.contents import Signature
from modelreg.registry.digests import canonical_json
from modelreg.registry.errors import GoldenSetError, WorkerStartError
from modelreg.registry.records import GateResult
from modelreg.registry.tensor_sets import TensorSet, open_tensor_set
from modelreg.registry.words import Backend, GateOutcome, Precision, Verdict
from modelreg.runtime.rounding import write_rounded
from modelreg.runtime.runner import RunError, WorkerRunner
from modelreg.validators.interface import EvaluationPass, Runner
from modelreg.validators.validation import ValidationOutcome, validate_engine
from modelreg_testing.golden import (
    LENET,
    FunctionRunner,
    engine_of,
    function_pass,
    golden_file,
    ort_pass,
    run_once,
    signature,
    spec,
    version_of,
)
from modelreg_testing.onnx_models import make_model, value, weight

EXAMPLE = Path(__file__).parents[2] / "examples/lenet"
X = np.random.default_rng(0).standard_normal((150, 3)).astype(np.float32)
PAIR = signature([spec("x", ("N", 3))], [spec("y", ("N", 3))])


def validate(
    golden: TensorSet,
    passes: list[EvaluationPass],
    *,
    declared: Signature = PAIR,
    precision: Precision = Precision.FP32,
    policy: Policy | None = None,
    progress: Any = None,
) -> ValidationOutcome:
    more = {} if progress is None else {"progress": progress}
    outcome = validate_engine(
        engine=engine_of(precision),
        version=version_of(declared),
        golden=golden,
        golden_digest="a" * 64,
        policy=policy or load_policy(precision),
        passes=passes,
        host={"name": "test"},
        **more,
    )
    canonical_json(outcome.report)
    return outcome


def failed(outcome: ValidationOutcome) -> dict[str, GateResult]:
    return {gate.gate: gate for gate in outcome.gates if gate.outcome in {GateOutcome.FAIL, GateOutcome.ERROR}}


@pytest.fixture
def lenet() -> onnx.ModelProto:
    return onnx.load(EXAMPLE / "lenet-v1.onnx")


@pytest.fixture
def digits() -> Iterator[TensorSet]:
    with open_tensor_set(EXAMPLE / "golden-v1.npz") as golden:
        yield golden


@pytest.fixture
def pairs(tmp_path: Path) -> Iterator[TensorSet]:
    with golden_file(tmp_path / "set", {"input.x": X, "output.y": 2 * X}) as golden:
        yield golden


# -- the cases to keep -------------------------------------------------------------------------------------
def test_the_faithful_lenet_passes_in_fp32(lenet: onnx.ModelProto, digits: TensorSet) -> None:
    outcome = validate(digits, [ort_pass(lenet)], declared=LENET)
    assert outcome.verdict is Verdict.PASS
    gates = {gate.gate: gate for gate in outcome.gates}
    assert gates["accuracy_drop"].measured == 0.0
    assert gates["sqnr_db"].measured is not None
    assert gates["sqnr_db"].measured > 100


def test_padding_that_became_one_sided_fails_and_names_output_samples_and_accuracy(
    lenet: onnx.ModelProto, digits: TensorSet
) -> None:
    convolution = next(node for node in lenet.graph.node if node.op_type == "Conv")
    pads = next(attribute for attribute in convolution.attribute if attribute.name == "pads")
    assert list(pads.ints) == [2, 2, 2, 2]
    pads.ints[:] = [0, 0, 4, 4]
    outcome = validate(digits, [ort_pass(lenet)], declared=LENET)
    assert outcome.verdict is Verdict.FAIL
    gates = failed(outcome)
    assert {"cosine", "sqnr_db", "range_error", "accuracy_drop"} <= set(gates)
    assert gates["cosine"].subject == "logits"
    assert len(gates["cosine"].worst_samples) == 5
    assert f"worst samples {gates['cosine'].worst_samples[0]}, " in gates["cosine"].reason
    assert "accuracy fell from 0." in gates["accuracy_drop"].reason
    task = outcome.report["passes"][0]["task"]
    assert task["reference_accuracy"] - task["accuracy"] == pytest.approx(gates["accuracy_drop"].measured)
    labels = digits.read("label")
    for flip in task["flips"]:
        assert flip["label"] == labels[flip["row"]] == flip["expected"] != flip["got"]
    worst = outcome.report["passes"][0]["outputs"]["logits"]["worst"]
    assert [w["row"] for w in worst] == list(gates["cosine"].worst_samples)
    assert all(w["label"] == labels[w["row"]] and {"expected", "got"} <= set(w) for w in worst)


def half_precision_chain() -> onnx.ModelProto:
    """Return y = (x * 300) / 300 as an FP16 variant: 300 * 300 is more than FP16 holds."""
    factor = np.array(300, dtype=np.float16)
    return make_model(
        [
            helper.make_node("Cast", ["x"], ["x16"], to=TensorProto.FLOAT16),
            helper.make_node("Mul", ["x16", "factor"], ["large"]),
            helper.make_node("Div", ["large", "factor"], ["y16"]),
            helper.make_node("Cast", ["y16"], ["y"], to=TensorProto.FLOAT),
        ],
        inputs=[value("x", ["N", 3])],
        outputs=[value("y", ["N", 3])],
        initializers=[weight("factor", factor)],
    )


def test_an_fp16_overflow_in_one_sample_fails_although_the_cosine_of_the_others_is_one(tmp_path: Path) -> None:
    inputs = np.abs(X)
    inputs[77, 1] = 300
    onnx.save(half_precision_chain(), tmp_path / "fp16.onnx")
    write_rounded(tmp_path / "fp16.onnx", tmp_path / "rounded.onnx")
    rounded = ort_pass(onnx.load(tmp_path / "rounded.onnx"), "rounded")
    plan = function_pass(lambda i: {"y": i["x"]})  # what FP32 between the casts computes
    with golden_file(tmp_path / "set", {"input.x": inputs, "output.y": inputs}) as golden:
        hidden = validate(golden, [plan], precision=Precision.FP16)
        outcome = validate(golden, [plan, rounded], precision=Precision.FP16)
    assert hidden.verdict is Verdict.PASS
    assert outcome.verdict is Verdict.FAIL
    assert list(failed(outcome)) == ["finite"]
    finite = failed(outcome)["finite"]
    assert (finite.subject, finite.measured, finite.worst_samples[0]) == ("y (rounded)", 1.0, 77)
    cosine = next(g for g in outcome.gates if g.gate == "cosine" and g.subject == "y (rounded)")
    assert cosine.measured == pytest.approx(1.0, abs=1e-6)
    assert cosine.outcome is GateOutcome.PASS


def saturating_net() -> onnx.ModelProto:
    """Return y = tanh(x * 300 * 300) as an FP16 variant: infinite on the way, and 1 or -1 in the end."""
    factor = np.array(300, dtype=np.float16)
    return make_model(
        [
            helper.make_node("Cast", ["x"], ["x16"], to=TensorProto.FLOAT16),
            helper.make_node("Mul", ["x16", "factor"], ["large"], name="hidden/first"),
            helper.make_node("Mul", ["large", "factor"], ["larger"], name="hidden/second"),
            helper.make_node("Tanh", ["larger"], ["y16"], name="squash"),
            helper.make_node("Cast", ["y16"], ["y"], to=TensorProto.FLOAT),
        ],
        inputs=[value("x", ["N", 3])],
        outputs=[value("y", ["N", 3])],
        initializers=[weight("factor", factor)],
    )


def worker_pass(path: Path, mode: str) -> EvaluationPass:
    return EvaluationPass(name=mode, open_runner=lambda: WorkerRunner(path, backend=Backend.ONNXRUNTIME, mode=mode))


def test_an_fp16_overflow_that_a_tanh_hides_fails_and_names_the_node(tmp_path: Path) -> None:
    onnx.save(saturating_net(), tmp_path / "fp16.onnx")
    passes = [worker_pass(tmp_path / "fp16.onnx", mode) for mode in ("plan", "rounded")]
    right = np.tanh(X.astype(np.float64) * 90_000).astype(np.float32)
    with golden_file(tmp_path / "set", {"input.x": X, "output.y": right}) as golden:
        outcome = validate(golden, passes, precision=Precision.FP16)
    assert outcome.verdict is Verdict.FAIL
    assert list(failed(outcome)) == ["overflows"]
    gate = failed(outcome)["overflows"]
    hidden = (X.astype(np.float16).astype(np.float64) * 300).astype(np.float16).astype(np.float64)
    expected = int((np.abs(hidden * 300) >= 65_520).sum())
    assert (gate.subject, gate.measured, gate.limit) == ("inside (rounded)", expected, 0.0)
    assert gate.reason == f"{expected} finite values became infinite, first in hidden/second ({expected})"
    assert outcome.report["passes"][0]["overflows"] is None
    assert outcome.report["passes"][1]["overflows"]["hidden/second"] == expected
    assert outcome.report["passes"][1]["overflows"]["hidden/first"] == 0


def test_a_policy_may_allow_overflows_that_are_meant(tmp_path: Path) -> None:
    """An attention mask adds -65504 to scores, and a Softmax makes 0 of what becomes -inf."""
    onnx.save(saturating_net(), tmp_path / "fp16.onnx")
    (tmp_path / "policy.toml").write_text('[[rules]]\nmetric = "overflows"\nlimit = 1e9\n')
    policy = load_policy(Precision.FP16, override=tmp_path / "policy.toml")
    right = np.tanh(X.astype(np.float64) * 90_000).astype(np.float32)
    with golden_file(tmp_path / "set", {"input.x": X, "output.y": right}) as golden:
        passes = [worker_pass(tmp_path / "fp16.onnx", "rounded")]
        assert validate(golden, passes, precision=Precision.FP16, policy=policy).verdict is Verdict.PASS


def test_where_no_pass_sees_inside_the_gate_is_skipped(pairs: TensorSet) -> None:
    outcome = validate(pairs, [function_pass(lambda i: {"y": i["x"]})], precision=Precision.FP16)
    gate = next(gate for gate in outcome.gates if gate.gate == "overflows")
    assert (gate.subject, gate.outcome) == ("inside", GateOutcome.SKIPPED)
    assert gate.reason == "the values between nodes cannot be seen"


def quantised(source: Path, images: Any, folder: Path) -> onnx.ModelProto:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._batches = iter(np.array_split(images, 4))

        def get_next(self) -> Mapping[str, Any] | None:
            batch = next(self._batches, None)
            return None if batch is None else {"image": batch}

    quantize_static(source, folder / "int8.onnx", Reader(), quant_format=QuantFormat.QDQ, per_channel=True)
    return onnx.load(folder / "int8.onnx")


def test_an_int8_engine_calibrated_on_inputs_that_were_never_normalised_fails_on_the_task(
    digits: TensorSet, tmp_path: Path
) -> None:
    with open_tensor_set(EXAMPLE / "calibration.npz") as calibration:
        images = calibration.read("input.image", 0, 64)
    raw = images * 82 + 78
    good = quantised(EXAMPLE / "lenet-v1.onnx", images, tmp_path)
    bad = quantised(EXAMPLE / "lenet-v1.onnx", raw, tmp_path)
    healthy = validate(digits, [ort_pass(good)], declared=LENET, precision=Precision.INT8)
    assert healthy.verdict is Verdict.PASS, failed(healthy)
    outcome = validate(digits, [ort_pass(bad)], declared=LENET, precision=Precision.INT8)
    assert outcome.verdict is Verdict.FAIL
    assert "accuracy_drop" in failed(outcome)


# -- lining up ---------------------------------------------------------------------------------------------
def test_an_engine_that_agrees_passes_and_progress_is_told(pairs: TensorSet) -> None:
    seen: list[tuple[str, int, int]] = []
    outcome = validate(pairs, [function_pass(lambda i: {"y": 2 * i["x"]})], progress=lambda *told: seen.append(told))
    assert outcome.verdict is Verdict.PASS
    assert seen == [("plan", 64, 150), ("plan", 128, 150), ("plan", 150, 150)]
    assert {gate.subject for gate in outcome.gates} == {"engine", "y", "task", "outputs by slice", "runs"}
    skipped = [gate for gate in outcome.gates if gate.outcome is GateOutcome.SKIPPED]
    assert {gate.reason for gate in skipped} == {"the golden set has no labels", "the golden set has no slices"}


def test_the_report_says_what_was_judged_by_what(pairs: TensorSet) -> None:
    report = validate(pairs, [function_pass(lambda i: {"y": 2 * i["x"]})]).report
    policy = load_policy(Precision.FP32)
    assert report["schema"] == 1
    assert report["verdict"] == "pass"
    assert report["engine"]["precision"] == "fp32"
    assert report["golden"] == {
        "digest": "a" * 64,
        "samples": 150,
        "runs": 3,
        "batch": 64,
        "labelled_output": None,
    }
    assert report["policy"]["digest"] == policy.digest
    assert report["host"] == {"name": "test"}
    assert report["passes"][0]["outputs"]["y"]["values"] == 450
    assert report["passes"][0]["outputs"]["y"]["sqnr_db"] == "inf"
    assert GateResult.from_json(report["gates"][0]).gate == "realised_precision"


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda i: {"z": i["x"]}, "no output 'y'"),
        (lambda i: {"y": [i["x"]]}, "output 'y' is a list, no array"),
        (lambda i: {"y": i["x"][:, :2]}, r"output 'y' has shape \[64, 2\], the golden set has \[150, 3\]"),
        (lambda i: {"y": i["x"][:-1]}, "output 'y' gave 147 rows, the golden set has 150"),
        (lambda i: {"y": np.repeat(i["x"], 2, axis=0)}, "gives more than the golden set's 150 rows"),
        (lambda i: {"y": np.float32(1)}, r"output 'y' has shape \[1\]"),
        (lambda i: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda i: i["z"], "KeyError: 'z'"),
    ],
)
def test_an_engine_whose_outputs_do_not_line_up_or_that_crashes_is_an_error(
    pairs: TensorSet, function: Any, reason: str
) -> None:
    import re

    outcome = validate(pairs, [function_pass(function)])
    assert outcome.verdict is Verdict.ERROR
    gate = failed(outcome)["run"]
    assert gate.outcome is GateOutcome.ERROR
    assert gate.subject == "plan"
    assert re.search(reason, gate.reason)
    assert outcome.report["passes"][0]["error"] == gate.reason


def test_an_error_of_ours_says_what_happened_without_its_class(pairs: TensorSet) -> None:
    def refuse(_inputs: Any) -> Any:
        raise RunError("the plan takes no such input\nand more")

    assert failed(validate(pairs, [function_pass(refuse)]))["run"].reason == "the plan takes no such input"


def test_an_engine_that_could_not_be_started_gets_no_verdict(pairs: TensorSet, tmp_path: Path) -> None:
    plan = EvaluationPass(
        name="plan",
        open_runner=lambda: WorkerRunner(tmp_path / "plan", backend=Backend.ONNXRUNTIME, python="/no/python"),
    )
    with pytest.raises(WorkerStartError, match="cannot start the interpreter /no/python"):
        validate(pairs, [plan])


def test_an_engine_that_cannot_be_loaded_is_an_error(pairs: TensorSet) -> None:
    @contextmanager
    def open_runner() -> Iterator[Runner]:
        if pairs.tensors:
            raise RuntimeError("\nno kernel\nfor this\n")
        yield FunctionRunner(dict)

    outcome = validate(pairs, [EvaluationPass(name="plan", open_runner=open_runner)])
    assert outcome.verdict is Verdict.ERROR
    assert failed(outcome)["run"].reason == "RuntimeError: no kernel"


def test_an_exception_without_a_message_is_still_named(pairs: TensorSet) -> None:
    def crash(_inputs: Any) -> Any:
        raise MemoryError

    assert failed(validate(pairs, [function_pass(crash)]))["run"].reason == "MemoryError"


def test_a_stop_by_the_user_is_no_gate(pairs: TensorSet) -> None:
    def stop(_inputs: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        validate(pairs, [function_pass(stop)])


def test_every_pass_must_satisfy_the_policy(pairs: TensorSet) -> None:
    good, bad = function_pass(lambda i: {"y": 2 * i["x"]}), function_pass(lambda i: {"y": i["x"]}, "rounded")
    outcome = validate(pairs, [good, bad])
    assert outcome.verdict is Verdict.FAIL
    assert {gate.subject for gate in failed(outcome).values()} == {"y (rounded)"}
    assert {"y (plan)", "task (plan)", "task (rounded)"} <= {gate.subject for gate in outcome.gates}
    assert [p["name"] for p in outcome.report["passes"]] == ["plan", "rounded"]


def test_without_a_pass_nothing_is_validated(pairs: TensorSet) -> None:
    with pytest.raises(ValueError, match="at least one pass"):
        validate(pairs, [])


def test_a_golden_set_of_another_model_is_refused_before_anything_runs(pairs: TensorSet) -> None:
    def never(_inputs: Any) -> Any:
        raise AssertionError

    with pytest.raises(GoldenSetError, match=r"lacks 'input\.image'"):
        validate(pairs, [function_pass(never)], declared=LENET)


def test_an_engine_that_did_not_become_its_precision_fails(pairs: TensorSet) -> None:
    outcome = validate_engine(
        engine=replace(engine_of(Precision.FP16), realised={"stayed": ["conv1"], "converted": 1}),
        version=version_of(PAIR),
        golden=pairs,
        golden_digest="a" * 64,
        policy=load_policy(Precision.FP16),
        passes=[function_pass(lambda i: {"y": 2 * i["x"]})],
    )
    assert outcome.verdict is Verdict.FAIL
    assert list(failed(outcome)) == ["realised_precision"]


def test_scalar_and_integer_outputs_are_compared_as_such(tmp_path: Path) -> None:
    declared = signature(
        [spec("x", ("N", 3))], [spec("total", ()), spec("rank", ("N",), "int64"), spec("found", ("K", 3))]
    )
    contents = {
        "input.x": X,
        "output.total": np.array([X[:64].sum(), X[64:128].sum(), X[128:].sum()], dtype=np.float32),
        "output.rank": X.argmax(1),
        "output.found": X[X[:, 0] > 0],
    }

    def engine(inputs: Mapping[str, Any]) -> dict[str, Any]:
        x = inputs["x"]
        return {"total": x.sum(), "rank": x.argmax(1), "found": x[x[:, 0] > 0]}

    def wrong(inputs: Mapping[str, Any]) -> dict[str, Any]:
        return engine(inputs) | {"rank": inputs["x"].argmin(1), "total": inputs["x"].sum() + np.float32(1)}

    with golden_file(tmp_path / "set", contents) as golden:
        assert validate(golden, [function_pass(engine)], declared=declared).verdict is Verdict.PASS
        outcome = validate(golden, [function_pass(wrong)], declared=declared)
    gates = {(g.gate, g.subject) for g in outcome.gates if g.outcome is GateOutcome.FAIL}
    assert ("mismatch_rate", "rank") in gates
    assert ("sqnr_db", "total") in gates
    assert not [g for g in gates if g[1] == "found"]
    total = next(g for g in outcome.gates if g.gate == "sqnr_db" and g.subject == "total")
    assert set(total.worst_samples) == {0, 50, 100}  # a row of a run, as samples


def test_an_engine_with_nothing_but_empty_outputs_does_not_pass(tmp_path: Path) -> None:
    declared = signature([spec("x", ("N", 3))], [spec("y", ("N", 0))])
    with golden_file(tmp_path / "set", {"input.x": X, "output.y": np.zeros((150, 0), dtype=np.float32)}) as golden:
        outcome = validate(golden, [function_pass(lambda i: {"y": i["x"][:, :0]})], declared=declared)
    assert outcome.verdict is Verdict.FAIL
    assert {g.outcome for g in outcome.gates} == {GateOutcome.PASS, GateOutcome.SKIPPED}


def test_a_scalar_rank_zero_golden_output_of_one_run(tmp_path: Path) -> None:
    declared = signature([spec("x", ("N", 3))], [spec("y", ())])
    with golden_file(tmp_path / "set", {"input.x": X[:9], "output.y": np.array(X[:9].sum())}) as golden:
        outcome = validate(golden, [function_pass(lambda i: {"y": i["x"].sum()})], declared=declared)
    assert outcome.verdict is Verdict.PASS


def test_memory_is_bounded_by_a_batch_and_not_by_the_set(tmp_path: Path) -> None:
    declared = signature([spec("x", ("N", 1))], [spec("y", ("N", 20_000))])
    rows = 1600
    contents = {
        "input.x": np.ones((rows, 1), dtype=np.float32),
        "output.y": np.ones((rows, 20_000), dtype=np.float32),
    }
    with golden_file(tmp_path / "set", contents) as golden:
        del contents
        tracemalloc.start()
        outcome = validate(
            golden, [function_pass(lambda i: {"y": np.repeat(i["x"], 20_000, axis=1)})], declared=declared
        )
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert outcome.verdict is Verdict.PASS
    batch_bytes = 64 * 20_000 * 4
    assert peak < batch_bytes * 2 + 20e6 < rows * 20_000 * 4 / 2


def test_the_engine_is_given_the_samples_in_order(pairs: TensorSet) -> None:
    seen: list[Any] = []

    def keep(inputs: Mapping[str, Any]) -> dict[str, Any]:
        seen.append(inputs["x"])
        return {"y": 2 * inputs["x"]}

    validate(pairs, [function_pass(keep)])
    np.testing.assert_array_equal(np.concatenate(seen[:3]), X)
    assert len(seen) > 3  # then it is tried further


def test_one_run_of_a_real_engine_gives_named_arrays(lenet: onnx.ModelProto, digits: TensorSet) -> None:
    found = run_once(ort_pass(lenet), {"image": digits.read("input.image", 0, 3)})
    np.testing.assert_allclose(found["logits"], digits.read("output.logits", 0, 3), rtol=1e-3, atol=1e-3)
