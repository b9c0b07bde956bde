from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime  # noqa: TID253 - a dependency, and what these tests look at
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from modelreg.builders.fp8 import make_fp8, round_to_e4m3
from modelreg.builders.graphs import VariantError, initialiser_bytes
from modelreg.builders.precision import translate
from modelreg.registry.words import Backend, Precision
from modelreg_testing.networks import residual_net
from modelreg_testing.onnx_models import conv_net, make_model, save, value, weight
from modelreg_testing.quantising import calibrated, snr_db

Array = NDArray[Any]
FP8 = TensorProto.FLOAT8E4M3FN


def convert(model: onnx.ModelProto, tmp_path: Path, *, data: Array, **changes: Any) -> onnx.ModelProto:
    part, request = calibrated(model, data, tmp_path, method="minmax")
    variant = {
        "kind": "fp8",
        "settings": translate(Precision.FP8, Backend.TENSORRT_RTX, "1.7.1").settings,
        "excluded_nodes": [],
        "excluded_op_types": [],
        "calibration": part,
        **changes,
    }
    source = save(model, tmp_path / "source.onnx")
    files = make_fp8(source, tmp_path / "out.onnx", variant, request, lambda *_: None)
    assert files == [tmp_path / "out.onnx"]
    return onnx.load(tmp_path / "out.onnx")


def images(count: int = 32, size: int = 12, channels: int = 1) -> Array:
    return np.random.default_rng(0).normal(size=(count, channels, size, size)).astype(np.float32)


def outputs(model: onnx.ModelProto, inputs: Array) -> Array:
    options = onnxruntime.SessionOptions()
    # From its extended level on, ONNX Runtime 1.32 computes FP8 convolutions wrongly.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    answer: Array = session.run(None, {session.get_inputs()[0].name: inputs})[0]
    return answer


def test_weights_are_stored_in_fp8_and_biases_stay_in_fp32(tmp_path: Path) -> None:
    made = convert(conv_net(), tmp_path, data=images())
    stored = {each.name for each in made.graph.initializer if each.data_type == FP8 and each.dims}
    assert {name.rpartition("_")[0] for name in stored if "zero_point" not in name} >= {"conv1.weight_QuantizeLinear"}
    assert initialiser_bytes(made.graph)["float8_e4m3fn"] > initialiser_bytes(made.graph)["float32"]
    assert {"conv1.bias", "conv2.bias", "fc.bias"} <= {each.name for each in made.graph.initializer}
    assert "conv1.weight" not in {each.name for each in made.graph.initializer}


def test_the_variant_is_valid_and_computes_what_the_source_does_nearly(tmp_path: Path) -> None:
    made = convert(conv_net(), tmp_path, data=images())
    onnx.checker.check_model(made, full_check=True)
    assert next(each.version for each in made.opset_import if each.domain == "") >= 19
    inputs = images(16)
    assert snr_db(outputs(made, inputs), outputs(conv_net(), inputs)) > 20


def test_the_largest_weight_of_each_channel_becomes_448(tmp_path: Path) -> None:
    made = convert(conv_net(), tmp_path, data=images())
    tensors = {each.name: each for each in made.graph.initializer}
    scale = numpy_helper.to_array(tensors["conv2.weight_scale"])
    source = {each.name: numpy_helper.to_array(each) for each in conv_net().graph.initializer}["conv2.weight"]
    np.testing.assert_allclose(scale, np.abs(source).max(axis=(1, 2, 3)) / 448, rtol=1e-5)
    assert scale.shape == (8,)


def test_no_node_is_left_that_quantises_a_weight(tmp_path: Path) -> None:
    made = convert(residual_net(), tmp_path, data=images(size=16, channels=3))
    constants = {each.name for each in made.graph.initializer}
    quantisers = [node for node in made.graph.node if node.op_type == "QuantizeLinear"]
    assert quantisers
    assert not [node.name for node in quantisers if node.input[0] in constants]
    weighted = [node for node in made.graph.node if node.op_type in ("Conv", "Gemm")]
    makers = {name: node.op_type for node in made.graph.node for name in node.output}
    assert {makers[name] for node in weighted for name in node.input[:2]} == {"DequantizeLinear"}


def test_excluded_nodes_stay_in_fp32(tmp_path: Path) -> None:
    made = convert(conv_net(), tmp_path, data=images(), excluded_nodes=["conv2"])
    assert "conv2.weight" in {each.name for each in made.graph.initializer}


def test_a_model_without_a_node_to_quantise_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VariantError, match="no node of this model can become FP8"):
        convert(conv_net(), tmp_path, data=images(), excluded_op_types=["Conv", "Gemm"])


def test_a_weight_with_one_range_is_stored_in_fp8_too(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="batched")
    numbers = rng.normal(size=(3, 4, 6)).astype(np.float32)
    model = make_model(
        [node],
        inputs=[value("x", ["N", 3, 2, 4])],
        outputs=[value("y", ["N", 3, 2, 6])],
        initializers=[weight("w", numbers)],
    )
    data = rng.normal(size=(16, 3, 2, 4)).astype(np.float32)
    made = convert(model, tmp_path, data=data)
    tensors = {each.name: each for each in made.graph.initializer}
    assert (tensors["w_QuantizeLinear_Output"].data_type, list(tensors["w_scale"].dims)) == (FP8, [])
    assert snr_db(outputs(made, data), outputs(model, data)) > 20


@pytest.mark.parametrize("scale", [1e-3, 0.02, 1.0, 200.0])
def test_numbers_are_rounded_as_the_format_says(scale: float) -> None:
    numbers = (np.random.default_rng(0).normal(size=20_000) * scale).astype(np.float32)
    wanted = np.clip(numbers, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    np.testing.assert_array_equal(round_to_e4m3(numbers), wanted)


def test_zeros_steps_and_ends_are_exact() -> None:
    numbers = np.array([0.0, -0.0, 2**-9, 2**-10, 3 * 2**-10, 448, 464, -1e9], np.float32)
    bits = [0x00, 0x80, 0x01, 0x00, 0x02, 0x7E, 0x7E, 0xFE]
    np.testing.assert_array_equal(round_to_e4m3(numbers), np.array(bits, np.uint8))
