"""ONNX models with one fault each: what `register` must refuse, or take with a warning."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

from modelreg_testing.onnx_models import OPSET, identity, make_model, mlp, value


def future_opset(version: int = 99) -> onnx.ModelProto:
    """An opset that no runtime knows yet."""
    model = identity()
    model.opset_import[0].version = version
    return model


def future_ir_version(version: int = 99) -> onnx.ModelProto:
    """A file format that no library knows yet."""
    model = identity()
    model.ir_version = version
    return model


def no_opset() -> onnx.ModelProto:
    """No opset import at all."""
    model = identity()
    del model.opset_import[:]
    return model


def duplicate_opset_domain() -> onnx.ModelProto:
    """The default domain imported twice, in both of its spellings."""
    model = identity()
    model.opset_import.append(helper.make_opsetid("ai.onnx", OPSET - 1))
    return model


def duplicate_node_names() -> onnx.ModelProto:
    """Two nodes called `same`; ONNX Runtime refuses such models, onnx.checker does not."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="same"),
        helper.make_node("Relu", ["a"], ["y"], name="same"),
    ]
    return make_model(nodes, inputs=[value("x", ["batch", 3])], outputs=[value("y", ["batch", 3])])


def duplicate_output() -> onnx.ModelProto:
    """The output `y` listed twice."""
    model = identity()
    model.graph.output.append(model.graph.output[0])
    return model


def duplicate_input() -> onnx.ModelProto:
    """The input `x` listed twice."""
    model = identity()
    model.graph.input.append(model.graph.input[0])
    return model


def duplicate_initializer() -> onnx.ModelProto:
    """The initialiser `fc1.bias` twice."""
    model = mlp()
    model.graph.initializer.append(model.graph.initializer[1])
    return model


def duplicate_value() -> onnx.ModelProto:
    """Two nodes that both produce `y`."""
    nodes = [
        helper.make_node("Relu", ["x"], ["y"], name="first"),
        helper.make_node("Neg", ["x"], ["y"], name="second"),
    ]
    return make_model(nodes, inputs=[value("x", ["batch", 3])], outputs=[value("y", ["batch", 3])])


def output_is_input() -> onnx.ModelProto:
    """No node; the output is the input."""
    x = value("x", ["batch", 3])
    return make_model([], inputs=[x], outputs=[x])


def negative_dimension(size: int = -1) -> onnx.ModelProto:
    """A literal negative dimension where a symbol was meant."""
    return identity((size, 3))


def short_payload() -> onnx.ModelProto:
    """An initialiser whose bytes are fewer than its shape says."""
    model = mlp()
    model.graph.initializer[0].raw_data = model.graph.initializer[0].raw_data[:-4]
    return model


def empty_payload() -> onnx.ModelProto:
    """An initialiser with a shape and no numbers, as a broken export leaves it."""
    model = mlp()
    model.graph.initializer[0].ClearField("raw_data")
    return model


def wrong_declared_shape() -> onnx.ModelProto:
    """An output declared with another shape than the graph computes."""
    model = mlp(batch=2)
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 11
    return model


def unknown_operator() -> onnx.ModelProto:
    """An operator that the default domain does not have."""
    node = helper.make_node("NoSuchOperator", ["x"], ["y"], name="odd")
    return make_model([node], inputs=[value("x", [2])], outputs=[value("y", [2])])


def dangling_input() -> onnx.ModelProto:
    """A node that reads a value nobody makes."""
    node = helper.make_node("Add", ["x", "ghost"], ["y"], name="add")
    return make_model([node], inputs=[value("x", [2])], outputs=[value("y", [2])])


def undefined_element_type() -> onnx.ModelProto:
    """An input without an element type."""
    return identity((2,), TensorProto.UNDEFINED)


def unknown_data_type() -> onnx.ModelProto:
    """An initialiser of a data type that does not exist."""
    model = mlp()
    model.graph.initializer[0].data_type = 77
    return model


def nested_graphs(depth: int) -> bytes:
    """Return the bytes of If in If in If: a depth bomb when `depth` is large, so protobuf cannot build it."""
    graph: bytes = helper.make_graph([], "leaf", [], [value("y", [1])]).SerializeToString()
    for _ in range(depth):
        attribute = _message(5, onnx.AttributeProto(name="then_branch").SerializeToString() + _message(6, graph))
        node = onnx.NodeProto(op_type="If", input=["flag"], output=["y"]).SerializeToString() + attribute
        graph = _message(1, node) + _message(2, b"level")
    start: bytes = onnx.ModelProto(ir_version=8).SerializeToString()
    return start + _message(7, graph) + _message(8, b"\x10\x11")


def _message(number: int, body: bytes) -> bytes:
    size, length = len(body), bytearray()
    while size >= 0x80:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + body
