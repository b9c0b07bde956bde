"""Which nodes stay in FP32 when a graph becomes FP16 or BF16. Pure; asked of the source, and of the variant again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import onnx

from modelreg.builders.subgraphs import graphs_of, inner_node_names, is_copy

_QUANTISERS = ("QuantizeLinear", "DequantizeLinear")
"""Like casts: what they give is as coarse as what they take."""


def kept_nodes(graph: onnx.GraphProto, variant: Mapping[str, Any]) -> set[str]:
    """
    Return the names of the nodes that stay in FP32: excluded ones, those of blocked types, and what follows these.

    A node of a type in `followed_ops` stays when all its values come from nodes that stay for their type: a variance
    is then not rounded on its way to its root, where FP16 would make it infinite. So does a square for such a node.
    Casts and copies do not count, so that the answer is the same before and after they are put in.

    Args:
        graph: With names for all nodes; those inside it are looked at too.
        variant: The variant part of a recipe.
    """
    settings = variant["settings"]
    types = {*settings["blocked_ops"], *variant["excluded_op_types"]}
    found = chosen_nodes(graph, names=variant["excluded_nodes"], op_types=types)
    blocked, followed = {*settings["blocked_ops"]} - {*_QUANTISERS}, {*settings.get("followed_ops", ())}
    for each in graphs_of(graph):
        found |= _followers(each, blocked, followed)
    return found


def chosen_nodes(graph: onnx.GraphProto, *, names: Iterable[str], op_types: Iterable[str]) -> set[str]:
    """Return the names of the nodes that are named or of a type, and of all nodes inside them."""
    wanted, types = {*names}, {*op_types}
    nodes = [node for each in graphs_of(graph) for node in each.node]
    return {name for node in nodes if node.name in wanted or node.op_type in types for name in _with_inner(node)}


def _with_inner(node: onnx.NodeProto) -> tuple[str, ...]:
    return (node.name, *inner_node_names(node))


def _followers(graph: onnx.GraphProto, blocked: Collection[str], followed: Collection[str]) -> set[str]:
    """Return the nodes of one graph that follow blocked ones, or make squares for them."""
    constants = {tensor.name for tensor in graph.initializer}
    sources: dict[str, str] = {}
    wide: set[str] = set()
    readers: dict[str, set[str]] = {}
    found: set[str] = set()
    for node in graph.node:
        inputs = [sources.get(name, name) for name in node.input if name]
        if node.op_type == "Cast" or is_copy(node):
            sources.update(dict.fromkeys(node.output, inputs[0]))
            continue
        values = [name for name in inputs if name not in constants]
        follows = node.op_type in followed and bool(values) and wide.issuperset(values)
        if follows:
            found.add(node.name)
        if follows or node.op_type in blocked:
            wide.update(node.output)
        for name in inputs:
            readers.setdefault(name, set()).add(node.op_type)
    if followed:
        found |= {
            node.name
            for node in graph.node
            if _is_square(node) and all(readers.get(name, {""}) <= {*blocked} for name in node.output)
        }
    return found


def _is_square(node: onnx.NodeProto) -> bool:
    return node.op_type == "Mul" and node.input[0] == node.input[1]
