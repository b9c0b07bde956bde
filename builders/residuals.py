"""Residual additions, and which of their inputs to quantise. Pure.

TensorRT makes one INT8 kernel of a convolution, the addition behind it and its activation if the convolution's output
goes into the addition as it is, and what skips the convolution comes quantised.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import onnx

ADDITIONS = ("Add", "Sum")
_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")

Shape = tuple[int | str, ...]


def skip_tensors(graph: onnx.GraphProto, *, convolutions: Collection[str], left: Collection[str]) -> list[str]:
    """
    Return the tensors that are added to the output of a convolution.

    Where two convolutions meet, the one behind more weighted nodes is the main path, and the other skips it.

    Args:
        graph: With sorted nodes, the shapes inferred.
        convolutions: Names of the convolutions that become INT8.
        left: Names of nodes that are left alone.
    """
    makers = {name: node for node in graph.node for name in node.output}
    readers = Counter(name for node in graph.node for name in node.input) + Counter(each.name for each in graph.output)
    depths = _depths(graph)
    constants = {tensor.name for tensor in graph.initializer}
    shapes = _shapes(graph)
    found: dict[str, None] = {}
    for node in graph.node:
        if node.op_type not in ADDITIONS or node.name in left or len(node.input) != 2:
            continue
        if constants & set(node.input) or shapes.get(node.input[0]) != shapes.get(node.input[1]):
            continue  # a bias or a broadcast is no skip
        fusible = [
            name for name in node.input if name in makers and makers[name].name in convolutions and readers[name] == 1
        ]
        if fusible:
            main = max(fusible, key=lambda name: depths[name])
            found.update({name: None for name in node.input if name != main})
    return list(found)


def _depths(graph: onnx.GraphProto) -> dict[str, int]:
    """Return how many weighted nodes lie before each tensor on the longest way to it."""
    depths: dict[str, int] = {}
    for node in graph.node:
        before = max((depths.get(name, 0) for name in node.input), default=0)
        depths.update(dict.fromkeys(node.output, before + (node.op_type in _WEIGHTED)))
    return depths


def _shapes(graph: onnx.GraphProto) -> dict[str, Shape]:
    values = (*graph.input, *graph.value_info, *graph.output)
    return {
        value.name: tuple(dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in values
        if value.type.tensor_type.HasField("shape")
    }
