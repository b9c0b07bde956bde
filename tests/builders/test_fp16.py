from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from modelreg.builders import fp16, graphs
from modelreg.builders.fp16 import make_fp16
from modelreg.builders.graphs import VariantError, element_types, initialiser_bytes
from modelreg.builders.precision import translate
from modelreg.registry.words import Backend, Precision
from modelreg.runtime.rounding import write_rounded
from modelreg_testing.control_flow import branching_net, looping_net
from modelreg_testing.networks import encoder, residual_net
from modelreg_testing.onnx_models import conv_net, make_model, mlp, save, save_with_external_data, value, weight


def variant(**changes: Any) -> dict[str, Any]:
    settings = translate(Precision.FP16, Backend.ONNXRUNTIME, "1.32.0").settings
    return {
        "kind": "fp16",
        "settings": settings,
        "excluded_nodes": [],
        "excluded_op_types": [],
        "keep_io_types": True,
        **changes,
    }


def convert(model: onnx.ModelProto, tmp_path: Path, **changes: Any) -> onnx.ModelProto:
    files = make_fp16(save(model, tmp_path / "source.onnx"), tmp_path / "out.onnx", variant(**changes))
    assert files == [tmp_path / "out.onnx"]
    return onnx.load(tmp_path / "out.onnx")


def test_weights_are_fp16_and_inputs_and_outputs_keep_their_types(tmp_path: Path) -> None:
    made = convert(conv_net(), tmp_path)
    assert list(initialiser_bytes(made.graph)) == ["float16"]
    assert made.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT
    assert made.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT


def test_inputs_and_outputs_become_fp16_when_asked(tmp_path: Path) -> None:
    made = convert(conv_net(), tmp_path, keep_io_types=False)
    assert made.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT16


def test_big_and_tiny_weights_keep_their_place_in_the_range_of_fp16(tmp_path: Path) -> None:
    model = mlp()
    numbers = numpy_helper.to_array(model.graph.initializer[0]).copy()
    numbers[0, :5] = [20_000, -30_000, 1e5, -1e9, 1e-9]
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(numbers, "fc1.weight"))
    made = {tensor.name: numpy_helper.to_array(tensor) for tensor in convert(model, tmp_path).graph.initializer}
    np.testing.assert_array_equal(made["fc1.weight"][0, :5].astype(float), [20_000, -30_000, 65504, -65504, 2**-24])


def test_excluded_nodes_and_op_types_stay_in_fp32(tmp_path: Path) -> None:
    made = convert(conv_net(), tmp_path, excluded_nodes=["conv1"], excluded_op_types=["Gemm"])
    types = element_types(made)
    outputs = {node.name: types[node.output[0]] for node in made.graph.node}
    assert outputs["conv1"] == outputs["fc"] == TensorProto.FLOAT
    assert outputs["conv2"] == TensorProto.FLOAT16


def test_an_unknown_node_is_refused_with_names_like_it(tmp_path: Path) -> None:
    with pytest.raises(VariantError, match="no node 'conv_1'") as caught:
        convert(conv_net(), tmp_path, excluded_nodes=["conv_1"])
    assert "conv1" in caught.value.details["hint"]


def test_ops_that_overflow_first_stay_in_fp32(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("Softmax", ["r"], ["y"], name="softmax"),
    ]
    made = convert(make_model(nodes, inputs=[value("x", ["N", 3])], outputs=[value("y", ["N", 3])]), tmp_path)
    types = element_types(made)
    softmax = next(node for node in made.graph.node if node.op_type == "Softmax")
    assert types[softmax.input[0]] == TensorProto.FLOAT


@pytest.mark.parametrize(
    "attribute",
    [{"value_float": 2.0}, {"value_floats": [2.0, 3.0, 4.0]}, {"value": weight("", np.ones(3, np.float32))}],
)
def test_constants_of_every_spelling_become_fp16(tmp_path: Path, attribute: dict[str, Any]) -> None:
    nodes = [
        helper.make_node("Constant", [], ["c"], **attribute),
        helper.make_node("Mul", ["x", "c"], ["y"]),
    ]
    made = convert(make_model(nodes, inputs=[value("x", ["N", 3])], outputs=[value("y", ["N", 3])]), tmp_path)
    assert list(initialiser_bytes(made.graph)) == ["float16"]


def test_external_data_comes_along(tmp_path: Path) -> None:
    source = save_with_external_data(mlp(), tmp_path / "in" / "model.onnx")
    make_fp16(source, tmp_path / "out.onnx", variant())
    assert sum(initialiser_bytes(onnx.load(tmp_path / "out.onnx").graph).values()) == 2 * (16 * 32 + 32 + 320 + 10)


def test_a_model_too_big_for_one_file_goes_through_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "EXTERNAL_BYTES", 100)
    monkeypatch.setattr(fp16, "EXTERNAL_BYTES", 100)
    files = make_fp16(save(conv_net(), tmp_path / "source.onnx"), tmp_path / "out.onnx", variant())
    assert [path.name for path in files] == ["out.onnx", "out.onnx.data"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.onnx", "out.onnx.data", "source.onnx"]
    assert list(initialiser_bytes(onnx.load(files[0]).graph)) == ["float16"]


def test_what_the_converter_cannot_do_is_a_reason_not_a_traceback(tmp_path: Path) -> None:
    settings = {**variant()["settings"], "max_finite": 1e9}
    with pytest.raises(VariantError, match=r"the FP16 converter failed: AssertionError: invalid max_finite_val"):
        convert(mlp(), tmp_path, settings=settings)


def declaring_net() -> onnx.ModelProto:
    """A LayerNormalization whose graph also declares its weights, as PyTorch's newer exporter does."""
    node = helper.make_node("LayerNormalization", ["x", "scale", "bias"], ["h"], name="norm")
    model = make_model(
        [node, helper.make_node("Relu", ["h"], ["y"], name="relu")],
        inputs=[value("x", ["N", 4])],
        outputs=[value("y", ["N", 4])],
        initializers=[weight("scale", np.ones(4, np.float32)), weight("bias", np.zeros(4, np.float32))],
    )
    model.graph.value_info.extend([value("scale", [4]), value("bias", [4]), value("h", ["N", 4])])
    return model


def test_weights_that_a_graph_also_declares_have_one_type(tmp_path: Path) -> None:
    made = convert(declaring_net(), tmp_path)
    onnx.checker.check_model(made, full_check=True)
    assert initialiser_bytes(made.graph) == {"float32": 32}
    assert [node.op_type for node in made.graph.node] == ["LayerNormalization", "Cast", "Relu", "Cast"]
    assert write_rounded(tmp_path / "out.onnx", tmp_path / "rounded.onnx").nodes == 1


@pytest.mark.parametrize("make", [residual_net, encoder, branching_net, looping_net])
def test_the_variant_is_valid_onnx_and_takes_and_gives_what_the_source_does(tmp_path: Path, make: Any) -> None:
    made, source = convert(make(), tmp_path), make()
    onnx.checker.check_model(made, full_check=True)
    assert [*map(str, made.graph.input)] == [*map(str, source.graph.input)]
    assert [each.name for each in made.graph.output] == [each.name for each in source.graph.output]
    assert {each.type.tensor_type.elem_type for each in made.graph.output} == {TensorProto.FLOAT}
