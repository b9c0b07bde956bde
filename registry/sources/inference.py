"""What ONNX's shape inference proves of a graph, apart from what the file merely declares."""

from __future__ import annotations

import re

import onnx
from onnx import shape_inference

from modelreg.registry.sources.lint import walk_graphs
from modelreg.registry.sources.signature import dtype_name, read_value
from modelreg.registry.sources.wiring import say_node

_PLACE = re.compile(r"\(op_type:\s*(?P<op>[^,)]+)(?:,\s*node name:\s*(?P<name>[^)]*))?\)")
_NO_PROOF = ("instead is null", "external", "existing")
"""What is said where a type is not known, where numbers lie elsewhere, and of a declaration that had to stay."""
_TAG = re.compile(r"\[(?:Shape|Type)InferenceError\]\s*|Inference error\(s\):\s*")


def infer(model: onnx.ModelProto) -> str:
    """
    Return the first thing that strict inference, with data propagation, finds wrong, or an empty string.

    Where there is an operator of a domain that ONNX does not know, it finds nothing.
    """
    try:
        shape_inference.infer_shapes(model.SerializeToString(), check_type=True, strict_mode=True, data_prop=True)
    except Exception as error:
        return next(iter(str(error).strip().splitlines()), type(error).__name__)
    return ""


def find_contradiction(model: onnx.ModelProto) -> str:
    """
    Return the node whose inputs cannot go together, in one line, or an empty string.

    What the file declares of values between nodes and of its outputs is left out: runtimes compute that, and a wrong
    declaration runs. What remains contradicts the operators themselves, so no backend runs it.
    """
    bare = _without_declarations(model)
    found = infer(bare)
    if not found or any(words in found for words in _NO_PROOF):
        return ""
    node = _find_node(bare.graph, found)
    fact = " ".join(_PLACE.sub("", _TAG.sub("", found)).strip(" :").split())
    if node is None:
        return " ".join(found.split())
    return f"{say_node(node)} cannot take {_say_inputs(bare, node)}: {fact}"


def _without_declarations(model: onnx.ModelProto) -> onnx.ModelProto:
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    for graph in walk_graphs(bare.graph):
        del graph.value_info[:]
        for value in graph.output:
            value.ClearField("type")
    for function in bare.functions:
        del function.value_info[:]
    return bare


def _find_node(graph: onnx.GraphProto, found: str) -> onnx.NodeProto | None:
    """Return the node that a complaint is about: by its name, or the one nameless node of its type."""
    place = _PLACE.search(found)
    if place is None:
        return None
    nodes = [node for each in walk_graphs(graph) for node in each.node if node.op_type == place["op"].strip()]
    name = (place["name"] or "").strip()
    named = [node for node in nodes if node.name == name]
    return named[0] if len(named) == 1 else None


def _say_inputs(bare: onnx.ModelProto, node: onnx.NodeProto) -> str:
    """Return a node's inputs with their types and shapes as far as they are known: `x float32[N, 4]`."""
    known = {tensor.name: (tensor.data_type, list(tensor.dims)) for tensor in bare.graph.initializer}
    try:
        seen = shape_inference.infer_shapes(bare, data_prop=True).graph
    except Exception:  # it fails in strict mode too, which is what is being told
        seen = bare.graph
    said = {value.name: read_value(value) for value in [*seen.input, *seen.value_info]}
    parts = []
    for name in filter(None, node.input):
        if name in said and said[name].shape is not None:
            spec = said[name]
            parts.append(f"{name} {spec.dtype}[{', '.join('?' if d is None else str(d) for d in spec.shape or ())}]")
        elif name in known:
            dtype, dims = known[name]
            parts.append(f"{name} {dtype_name(dtype)}[{', '.join(map(str, dims))}]")
        else:
            parts.append(name)
    return " with ".join(parts)
