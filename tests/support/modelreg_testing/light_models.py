"""The `onnx` package's light models: real architectures, given random weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.backend
from numpy.typing import NDArray
from onnx import numpy_helper, version_converter

_FOLDER = Path(onnx.backend.__file__).parent / "test" / "data" / "light"
_OPSET = 17


def light_model(name: str) -> onnx.ModelProto:
    """
    Return a light model with weights of its own, at opset 17.

    As shipped, its weights are ConstantOfShape nodes, which leave nothing for a plan to hold: each becomes an
    initializer, drawn as He et al. do. It lists its initializers as inputs too, as models of 2017 had to.

    Args:
        name: Such as `squeezenet`.
    """
    model = onnx.load(_FOLDER / f"light_{name}.onnx")
    known = {tensor.name for tensor in model.graph.initializer}
    _draw_weights(model.graph, np.random.default_rng(0))
    inputs = [value for value in model.graph.input if value.name not in known]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    foreign = [entry for entry in model.opset_import if entry.domain]
    for entry in foreign:
        model.opset_import.remove(entry)
    model.ir_version = 8
    converted: onnx.ModelProto = version_converter.convert_version(model, _OPSET)
    onnx.checker.check_model(converted, full_check=True)
    return converted


def _draw_weights(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    filled = [node for node in graph.node if node.op_type == "ConstantOfShape"]
    assert filled
    for node in filled:
        weight = _draw(tuple(int(size) for size in shapes[node.input[0]]), node.output[0], graph, rng)
        graph.initializer.append(numpy_helper.from_array(weight, node.output[0]))
        graph.node.remove(node)
    used = {name for node in graph.node for name in node.input}
    for tensor in [each for each in graph.initializer if each.name not in used]:
        graph.initializer.remove(tensor)


def _draw(shape: tuple[int, ...], name: str, graph: onnx.GraphProto, rng: np.random.Generator) -> NDArray[np.float32]:
    """Return a weight matrix or kernel; of a vector, what leaves a batch norm's variances positive and biases small."""
    if len(shape) > 1:
        return rng.normal(0, np.sqrt(2 / np.prod(shape[1:])), shape).astype(np.float32)
    norms = [node for node in graph.node if node.op_type == "BatchNormalization" and name in node.input]
    is_scale = any(name in (node.input[1], node.input[4]) for node in norms)
    return rng.uniform(0.5, 1.5, shape).astype(np.float32) if is_scale else rng.normal(0, 0.1, shape).astype(np.float32)
