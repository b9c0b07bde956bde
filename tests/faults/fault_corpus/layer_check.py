"""Whether a comparison layer by layer names the layer that a fault was planted in. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx

from modelreg.registry.words import Json


@dataclass(frozen=True, kw_only=True)
class NamedLayer:
    """
    What a comparison named, and whether that is right.

    Attributes:
        name: The first bad layer; empty where none is bad.
        is_right: Whether the planted node is in its part of the graph.
        reason: Why it is not.
    """

    name: str
    is_right: bool
    reason: str = ""


def check_layer(healthy: onnx.ModelProto, planted: str, layers: Json) -> NamedLayer:
    """
    Return whether the planted node belongs to the layer that is named.

    A layer is one row of the comparison: a module's output, or one of the model's. Its part of the graph are the nodes
    between the rows that it reads and itself: what a forward of the network's own does (a ReLU, an addition) belongs to
    the next row, since nothing before can show it.

    Args:
        healthy: The network without the fault.
        planted: The node that the fault was planted in.
        layers: What `validate --layers --json` says.
    """
    if "error" in layers:
        return NamedLayer(name="", is_right=False, reason=f"the layers could not be compared: {layers['error']}")
    named = str(layers["first_bad"])
    owner = _owner(healthy, planted, layers["rows"])
    if not named:
        return NamedLayer(name="", is_right=False, reason=f"no layer is bad; the fault is in {_say(owner)}")
    is_right = named in owner
    return NamedLayer(name=named, is_right=is_right, reason="" if is_right else f"the fault is in {_say(owner)}")


def _say(owner: Sequence[str]) -> str:
    return " or ".join(f"`{name}`" for name in owner) or "no row of the comparison"


def _owner(healthy: onnx.ModelProto, planted: str, rows: Sequence[Json]) -> tuple[str, ...]:
    """Return the rows in whose part a node is: several where the model's output is a module's."""
    makers = {name: node for node in healthy.graph.node for name in node.output}
    by_name = {node.name: node for node in healthy.graph.node}
    starts = {str(row["name"]): _start(row, by_name, makers) for row in rows}
    ends = {node.name for node in starts.values() if node is not None}
    return tuple(name for name, node in starts.items() if node is not None and planted in _part(node, makers, ends))


def _start(
    row: Json, by_name: Mapping[str, onnx.NodeProto], makers: Mapping[str, onnx.NodeProto]
) -> onnx.NodeProto | None:
    """Return the healthy network's node that makes a row: what was planted may have taken its tensor's name."""
    behind = makers.get(row["tensor"])
    return behind if row["through_relu"] else by_name.get(row["node"], behind)


def _part(start: onnx.NodeProto, makers: Mapping[str, onnx.NodeProto], ends: set[str]) -> set[str]:
    found: set[str] = set()
    frontier = [start]
    while frontier:
        node = frontier.pop()
        found.add(node.name)
        before = [makers[name] for name in node.input if name in makers]
        frontier += [each for each in before if each.name not in ends and each.name not in found]
    return found
