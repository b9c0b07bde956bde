"""Bodies of If, Loop and Scan: what they take from the graph around them, and graphs kept whole across them.

The converters of ONNX Runtime see the main graph and little of what lies inside its nodes.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator

import onnx


def graphs_of(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield the graph and every graph inside it."""
    yield graph
    for node in graph.node:
        for inner in bodies_of(node):
            yield from graphs_of(inner)


def bodies_of(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return the graphs that a node runs."""
    bodies: list[onnx.GraphProto] = []
    for attribute in node.attribute:
        bodies += [attribute.g] if attribute.HasField("g") else []
        bodies += attribute.graphs
    return bodies


def captured_names(node: onnx.NodeProto) -> set[str]:
    """Return the tensors that the bodies of a node take from the graphs around it."""
    return {name for body in bodies_of(node) for name in _used_names(body) - made_names(body)}


def made_names(graph: onnx.GraphProto) -> set[str]:
    """Return the tensors that come to be in a graph itself: inputs, initialisers, outputs of nodes."""
    names = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    names |= {sparse.values.name for sparse in graph.sparse_initializer}
    return names | {name for node in graph.node for name in node.output if name}


def sort_nodes(graph: onnx.GraphProto) -> None:
    """
    Put every node behind what it uses, in this graph and those inside; else the order stays.

    What its bodies take from the graph around counts as used by a node.

    Raises:
        ValueError: The nodes form a cycle.
    """
    for node in graph.node:
        for body in bodies_of(node):
            sort_nodes(body)
    makers = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    readers: dict[int, list[int]] = {}
    missing: list[int] = []
    for index, node in enumerate(graph.node):
        needed = {makers[name] for name in {*node.input, *captured_names(node)} if name in makers}
        missing.append(len(needed))
        for maker in needed:
            readers.setdefault(maker, []).append(index)
    ready = [index for index, count in enumerate(missing) if count == 0]
    order: list[int] = []
    while ready:
        order.append(heapq.heappop(ready))
        for reader in readers.get(order[-1], ()):
            missing[reader] -= 1
            if missing[reader] == 0:
                heapq.heappush(ready, reader)
    if len(order) != len(missing):
        raise ValueError("the nodes of the graph form a cycle")
    if order != sorted(order):
        _reorder(graph, order)


def separate_names(graph: onnx.GraphProto) -> None:
    """Rename tensors inside bodies so that no name stands for two: converters know tensors by name alone."""
    taken = {name for each in graphs_of(graph) for name in made_names(each) | _used_names(each)}
    seen = made_names(graph)
    for body in list(graphs_of(graph))[1:]:
        names = made_names(body)
        renamed = {}
        for name in sorted(names & seen):
            renamed[name] = _free_name(name, taken)
        seen |= names | set(renamed.values())
        if renamed:
            _rename(body, renamed)


def settle_nodes(graph: onnx.GraphProto) -> None:
    """Move nodes of the main graph that use a tensor of a body into it; names must be separate."""
    homes = {name: body for body in list(graphs_of(graph))[1:] for name in made_names(body)}
    nodes, moved = list(graph.node), True
    while homes and moved:
        moved, kept = False, []
        for node in nodes:
            home = next((homes[name] for name in node.input if name in homes), None)
            if home is None:
                kept.append(node)
                continue
            home.node.append(node)
            homes.update(dict.fromkeys(node.output, home))
            moved = True
        nodes = kept
    if len(nodes) == len(graph.node):
        return
    _replace_nodes(graph, nodes)
    own = made_names(graph)
    declared = [value for value in graph.value_info if value.name in own]
    del graph.value_info[:]
    graph.value_info.extend(declared)


def copy_captures(graph: onnx.GraphProto, half: set[str]) -> None:
    """
    Give bodies a copy of each FP16 tensor that they take from around them, made by a Max of that one value.

    ONNX Runtime computes FP16 on the CPU in FP32 and names what it inserts by the tensor alone: where a tensor is used
    inside and outside of a body, the plan that it saves names two tensors alike and cannot be loaded. The Max is never
    optimised away.

    Args:
        graph: With separate names, sorted.
        half: Names of the FP16 tensors; grows by the copies.
    """
    readers = Counter(name for each in graphs_of(graph) for name in {n for node in each.node for n in node.input})
    lonely = {tensor.name for each in graphs_of(graph) for tensor in each.initializer if readers[tensor.name] < 2}
    taken = {name for each in graphs_of(graph) for name in made_names(each)}
    _copy_captures(graph, half, lonely, taken)


def _copy_captures(graph: onnx.GraphProto, half: set[str], lonely: set[str], taken: set[str]) -> None:
    casts = {node.output[0]: node for node in graph.node if node.op_type == "Cast" and node.input[0] in half}
    for body in [body for node in graph.node for body in bodies_of(node)]:
        renamed: dict[str, str] = {}
        copied: dict[str, onnx.NodeProto] = {}
        recast = []
        for name in sorted(_used_names(body) - made_names(body)):
            original = casts[name].input[0] if name in casts else name
            if original not in half or original in lonely:
                continue
            if original not in copied:
                copy = _free_name(original, taken)
                copied[original] = onnx.helper.make_node("Max", [original], [copy], name=f"{copy}_copy")
                half.add(copy)
            renamed[name] = copied[original].output[0]
            if name in casts:
                renamed[name] = _free_name(name, taken)
                cast = onnx.NodeProto()
                cast.CopyFrom(casts[name])
                cast.input[0], cast.output[0] = copied[original].output[0], renamed[name]
                cast.name = f"{renamed[name]}_node"
                recast.append(cast)
        if renamed:
            _rename(body, renamed)
            _replace_nodes(body, [*copied.values(), *recast, *body.node])
        _copy_captures(body, half, lonely, taken)


def is_copy(node: onnx.NodeProto) -> bool:
    """Return whether a node only copies, as those of `copy_captures` do."""
    return node.op_type == "Max" and len(node.input) == 1


def inner_node_names(node: onnx.NodeProto) -> set[str]:
    """Return the names of the nodes in the bodies of a node, at any depth."""
    return {each.name for body in bodies_of(node) for graph in graphs_of(body) for each in graph.node}


def _used_names(graph: onnx.GraphProto) -> set[str]:
    names = {value.name for value in graph.output}
    for node in graph.node:
        names.update(name for name in node.input if name)
        names |= captured_names(node)
    return names


def _free_name(name: str, taken: set[str]) -> str:
    number = 1
    while f"{name}_{number}" in taken:
        number += 1
    taken.add(f"{name}_{number}")
    return f"{name}_{number}"


def _rename(body: onnx.GraphProto, renamed: dict[str, str]) -> None:
    """Rename tensors of a body in it, and where the bodies inside it take them."""
    for value in (*body.input, *body.output, *body.value_info):
        value.name = renamed.get(value.name, value.name)
    for tensor in (*body.initializer, *(sparse.values for sparse in body.sparse_initializer)):
        tensor.name = renamed.get(tensor.name, tensor.name)
    for node in body.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                names[index] = renamed.get(name, name)
        for inner in bodies_of(node):
            own = made_names(inner)
            _rename(inner, {old: new for old, new in renamed.items() if old not in own})


def _reorder(graph: onnx.GraphProto, order: list[int]) -> None:
    nodes = list(graph.node)
    _replace_nodes(graph, [nodes[index] for index in order])


def _replace_nodes(graph: onnx.GraphProto, nodes: list[onnx.NodeProto]) -> None:
    del graph.node[:]
    graph.node.extend(nodes)
