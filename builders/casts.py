"""Casts that a converter put in, and those among them that only lose bits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import onnx
from onnx import TensorProto

from modelreg.builders.subgraphs import graphs_of


def remove_round_trips(graph: onnx.GraphProto, *, own: Collection[str]) -> None:
    """
    Let FP32 values pass from node to node where they went through FP16: it rounds them, and above 65504 loses them.

    Args:
        graph: Converted and sorted, names separate; changed, and those inside it too.
        own: Names of the nodes that were there before; casts among them stay.
    """
    casts = {
        node.output[0]: node
        for each in graphs_of(graph)
        for node in each.node
        if node.op_type == "Cast" and node.name not in own
    }
    outputs = {value.name for each in graphs_of(graph) for value in each.output}
    renamed = {}
    for name, back in casts.items():
        there = casts.get(back.input[0])
        if there is None or name in outputs:
            continue
        if (_type(there), _type(back)) == (TensorProto.FLOAT16, TensorProto.FLOAT):
            renamed[name] = there.input[0]
    for node in (node for each in graphs_of(graph) for node in each.node):
        for index, name in enumerate(node.input):
            node.input[index] = renamed.get(name, name)
    _drop_unread(graph, own=own, outputs=outputs)


def _drop_unread(graph: onnx.GraphProto, *, own: Collection[str], outputs: Collection[str]) -> None:
    """Remove casts that nothing reads any more, and those that only they read."""
    while True:
        nodes = [node for each in graphs_of(graph) for node in each.node]
        readers = Counter(name for node in nodes for name in node.input)
        unread = {
            node.output[0]
            for node in nodes
            if node.op_type == "Cast"
            and node.name not in own
            and not readers[node.output[0]]
            and node.output[0] not in outputs
        }
        if not unread:
            return
        for each in graphs_of(graph):
            kept = [node for node in each.node if not node.output or node.output[0] not in unread]
            values = [value for value in each.value_info if value.name not in unread]
            del each.node[:], each.value_info[:]
            each.node.extend(kept)
            each.value_info.extend(values)


def _type(cast: onnx.NodeProto) -> int:
    return next(int(attribute.i) for attribute in cast.attribute if attribute.name == "to")
