"""Tiny valid ONNX models, each built by one small function; `onnx_faults` has the broken ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Dim = int | str | None
OPSET = 17
IR_VERSION = 8


def make_model(
    nodes: Sequence[onnx.NodeProto],
    *,
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto] = (),
    opsets: Sequence[tuple[str, int]] = (("", OPSET),),
    ir_version: int = IR_VERSION,
    name: str = "graph",
) -> onnx.ModelProto:
    """Assemble a model that old runtimes still load."""
    graph = helper.make_graph(list(nodes), name, list(inputs), list(outputs), list(initializers))
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets]
    return helper.make_model(
        graph,
        opset_imports=imports,
        ir_version=ir_version,
        producer_name="modelreg-tests",
        producer_version="1",
    )


def value(name: str, shape: Sequence[Dim] | None, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    """Declare a tensor value."""
    return helper.make_tensor_value_info(name, dtype, shape)


def weight(name: str, array: NDArray[np.generic]) -> onnx.TensorProto:
    """Make an initialiser that keeps its numbers in `raw_data`."""
    return numpy_helper.from_array(np.ascontiguousarray(array), name)


def save(model: onnx.ModelProto, path: Path) -> Path:
    """Write the model as one file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path


def save_with_external_data(
    model: onnx.ModelProto, path: Path, *, location: str = "weights.bin", threshold_bytes: int = 0
) -> Path:
    """Write the model, with the numbers of its initialisers in a file at `location` beside it."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    data = bytearray()
    for tensor in copy.graph.initializer:
        payload = tensor.raw_data
        if tensor.HasField("raw_data") and len(payload) > threshold_bytes:
            refer_to_external_data(tensor, location=location, offset=len(data), length=len(payload))
            data += payload
    target = path.parent / location
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(bytes(data))
    return save(copy, path)


def refer_to_external_data(tensor: onnx.TensorProto, **entries: object) -> None:
    """Drop the tensor's own numbers and point it at external data by `entries` (location, offset, length)."""
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, entry in entries.items():
        tensor.external_data.add(key=key, value=str(entry))


def mlp(
    *, batch: Dim = "batch", features: int = 16, hidden: int = 32, classes: int = 10, seed: int = 0
) -> onnx.ModelProto:
    """Two dense layers `fc1`, `fc2`; input `x` (batch, features), output `logits` (batch, classes)."""
    rng = np.random.default_rng(seed)
    weights = [
        weight("fc1.weight", rng.normal(size=(hidden, features)).astype(np.float32)),
        weight("fc1.bias", rng.normal(size=hidden).astype(np.float32)),
        weight("fc2.weight", rng.normal(size=(classes, hidden)).astype(np.float32)),
        weight("fc2.bias", rng.normal(size=classes).astype(np.float32)),
    ]
    nodes = [
        helper.make_node("Gemm", ["x", "fc1.weight", "fc1.bias"], ["fc1.out"], name="fc1", transB=1),
        helper.make_node("Relu", ["fc1.out"], ["relu1.out"], name="relu1"),
        helper.make_node("Gemm", ["relu1.out", "fc2.weight", "fc2.bias"], ["logits"], name="fc2", transB=1),
    ]
    return make_model(
        nodes,
        inputs=[value("x", [batch, features])],
        outputs=[value("logits", [batch, classes])],
        initializers=weights,
    )


def conv_net(*, batch: Dim = "batch", size: int = 12, classes: int = 10, seed: int = 0) -> onnx.ModelProto:
    """`conv1`, `conv2`, pooling and `fc`; input `image` (batch, 1, size, size), output `logits`."""
    rng = np.random.default_rng(seed)
    flat = 8 * (size // 2) ** 2
    weights = [
        weight("conv1.weight", (rng.normal(size=(4, 1, 3, 3)) / 3).astype(np.float32)),
        weight("conv1.bias", rng.normal(size=4).astype(np.float32)),
        weight("conv2.weight", (rng.normal(size=(8, 4, 3, 3)) / 6).astype(np.float32)),
        weight("conv2.bias", rng.normal(size=8).astype(np.float32)),
        weight("fc.weight", (rng.normal(size=(classes, flat)) / flat**0.5).astype(np.float32)),
        weight("fc.bias", rng.normal(size=classes).astype(np.float32)),
    ]
    pads: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["image", "conv1.weight", "conv1.bias"], ["c1"], name="conv1", **pads),
        helper.make_node("Relu", ["c1"], ["r1"], name="relu1"),
        helper.make_node("MaxPool", ["r1"], ["p1"], name="pool1", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p1", "conv2.weight", "conv2.bias"], ["c2"], name="conv2", **pads),
        helper.make_node("Relu", ["c2"], ["r2"], name="relu2"),
        helper.make_node("Flatten", ["r2"], ["flat"], name="flatten", axis=1),
        helper.make_node("Gemm", ["flat", "fc.weight", "fc.bias"], ["logits"], name="fc", transB=1),
    ]
    return make_model(
        nodes,
        inputs=[value("image", [batch, 1, size, size])],
        outputs=[value("logits", [batch, classes])],
        initializers=weights,
    )


def conv_images(count: int = 110) -> NDArray[np.float32]:
    """Return random images for `conv_net`."""
    return np.random.default_rng(0).normal(size=(count, 1, 12, 12)).astype(np.float32)


def identity(
    shape: Sequence[Dim] | None = ("batch", 3),
    dtype: int = TensorProto.FLOAT,
    *,
    input_name: str = "x",
    output_name: str = "y",
) -> onnx.ModelProto:
    """One Identity of any shape and dtype: scalar `()`, zero-size `(0, 3)`, unknown rank None, strings."""
    node = helper.make_node("Identity", [input_name], [output_name], name="identity")
    return make_model([node], inputs=[value(input_name, shape, dtype)], outputs=[value(output_name, shape, dtype)])


def scalar_output() -> onnx.ModelProto:
    """Sum of everything: input `x` (batch, 3), output `total` of rank 0."""
    node = helper.make_node("ReduceSum", ["x"], ["total"], name="sum", keepdims=0)
    return make_model([node], inputs=[value("x", ["batch", 3])], outputs=[value("total", [])])


def initializers_as_inputs(*, ir_version: int = 3) -> onnx.ModelProto:
    """The MLP with its weights listed as graph inputs too, as IR 3 demands."""
    model = mlp()
    for tensor in model.graph.initializer:
        model.graph.input.append(value(tensor.name, list(tensor.dims), tensor.data_type))
    model.ir_version = ir_version
    return model


def sequence_output() -> onnx.ModelProto:
    """SequenceConstruct: output `ys` is a sequence of float tensors."""
    node = helper.make_node("SequenceConstruct", ["x", "x"], ["ys"], name="pair")
    ys = helper.make_tensor_sequence_value_info("ys", TensorProto.FLOAT, ["batch", 3])
    return make_model([node], inputs=[value("x", ["batch", 3])], outputs=[ys])


def optional_input() -> onnx.ModelProto:
    """OptionalHasElement of an optional tensor `x`."""
    tensor_type = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    x = helper.make_value_info("x", helper.make_optional_type_proto(tensor_type))
    node = helper.make_node("OptionalHasElement", ["x"], ["there"], name="there")
    return make_model([node], inputs=[x], outputs=[value("there", [], TensorProto.BOOL)], opsets=[("", 18)])


def map_input() -> onnx.ModelProto:
    """DictVectorizer of ai.onnx.ml: input `x` maps strings to floats."""
    mapping = onnx.TypeProto()
    mapping.map_type.key_type = TensorProto.STRING
    mapping.map_type.value_type.tensor_type.elem_type = TensorProto.FLOAT
    node = helper.make_node(
        "DictVectorizer", ["x"], ["y"], name="dict", domain="ai.onnx.ml", string_vocabulary=["a", "b"]
    )
    return make_model(
        [node],
        inputs=[helper.make_value_info("x", mapping)],
        outputs=[value("y", [1, 2])],
        opsets=[("", OPSET), ("ai.onnx.ml", 3)],
    )


def sparse_initializer() -> onnx.ModelProto:
    """Adds a sparse weight (values and linear indices) to `x` (4, 8)."""
    values = weight("w", np.ones(3, dtype=np.float32))
    indices = weight("", np.array([1, 5, 30], dtype=np.int64))
    node = helper.make_node("Add", ["x", "w"], ["y"], name="add")
    model = make_model([node], inputs=[value("x", [4, 8])], outputs=[value("y", [4, 8])])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4, 8]))
    return model


def constant_only(size: int = 8) -> onnx.ModelProto:
    """One Constant node and no input; output `y` (size,)."""
    tensor = weight("", np.arange(size, dtype=np.float32))
    node = helper.make_node("Constant", [], ["y"], name="constant", value=tensor)
    return make_model([node], inputs=[], outputs=[value("y", [size])])


def branches(size: int = 8) -> onnx.ModelProto:
    """If with a Constant in one branch and an initialiser in the other; input `flag`, output `y` (size,)."""
    constant = weight("", np.zeros(size, dtype=np.float32))
    then_node = helper.make_node("Constant", [], ["then_y"], name="zeros", value=constant)
    else_node = helper.make_node("Identity", ["ones"], ["else_y"], name="pass")
    ones = weight("ones", np.ones(size, dtype=np.float32))
    node = helper.make_node(
        "If",
        ["flag"],
        ["y"],
        name="branch",
        then_branch=helper.make_graph([then_node], "then", [], [value("then_y", [size])]),
        else_branch=helper.make_graph([else_node], "else", [], [value("else_y", [size])], [ones]),
    )
    flag = value("flag", [], TensorProto.BOOL)
    return make_model([node], inputs=[flag], outputs=[value("y", [size])])


def local_function(size: int = 8) -> onnx.ModelProto:
    """A model-local function `local.Shift` that holds a Constant; input `x` (size,), output `y`."""
    constant = helper.make_node("Constant", [], ["c"], name="shift", value=weight("", np.ones(size, dtype=np.float32)))
    add = helper.make_node("Add", ["a", "c"], ["b"], name="add")
    opsets = [helper.make_opsetid("", OPSET)]
    function = helper.make_function("local", "Shift", ["a"], ["b"], [constant, add], opsets)
    node = helper.make_node("Shift", ["x"], ["y"], name="call", domain="local")
    model = make_model(
        [node],
        inputs=[value("x", [size])],
        outputs=[value("y", [size])],
        opsets=[("", OPSET), ("local", 1)],
    )
    model.functions.append(function)
    return model


def custom_operator() -> onnx.ModelProto:
    """A node of the unknown domain `com.example`."""
    node = helper.make_node("Warp", ["x"], ["y"], name="warp", domain="com.example")
    return make_model(
        [node],
        inputs=[value("x", ["batch", 3])],
        outputs=[value("y", ["batch", 3])],
        opsets=[("", OPSET), ("com.example", 1)],
    )


def wide_int64_weight(number: int = 2**40) -> onnx.ModelProto:
    """Adds an int64 initialiser that does not fit in int32 to `x` (2,)."""
    node = helper.make_node("Add", ["x", "w"], ["y"], name="add")
    return make_model(
        [node],
        inputs=[value("x", [2], TensorProto.INT64)],
        outputs=[value("y", [2], TensorProto.INT64)],
        initializers=[weight("w", np.array([1, number], dtype=np.int64))],
    )
