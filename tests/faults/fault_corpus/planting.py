"""Small surgeries on ONNX graphs; each works on the model that it is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

Array = NDArray[Any]


def node_of(model: onnx.ModelProto, name: str) -> onnx.NodeProto:
    """Return a node by its name."""
    found: onnx.NodeProto = next(node for node in model.graph.node if node.name == name)
    return found


def weight_of(model: onnx.ModelProto, name: str) -> Array:
    """Return a copy of an initialiser."""
    return np.array(numpy_helper.to_array(_tensor(model, name)))


def set_weight(model: onnx.ModelProto, name: str, array: Array) -> None:
    """Replace an initialiser."""
    before = _tensor(model, name)
    before.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array, weight_of(model, name).dtype), name))


def change_weight(model: onnx.ModelProto, name: str, change: Callable[[Array], Array]) -> None:
    """Replace an initialiser by what a function makes of it."""
    set_weight(model, name, change(weight_of(model, name)))


def add_weight(model: onnx.ModelProto, name: str, value: Any) -> str:
    """Add an initialiser; return its name."""
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return name


def matrix_of(model: onnx.ModelProto, node: str) -> str:
    """Return the name of the initialiser that a node multiplies with."""
    names = {tensor.name for tensor in model.graph.initializer}
    return str(next(name for name in node_of(model, node).input[:2] if name in names))


def set_attribute(model: onnx.ModelProto, node: str, **attributes: Any) -> None:
    """Set attributes of a node, replacing those of the same name."""
    changed = node_of(model, node)
    kept = [attribute for attribute in changed.attribute if attribute.name not in attributes]
    del changed.attribute[:]
    changed.attribute.extend([*kept, *(helper.make_attribute(name, value) for name, value in attributes.items())])


def insert_after(model: onnx.ModelProto, tensor: str, make: Callable[[str, str], Sequence[onnx.NodeProto]]) -> None:
    """
    Put nodes behind a tensor (an input, or what a node makes), for all that read it.

    Args:
        model: Changed.
        tensor: Its name; an output of the model keeps the name.
        make: Returns the nodes, given the name that they read and the one that they make.
    """
    graph = model.graph
    is_output = any(output.name == tensor for output in graph.output)
    before, after = (f"{tensor}_before", tensor) if is_output else (tensor, f"{tensor}_after")
    made = list(make(before, after))
    nodes: list[onnx.NodeProto] = []
    placed = False
    if any(each.name == tensor for each in graph.input):
        nodes, placed = list(made), True
    for each in graph.node:
        if is_output:
            for i, name in enumerate(each.output):
                if name == tensor:
                    each.output[i] = before
        for i, name in enumerate(each.input):
            if name == tensor and not is_output:
                each.input[i] = after
        nodes.append(each)
        if not placed and before in each.output:
            nodes += made
            placed = True
    del graph.node[:]
    graph.node.extend(nodes)


def bypass(model: onnx.ModelProto, name: str, *, input_index: int = 0) -> None:
    """Take a node out: what read its output reads its input."""
    gone = node_of(model, name)
    source, target = gone.input[input_index], gone.output[0]
    for node in model.graph.node:
        for i, each in enumerate(node.input):
            if each == target:
                node.input[i] = source
    model.graph.node.remove(gone)


def output_of(model: onnx.ModelProto, node: str) -> str:
    """Return what a node makes."""
    return str(node_of(model, node).output[0])


def make(op: str, inputs: Sequence[str], output: str, **attributes: Any) -> onnx.NodeProto:
    """Return a node that is called after what it makes."""
    return helper.make_node(op, list(inputs), [output], name=output, **attributes)


def scale_through(model: onnx.ModelProto, first: str, second: str, factors: Array) -> None:
    """
    Multiply the rows of one weight and its bias by factors, and divide what reads them: the network stays the same.

    Args:
        model: Changed; between the two lie only ReLU and pooling.
        first: The name that both `first.weight` and `first.bias` begin with.
        second: The same for the weight that reads its outputs, along axis 1.
        factors: Positive, one for each output of the first.
    """
    for part in ("weight", "bias"):
        change_weight(model, f"{first}.{part}", lambda a: a * factors.reshape(-1, *[1] * (a.ndim - 1)))
    each = weight_of(model, f"{second}.weight")
    repeated = np.repeat(factors, each.shape[1] // len(factors))
    set_weight(model, f"{second}.weight", each / repeated.reshape(1, -1, *[1] * (each.ndim - 2)))


def _tensor(model: onnx.ModelProto, name: str) -> onnx.TensorProto:
    found: onnx.TensorProto = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    return found
