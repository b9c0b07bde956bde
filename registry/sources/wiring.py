"""What the nodes of a graph read: each tensor must be there before its node. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from modelreg.registry.errors import SourceError
from modelreg.registry.sources.signature import initializer_names

_SORT = "ONNX wants its nodes in an order in which they can run: export the model again, or sort them."
_CONNECT = "Export the model again, or name the tensor that is meant: onnx.checker.check_model refuses it too."


def check_wiring(model: onnx.ModelProto, *, name: str) -> None:
    """
    Check that what each node reads is an input, an initialiser, or made by a node before it.

    onnx.checker says so too, in words that name neither what is missing nor where.

    Raises:
        SourceError: Naming the first node that reads what is not there.
    """
    for node, tensor, maker in _unmade(model.graph, frozenset()):
        what = f"{name} is not a valid ONNX model: {say_node(node)} reads {tensor!r}, which"
        if maker is not None:
            raise SourceError(f"{what} only a later node makes: {say_node(maker)}", hint=_SORT)
        raise SourceError(f"{what} is no input, no initialiser and no output of another node", hint=_CONNECT)


def say_node(node: onnx.NodeProto) -> str:
    """Return a node in words: `node 'fc1' (MatMul)`; one without a name by what it makes."""
    if node.name:
        return f"node {node.name!r} ({node.op_type})"
    return f"the {node.op_type} that makes {', '.join(map(repr, filter(None, node.output)))}"


def _unmade(
    graph: onnx.GraphProto, outer: frozenset[str]
) -> Iterator[tuple[onnx.NodeProto, str, onnx.NodeProto | None]]:
    """Yield each node with a tensor that is not there when it runs, and the later node that makes it, if one does."""
    known = {*outer, *(value.name for value in graph.input), *initializer_names(graph)}
    makers = {output: node for node in graph.node for output in node.output}
    for node in graph.node:
        for tensor in filter(None, node.input):
            if tensor not in known:
                yield node, tensor, makers.get(tensor)
        for attribute in node.attribute:
            for inner in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                yield from _unmade(inner, frozenset(known))
        known.update(node.output)
