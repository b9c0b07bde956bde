from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from modelreg.builders import graphs
from modelreg.builders.bf16 import make_bf16, round_to_bf16
from modelreg.builders.graphs import VariantError, declared_types, element_types, initialiser_bytes
from modelreg.builders.precision import translate
from modelreg.builders.subgraphs import graphs_of
from modelreg.registry.words import Backend, Precision
from modelreg_testing.control_flow import branching_net, looping_net
from modelreg_testing.networks import encoder
from modelreg_testing.onnx_models import conv_net, make_model, mlp, save, value, weight

FLOAT, HALF, BFLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16


def convert(model: onnx.ModelProto, tmp_path: Path, **changes: Any) -> onnx.ModelProto:
    settings = translate(Precision.BF16, Backend.TENSORRT_RTX, "1.7.1").settings
    variant = {"kind": "bf16", "settings": settings, "excluded_nodes": [], "excluded_op_types": [], **changes}
    files = make_bf16(save(model, tmp_path / "source.onnx"), tmp_path / "out.onnx", variant)
    assert files == [tmp_path / "out.onnx"]
    return onnx.load(tmp_path / "out.onnx")


def widen(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def weights(model: onnx.ModelProto) -> dict[str, NDArray[np.float32]]:
    found = {each.name: each for each in model.graph.initializer if each.data_type == BFLOAT16}
    return {
        name: widen(np.frombuffer(each.raw_data, np.uint16)).reshape(tuple(each.dims)) for name, each in found.items()
    }


def test_weights_are_bf16_and_inputs_and_outputs_keep_their_types(tmp_path: Path) -> None:
    made = convert(conv_net(), tmp_path)
    assert initialiser_bytes(made.graph) == {"bfloat16": initialiser_bytes(conv_net().graph)["float32"] // 2}
    assert made.graph.input[0].type.tensor_type.elem_type == FLOAT
    assert made.graph.output[0].type.tensor_type.elem_type == FLOAT


def test_weights_are_rounded_once_and_keep_the_range_of_fp32(tmp_path: Path) -> None:
    model = mlp()
    numbers = numpy_helper.to_array(model.graph.initializer[0]).copy()
    numbers[0, :4] = [1e30, -1e30, 1e-30, 1 + 2**-8 + 2**-20]  # by way of FP16 the last would be a tie, and end at 1
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(numbers, "fc1.weight"))
    made = weights(convert(model, tmp_path))["fc1.weight"]
    np.testing.assert_allclose(made, numbers, rtol=2**-8)
    assert made[0, 3] == 1 + 2**-7


@pytest.mark.parametrize(
    ("number", "rounded"),
    [
        (1.0, 1.0),
        (1 + 2**-8, 1.0),  # ties go to even
        (1 + 3 * 2**-8, 1 + 2**-6),
        (np.finfo(np.float32).max, 3.3895313892515355e38),
        (np.finfo(np.float32).min, -3.3895313892515355e38),
        (np.inf, np.inf),
        (-np.inf, -np.inf),
        (np.nan, np.nan),
        (-0.0, -0.0),
    ],
)
def test_numbers_are_rounded_to_the_nearest_and_what_is_finite_stays_so(number: float, rounded: float) -> None:
    np.testing.assert_equal(widen(round_to_bf16(np.array([number], np.float32)))[0], np.float32(rounded))


def test_squares_sums_and_exponentials_may_be_bf16_and_positions_may_not(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Pow", ["x", "two"], ["square"], name="pow"),
        helper.make_node("Softmax", ["square"], ["s"], name="softmax"),
        helper.make_node("CumSum", ["s", "axis"], ["c"], name="cumsum"),
        helper.make_node("HardSwish", ["c"], ["y"], name="swish"),
    ]
    constants = [weight("two", np.array(2, np.float32)), weight("axis", np.array(1))]
    model = make_model(nodes, inputs=[value("x", ["N", 3])], outputs=[value("y", ["N", 3])], initializers=constants)
    made = convert(model, tmp_path)
    types = element_types(made)
    found = {node.name: types[node.input[0]] for node in made.graph.node if node.op_type != "Cast"}
    assert found == {"pow": BFLOAT16, "softmax": BFLOAT16, "cumsum": FLOAT, "swish": FLOAT}


def test_excluded_nodes_and_op_types_stay_in_fp32(tmp_path: Path) -> None:
    made = convert(conv_net(), tmp_path, excluded_nodes=["conv1"], excluded_op_types=["Gemm"])
    kept = {each.name for each in made.graph.initializer if each.data_type == FLOAT}
    assert kept == {"conv1.weight", "conv1.bias", "fc.weight", "fc.bias"}


@pytest.mark.parametrize("make", [branching_net, looping_net, encoder])
def test_no_tensor_is_fp16_in_branches_loops_or_a_transformer(tmp_path: Path, make: Any) -> None:
    made = convert(make(), tmp_path)
    assert HALF not in declared_types(made.graph).values()
    assert all(
        attribute.i != HALF
        for graph in graphs_of(made.graph)
        for node in graph.node
        for attribute in node.attribute
        if attribute.name == "to"
    )
    onnx.checker.check_model(made, full_check=True)


def test_tensors_in_attributes_keep_their_numbers(tmp_path: Path) -> None:
    filled = weight("", np.array([1e30], np.float32))
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["c"], name="filled", value=filled),
        helper.make_node("Add", ["x", "c"], ["y"]),
    ]
    made = convert(make_model(nodes, inputs=[value("x", ["N", 3])], outputs=[value("y", ["N", 3])]), tmp_path)
    tensor = next(node for node in made.graph.node if node.name == "filled").attribute[0].t
    assert tensor.data_type == BFLOAT16
    np.testing.assert_allclose(widen(np.frombuffer(tensor.raw_data, np.uint16)), 1e30, rtol=2**-8)


@pytest.mark.parametrize("where", ["weight", "cast"])
def test_a_source_that_has_fp16_is_refused(tmp_path: Path, where: str) -> None:
    if where == "weight":
        nodes = [
            helper.make_node("Cast", ["h"], ["wide"], to=FLOAT),
            helper.make_node("Add", ["x", "wide"], ["y"]),
        ]
        tensors = [weight("h", np.ones(3, np.float16))]
    else:
        nodes = [
            helper.make_node("Cast", ["x"], ["h"], to=HALF),
            helper.make_node("Cast", ["h"], ["y"], to=FLOAT),
        ]
        tensors = []
    model = make_model(nodes, inputs=[value("x", ["N", 3])], outputs=[value("y", ["N", 3])], initializers=tensors)
    with pytest.raises(VariantError, match="tensor 'h' is FP16 in the source") as caught:
        convert(model, tmp_path)
    assert "fp16" in caught.value.details["hint"]


def test_an_unknown_node_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VariantError, match="no node 'conv_1'"):
        convert(conv_net(), tmp_path, excluded_nodes=["conv_1"])


def test_many_weights_lie_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "EXTERNAL_BYTES", 100)
    settings = translate(Precision.BF16, Backend.TENSORRT_RTX, "1.7.1").settings
    variant = {"kind": "bf16", "settings": settings, "excluded_nodes": [], "excluded_op_types": []}
    files = make_bf16(save(conv_net(), tmp_path / "source.onnx"), tmp_path / "out.onnx", variant)
    assert [path.name for path in files] == ["out.onnx", "out.onnx.data"]
    assert list(initialiser_bytes(onnx.load(files[0]).graph)) == ["bfloat16"]
