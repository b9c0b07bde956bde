"""The job file of TensorRT-RTX, with the real library in a child process."""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from modelreg.builders import trt_rtx
from modelreg.registry.plans import read_plan_header
from modelreg.registry.toolchains import trt_log
from modelreg.registry.toolchains.process import Worker, WorkerJobError
from modelreg_testing.onnx_models import conv_net, identity, make_model, mlp, save, value, weight
from modelreg_testing.toolchains import needs_rtx, rtx_toolchain

PROFILE = {"image": {"min": [1, 1, 12, 12], "opt": [8, 1, 12, 12], "max": [64, 1, 12, 12]}}


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    with Worker.start(sys.executable, Path(trt_rtx.__file__), log_path=tmp_path / "log") as started:
        yield started


def request(model: onnx.ModelProto, tmp_path: Path, **changes: Any) -> dict[str, Any]:
    types = {TensorProto.FLOAT: "float32", TensorProto.DOUBLE: "float64", TensorProto.INT64: "int64"}
    edges = {
        what: {each.name: types[each.type.tensor_type.elem_type] for each in values}
        for what, values in (("inputs", model.graph.input), ("outputs", model.graph.output))
    }
    return {
        "model": str(save(model, tmp_path / "m.onnx")),
        "plan": str(tmp_path / "model.plan"),
        "layers": str(tmp_path / "layers.json"),
        "backend": "tensorrt-rtx",
        "version": rtx_toolchain().version,
        "target": "sm_86",
        "flags": [],
        "profiles": [PROFILE] if "image" in edges["inputs"] else [],
        "profiling_verbosity": "DETAILED",
        "keep_io_types": True,
        **edges,
        **changes,
    }


def build(worker: Worker, body: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = worker.call("build", body, timeout_s=120)[0]
    return answer


@needs_rtx
def test_a_plan_is_built_whose_header_is_what_was_asked(worker: Worker, tmp_path: Path) -> None:
    answer = build(worker, request(conv_net(), tmp_path))
    header = read_plan_header(tmp_path / "model.plan")
    assert (header.version, header.targets) == (rtx_toolchain().version, ("sm_86",))
    assert answer["inputs"] == [{"name": "image", "dtype": "float32", "shape": [-1, 1, 12, 12]}]
    assert answer["flags"] == []
    layers = json.loads((tmp_path / "layers.json").read_text())["layers"]
    assert {"CONVOLUTION", "MATRIX_MULTIPLY"} <= {layer["kind"] for layer in layers}
    assert "conv1" in {name for layer in layers for name in layer["nodes"]}


@needs_rtx
def test_the_same_build_gives_the_same_bytes_and_tf32_gives_others(worker: Worker, tmp_path: Path) -> None:
    plans = []
    for flags in ([], [], ["TF32"]):
        assert build(worker, request(conv_net(), tmp_path, flags=flags))["flags"] == flags
        plans.append((tmp_path / "model.plan").read_bytes())
    assert plans[0] == plans[1]
    assert plans[0] != plans[2]


@needs_rtx
def test_several_profiles_go_into_one_plan(worker: Worker, tmp_path: Path) -> None:
    build(worker, request(conv_net(), tmp_path))
    one = (tmp_path / "model.plan").stat().st_size
    build(worker, request(conv_net(), tmp_path, profiles=[PROFILE, PROFILE]))
    assert (tmp_path / "model.plan").stat().st_size > one


def net(op: str, *, domain: str = "", elem: int = TensorProto.FLOAT, **attributes: Any) -> onnx.ModelProto:
    node = helper.make_node(op, ["x"], ["y"], name="odd", domain=domain, **attributes)
    return make_model(
        [node],
        inputs=[value("x", [4, 4], elem)],
        outputs=[value("y", [4, 4], elem)],
        opsets=[("", 17), *([(domain, 1)] if domain else [])],
    )


def mixed_types() -> onnx.ModelProto:
    half = weight("half", np.ones((4, 4), np.float16))
    node = helper.make_node("Add", ["x", "half"], ["y"], name="mix")
    return make_model([node], inputs=[value("x", [4, 4])], outputs=[value("y", [4, 4])], initializers=[half])


@needs_rtx
@pytest.mark.parametrize(
    ("model", "node", "fact"),
    [
        (net("Det"), "odd", r"odd \(Det\): there is no importer for this op"),
        (net("Fly", domain="birds"), "odd", r"odd \(Fly\): no importer and no plugin for this op"),
        (mixed_types(), "mix", r"mix \(Add\): .*must have same input types.*Float and Half"),
    ],
    ids=["an op without importer", "a custom op", "mixed types"],
)
def test_what_cannot_be_parsed_is_named_by_node_and_op(
    worker: Worker, tmp_path: Path, model: onnx.ModelProto, node: str, fact: str
) -> None:
    with pytest.raises(WorkerJobError, match=fact) as caught:
        build(worker, request(model, tmp_path))
    assert [each["node"] for each in caught.value.remote_details["nodes"]] == [node]  # type: ignore[attr-defined]
    assert "cudaError" not in str(caught.value)
    assert "_src" not in str(caught.value)
    assert not (tmp_path / "model.plan").exists()


@needs_rtx
def test_a_file_that_is_no_model_is_refused(worker: Worker, tmp_path: Path) -> None:
    body = request(conv_net(), tmp_path)
    Path(body["model"]).write_bytes(b"no model")
    with pytest.raises(WorkerJobError, match=r"cannot parse the model: .*Failed to parse the ONNX model"):
        build(worker, body)


@needs_rtx
def test_a_refusal_of_the_compiler_is_passed_on(worker: Worker, tmp_path: Path) -> None:
    with pytest.raises(WorkerJobError, match=r"cannot build it for sm_75: .*FP32 GEMM is not supported") as caught:
        build(
            worker,
            request(mlp(), tmp_path, target="sm_75", profiles=[{"x": {p: [1, 16] for p in ("min", "opt", "max")}}]),
        )
    assert "fp16" in str(caught.value.remote_details["hint"])


@needs_rtx
@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"version": "1.0.0.1"}, r"registered with TensorRT-RTX 1\.0\.0\.1, its interpreter has 1\.\d+"),
        ({"target": "sm_90"}, "does not build for sm_90"),
        ({"flags": ["FP16"]}, "has no builder flag FP16"),
        # refused without a word: the flag stays off
        ({"flags": ["EXCLUDE_LEAN_RUNTIME"]}, r"took the flags \[\] instead of \['EXCLUDE_LEAN_RUNTIME'\]"),
        ({"profiles": []}, "no optimization profile has been defined"),
        (
            {"profiles": [{"image": {"min": [9, 1, 12, 12], "opt": [8, 1, 12, 12], "max": [64, 1, 12, 12]}}]},
            "does not take profile 0",
        ),
        ({"inputs": {"other": "float32"}}, "the network has inputs image, the source other"),
        ({"outputs": {"other": "float32"}}, "the network has outputs logits, the source other"),
        ({"outputs": {"logits": "float16"}}, "output 'logits' is float16 in the source, and float32 in TensorRT-RTX"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_what_is_not_as_asked_fails_the_build(
    worker: Worker, tmp_path: Path, changes: dict[str, Any], fact: str
) -> None:
    with pytest.raises(WorkerJobError, match=fact) as caught:
        build(worker, request(conv_net(), tmp_path, **changes))
    assert caught.value.remote_type == ("BackendChangedError" if "version" in changes else "TensorRTError")
    assert not (tmp_path / "model.plan").exists()


@needs_rtx
def test_types_are_compared_only_where_they_are_kept(worker: Worker, tmp_path: Path) -> None:
    build(worker, request(conv_net(), tmp_path, keep_io_types=False, outputs={"logits": "float16"}))


@needs_rtx
def test_an_input_that_the_parser_narrows_is_refused(worker: Worker, tmp_path: Path) -> None:
    with pytest.raises(WorkerJobError, match="input 'x' is float64 in the source, and float32 in TensorRT-RTX"):
        build(worker, request(net("Softmax", elem=TensorProto.DOUBLE), tmp_path))


@needs_rtx
def test_an_input_whose_values_decide_shapes_is_refused(worker: Worker, tmp_path: Path) -> None:
    node = helper.make_node("Reshape", ["x", "shape"], ["y"], name="r")
    inputs = [value("x", [4, 4]), value("shape", [2], TensorProto.INT64)]
    model = make_model([node], inputs=inputs, outputs=[value("y", ["a", "b"])])
    with pytest.raises(WorkerJobError, match="input 'shape' decides shapes by its values"):
        build(worker, request(model, tmp_path))


@needs_rtx
def test_a_scalar_and_an_identity_build(worker: Worker, tmp_path: Path) -> None:
    assert build(worker, request(identity([2, 3]), tmp_path))["build_s"] > 0


class Severity(enum.IntEnum):
    INTERNAL_ERROR = 0
    ERROR = 1
    WARNING = 2
    INFO = 3
    VERBOSE = 4


class PretendTensorRT:
    """As much of the library as a logger needs."""

    class ILogger:
        ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO


def test_errors_fail_the_build_that_went_on_and_warnings_are_kept_once(capsys: pytest.CaptureFixture[str]) -> None:
    log = trt_log.make_log(PretendTensorRT, "TensorRT-RTX")
    for level, message in [
        (Severity.VERBOSE, "chatter"),
        (Severity.INFO, "news"),
        (Severity.WARNING, "careful"),
        (Severity.WARNING, "careful"),
        (Severity.ERROR, "[checkMacros.cpp::catchCudaError::250] (cudaError 35: no driver)"),
    ]:
        log.log(level, message)
    log.require_no_error("it went on")
    assert log.warnings == ["careful"]
    echo = "[checkMacros.cpp::catchCudaError::229] Error Code 1: Cuda Runtime (In catchCudaError at /_src/c.cpp:229)"
    log.log(Severity.INTERNAL_ERROR, "the cache will not be used")
    log.log(Severity.ERROR, echo)
    assert log.errors == ["the cache will not be used"]
    with pytest.raises(trt_log.TensorRTError, match="it went on: the cache will not be used"):
        log.require_no_error("it went on")
    with pytest.raises(trt_log.TensorRTError, match="nothing was made: the cache will not be used"):
        log.require(None, "nothing was made")
    written = capsys.readouterr().err
    assert "news" in written
    assert "cudaError 35" in written
    assert "chatter" not in written


def test_an_interpreter_without_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trt_rtx, "_MODULES", ("no_such_library",))
    with pytest.raises(trt_log.TensorRTError, match="TensorRT-RTX is not installed in"):
        trt_rtx.build({}, {}, lambda *_: None)


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("ModelImporter.cpp:140: While parsing", "While parsing"),
        (
            "ITensor::getDimensions: Error Code 4: API Usage Error (mix: bad. In validateTypes at /_src/a/b.cpp:40)",
            "ITensor::getDimensions: Error Code 4: API Usage Error (mix: bad)",
        ),
        ("a\nb\n[c::catchCudaError::250] Error (cudaError 35: old)", "a b"),
    ],
)
def test_messages_are_one_line_without_source_locations(text: str, cleaned: str) -> None:
    assert trt_log.clean(text) == cleaned


@pytest.mark.parametrize(("version", "told"), [("1.6.1.120", True), ("1.7.1.116", False), ("1.10.0.1", False)])
def test_the_int8_convolutions_that_older_releases_refuse_are_explained(version: str, told: bool) -> None:
    refusal = "MyelinCheckException: cudnn_impl.cpp:89: CHECK(dtype == myelinTypeFloat || dtype == myelinTypeHalf)"
    assert ("--op-types-to-exclude Conv" in trt_rtx._hint(version, [refusal])) is told
    assert trt_rtx._hint(version, ["something else"]) == ""


def test_long_lists_are_cut() -> None:
    assert trt_log.join([str(n) for n in range(7)]) == "0; 1; 2; 3; 4; and 2 more"
