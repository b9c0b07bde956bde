from __future__ import annotations

import onnx
import pytest
from onnx import helper

from modelreg.builders.residuals import skip_tensors
from modelreg_testing.networks import residual_net
from modelreg_testing.onnx_models import make_model, value


def skips(model: onnx.ModelProto, *, left: tuple[str, ...] = ()) -> list[str]:
    graph = onnx.shape_inference.infer_shapes(model).graph
    convolutions = {node.name for node in graph.node if node.op_type == "Conv"} - set(left)
    return skip_tensors(graph, convolutions=convolutions, left=left)


def test_the_skip_of_a_block_is_its_input_or_the_convolution_that_adapts_it() -> None:
    assert skips(residual_net(blocks=(2, 2))) == ["stem.relu.out", "0.0.relu2.out", "1.0.down.out", "1.0.relu2.out"]


def test_the_order_of_the_inputs_does_not_matter() -> None:
    model = residual_net(blocks=(1, 1))
    for node in model.graph.node:
        if node.op_type == "Add":
            node.input[:] = list(node.input)[::-1]
    assert skips(model) == ["stem.relu.out", "1.0.down.out"]


def test_where_the_main_path_is_excluded_the_other_convolution_is_the_one_that_fuses() -> None:
    assert skips(residual_net(), left=("1.0.conv2",)) == ["stem.relu.out", "1.0.conv2.out"]


@pytest.mark.parametrize("left", ["0.0.add", "0.0.conv2"])
def test_an_addition_that_is_left_alone_or_has_no_convolution_to_fuse_with_has_no_skip(left: str) -> None:
    assert "stem.relu.out" not in skips(residual_net(), left=(left,))


def net(
    *nodes: onnx.NodeProto, x: tuple[int, ...] = (1, 2, 4, 4), outputs: tuple[str, ...] = ("y",)
) -> onnx.ModelProto:
    weights = [helper.make_tensor("w", onnx.TensorProto.FLOAT, [2, 2, 1, 1], [1.0] * 4)]
    weights.append(helper.make_tensor("b", onnx.TensorProto.FLOAT, [1, 2, 1, 1], [1.0] * 2))
    conv = helper.make_node("Conv", ["x", "w"], ["c"], name="conv")
    return make_model(
        [conv, *nodes],
        inputs=[value("x", x), value("z", (1, 2, 1, 1))],
        outputs=[value(name, None) for name in outputs],
        initializers=weights,
    )


@pytest.mark.parametrize(
    "model",
    [
        net(helper.make_node("Add", ["c", "b"], ["y"])),
        net(helper.make_node("Add", ["c", "z"], ["y"])),
        net(helper.make_node("Mul", ["c", "x"], ["y"])),
        net(helper.make_node("Sum", ["c", "x", "x"], ["y"])),
        net(helper.make_node("Relu", ["c"], ["r"]), helper.make_node("Add", ["r", "x"], ["y"])),
        net(helper.make_node("Add", ["c", "x"], ["y"]), helper.make_node("Relu", ["c"], ["v"]), outputs=("y", "v")),
        net(helper.make_node("Add", ["c", "x"], ["y"]), outputs=("y", "c")),
        net(helper.make_node("Add", ["c", "c"], ["y"])),
    ],
    ids=["bias", "broadcast", "product", "three terms", "activation between", "read twice", "output", "doubled"],
)
def test_what_cannot_fuse_has_no_skip(model: onnx.ModelProto) -> None:
    assert skips(model) == []


def test_a_sum_of_two_is_an_addition() -> None:
    assert skips(net(helper.make_node("Sum", ["x", "c"], ["y"]))) == ["x"]
