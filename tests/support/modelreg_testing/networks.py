"""Networks of the usual kinds, with random weights that keep activations in range."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from modelreg_testing.onnx_models import make_model, value, weight

Array = NDArray[Any]


class _Builder:
    """Collects nodes and weights; every method returns the name of what it makes."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def node(self, op: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, list(inputs), [f"{name}.out"], name=name, **attributes))
        return f"{name}.out"

    def weight(self, name: str, array: Array) -> str:
        self.weights.append(weight(name, array.astype(np.float32) if array.dtype.kind == "f" else array))
        return name

    def random(self, name: str, shape: Sequence[int], fan: float) -> str:
        return self.weight(name, self.rng.normal(size=shape) / fan**0.5)

    def conv(
        self, x: str, name: str, channels: tuple[int, int], *, kernel: int, stride: int = 1, gain: float = 2.0
    ) -> str:
        shape = (channels[1], channels[0], kernel, kernel)
        inputs = [x, self.random(f"{name}.weight", shape, channels[0] * kernel**2 / gain)]
        inputs.append(self.random(f"{name}.bias", (channels[1],), 100.0))
        pads = [kernel // 2] * 4
        return self.node("Conv", inputs, name, kernel_shape=[kernel] * 2, pads=pads, strides=[stride] * 2)

    def dense(self, x: str, name: str, features: tuple[int, int]) -> str:
        product = self.node("MatMul", [x, self.random(f"{name}.weight", features, features[0])], f"{name}.matmul")
        return self.node("Add", [product, self.random(f"{name}.bias", (features[1],), 100.0)], name)


def residual_net(
    *, blocks: Sequence[int] = (1, 1), width: int = 8, size: int = 16, classes: int = 10, seed: int = 0
) -> onnx.ModelProto:
    """
    Return a ResNet of basic blocks; input `image` (batch, 3, size, size), output `logits`.

    Stages after the first halve the image and double the channels: their first block has a convolution on its skip.
    `blocks=(2, 2, 2, 2), width=64, classes=1000` is ResNet-18 with its batch norms folded. Block B of stage S has nodes
    `S.B.conv1`, `S.B.conv2`, `S.B.down` and `S.B.add`.
    """
    net = _Builder(seed)
    x = net.node("Relu", [net.conv("image", "stem", (3, width), kernel=7 if size > 32 else 3, stride=2)], "stem.relu")
    channels = width
    for stage, count in enumerate(blocks):
        for block in range(count):
            name, out = f"{stage}.{block}", width * 2**stage
            stride = 2 if stage and not block else 1
            y = net.node(
                "Relu", [net.conv(x, f"{name}.conv1", (channels, out), kernel=3, stride=stride)], f"{name}.relu1"
            )
            y = net.conv(y, f"{name}.conv2", (out, out), kernel=3, gain=0.2)
            skip = net.conv(x, f"{name}.down", (channels, out), kernel=1, stride=stride, gain=1.0) if stride > 1 else x
            x = net.node("Relu", [net.node("Add", [y, skip], f"{name}.add")], f"{name}.relu2")
            channels = out
    x = net.node("Flatten", [net.node("GlobalAveragePool", [x], "pool")], "flatten")
    inputs = [x, net.random("fc.weight", (classes, channels), channels), net.random("fc.bias", (classes,), 100.0)]
    net.nodes.append(helper.make_node("Gemm", inputs, ["logits"], name="fc", transB=1))
    return make_model(
        net.nodes,
        inputs=[value("image", ["batch", 3, size, size])],
        outputs=[value("logits", ["batch", classes])],
        initializers=net.weights,
    )


def encoder(*, layers: int = 2, width: int = 32, heads: int = 4, words: int = 50, seed: int = 0) -> onnx.ModelProto:
    """
    Return a transformer encoder; inputs `ids` (batch, 12) and `mask` (batch, 12), output `logits` (batch, 12, 5).

    Masked positions are pushed to FP32's lowest number, as exporters write it.
    """
    net = _Builder(seed)
    length, each = 12, width // heads
    net.weight("lowest", np.array(np.finfo(np.float32).min))
    net.weight("one", np.array(1.0))
    net.weight("axes", np.array([1, 2], np.int64))
    net.weight("split", np.array([0, length, heads, each], np.int64))
    net.weight("join", np.array([0, length, width], np.int64))
    net.weight("root", np.array(each**-0.5))
    hidden = net.node("Sub", ["one", "mask"], "hidden")
    hidden = net.node("Unsqueeze", [net.node("Mul", [hidden, "lowest"], "pushed"), "axes"], "masked")
    x = net.node("Gather", [net.random("words", (words, width), 1.0), "ids"], "embed")
    for layer in range(layers):
        x = net.node(
            "Add", [x, _attention(net, _norm(net, x, f"{layer}.norm1", width), hidden, layer, width)], f"{layer}.add1"
        )
        y = net.dense(_norm(net, x, f"{layer}.norm2", width), f"{layer}.up", (width, 4 * width))
        y = net.dense(net.node("Relu", [y], f"{layer}.relu"), f"{layer}.down", (4 * width, width))
        x = net.node("Add", [x, y], f"{layer}.add2")
    net.dense(_norm(net, x, "norm", width), "head", (width, 5))
    net.nodes[-1].output[0] = "logits"
    ids, mask = value("ids", ["batch", length], onnx.TensorProto.INT64), value("mask", ["batch", length])
    return make_model(
        net.nodes, inputs=[ids, mask], outputs=[value("logits", ["batch", length, 5])], initializers=net.weights
    )


def _norm(net: _Builder, x: str, name: str, width: int) -> str:
    scale, bias = net.weight(f"{name}.scale", np.ones(width)), net.weight(f"{name}.bias", np.zeros(width))
    return net.node("LayerNormalization", [x, scale, bias], name, axis=-1)


def _attention(net: _Builder, x: str, hidden: str, layer: int, width: int) -> str:
    parts = {}
    for part, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        name = f"{layer}.{part}"
        heads = net.node("Reshape", [net.dense(x, name, (width, width)), "split"], f"{name}.split")
        parts[part] = net.node("Transpose", [heads], f"{name}.turn", perm=order)
    scores = net.node("MatMul", [parts["q"], parts["k"]], f"{layer}.scores")
    scores = net.node("Add", [net.node("Mul", [scores, "root"], f"{layer}.scaled"), hidden], f"{layer}.shown")
    mixed = net.node("MatMul", [net.node("Softmax", [scores], f"{layer}.softmax"), parts["v"]], f"{layer}.mix")
    joined = net.node("Transpose", [mixed], f"{layer}.turn", perm=[0, 2, 1, 3])
    return net.dense(net.node("Reshape", [joined, "join"], f"{layer}.join"), f"{layer}.out", (width, width))


def light_model(name: str, *, seed: int = 0) -> onnx.ModelProto:
    """
    Return a model of the `onnx` package's `light` collection, with weights in place of its ConstantOfShape nodes.

    It gives what its Softmax takes: a softmax of random numbers hides every difference.
    """
    path = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / f"light_{name}.onnx"
    model = onnx.load(path)
    graph, rng = model.graph, np.random.default_rng(seed)
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    readers = {name: node for node in graph.node for name in node.input}
    nodes = []
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            shape, reader = constants[node.input[0]], readers[node.output[0]]
            graph.initializer.append(weight(node.output[0], _light_weight(rng, shape, reader, node.output[0])))
        else:
            nodes.append(node)
    last = nodes.pop()
    assert last.op_type == "Softmax"
    del graph.node[:]
    graph.node.extend(nodes)
    graph.output[0].CopyFrom(value(last.input[0], None))
    used = {name for node in nodes for name in node.input}
    for field in (graph.initializer, graph.input):
        kept = [each for each in field if each.name in used]
        del field[:]
        field.extend(kept)
    inputs = [each for each in graph.input if each.name not in {tensor.name for tensor in graph.initializer}]
    del graph.input[:]
    graph.input.extend(inputs)
    model.ir_version = 8
    raised = onnx.version_converter.convert_version(model, 17)
    return onnx.shape_inference.infer_shapes(raised, data_prop=True)


def _light_weight(rng: np.random.Generator, shape: Array, reader: onnx.NodeProto, name: str) -> Array:
    if reader.op_type in ("Conv", "Gemm") and len(shape) > 1:
        drawn = rng.normal(size=shape) * np.sqrt(2 / np.prod(shape[1:]))
    elif reader.op_type == "BatchNormalization" and list(reader.input).index(name) in (1, 4):
        drawn = np.full(shape, 1.0)
    else:
        drawn = rng.normal(size=shape) * 0.1
    single: Array = drawn.astype(np.float32)
    return single


def norm_by_parts(*, width: int = 8, square: str = "Pow", scale: float = 1000.0) -> onnx.ModelProto:
    """
    Return a layer normalisation in single nodes behind a product that gives numbers about `scale`.

    Input `x` and output `y` are (batch, width).

    Args:
        square: `Pow`, or `Mul` of a value by itself.
        scale: From 256 on, the squares leave the range of FP16.
    """
    net = _Builder(0)
    net.weight("two", np.array(2.0))
    net.weight("epsilon", np.array(1e-5))
    x = net.node("MatMul", ["x", net.random("big", (width, width), width / scale**2)], "grow")
    centred = net.node("Sub", [x, net.node("ReduceMean", [x], "mean", axes=[-1])], "centre")
    squared = net.node(square, [centred, "two" if square == "Pow" else centred], "square")
    variance = net.node("ReduceMean", [squared], "variance", axes=[-1])
    root = net.node("Sqrt", [net.node("Add", [variance, "epsilon"], "stable")], "root")
    normal = net.node("Div", [centred, root], "divide")
    net.nodes.append(
        helper.make_node("MatMul", [normal, net.random("out", (width, width), width)], ["y"], name="project")
    )
    shape: list[int | str | None] = ["batch", width]
    return make_model(net.nodes, inputs=[value("x", shape)], outputs=[value("y", shape)], initializers=net.weights)
