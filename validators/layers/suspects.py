"""Which nodes are tried first when an engine is repaired. Pure.

A node is suspected by its own error. Keeping it in a high precision is often not enough: a value that its neighbour
quantises, or rounds to FP16, is lost before it comes or after it went; so the neighbours follow each suspect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from modelreg.registry.words import Json, Precision

WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_NEAR = 4
"""So many nodes away is a neighbour still looked for."""


def rank_nodes(
    ranking: Sequence[str], tensors: Sequence[Json], *, precision: Precision, can_exclude: Callable[[Json], bool]
) -> tuple[str, ...]:
    """
    Return the nodes that can be kept in a high precision, the likeliest first; every one is there.

    Args:
        ranking: Nodes by their own error, the worst first.
        tensors: What the source's nodes make: `name`, `node`, `op`, `inputs`; with the normalised nodes' names.
        precision: FP16 overflows behind a node, INT8 loses what comes to it.
        can_exclude: Whether a node becomes the precision at all.
    """
    graph = _Graph(tensors)
    behind_first = precision in (Precision.FP16, Precision.BF16, Precision.BEST)
    found: dict[str, None] = {}
    for name in ranking:
        for node in graph.group(name, behind_first=behind_first):
            if can_exclude(node):
                found.setdefault(str(node["node"]))
    for node in tensors:
        if can_exclude(node):
            found.setdefault(str(node["node"]))
    return tuple(found)


class _Graph:
    """The nodes with what comes before and behind them."""

    def __init__(self, tensors: Sequence[Json]) -> None:
        self._by_node = {each["node"]: each for each in reversed(tensors)}
        makers = {each["name"]: each["node"] for each in tensors}
        self._before = {each["node"]: [makers[name] for name in each["inputs"] if name in makers] for each in tensors}
        self._behind: dict[str, list[str]] = {}
        for node, names in self._before.items():
            for name in names:
                self._behind.setdefault(name, []).append(node)

    def group(self, name: str, *, behind_first: bool) -> list[Json]:
        """Return a node, then what is drawn into it, then its neighbours; those with weights first."""
        if name not in self._by_node:
            return []
        drawn = self._drawn_into(name)
        before = [node for each in (name, *drawn) for node in self._walk(each, self._before) if node not in drawn]
        behind = list(self._walk(name, self._behind, far=1))
        near = [*behind, *before] if behind_first else [*before, *behind]
        first = [*drawn, name] if self._is_activation(name) and not behind_first else [name, *drawn]
        nodes = list(dict.fromkeys([*first, *near]))
        if behind_first:
            return [self._by_node[node] for node in nodes]
        heavy = [node for node in nodes if self._by_node[node]["op"] in WEIGHTED]
        return [self._by_node[node] for node in dict.fromkeys([*heavy, *nodes])]

    def _is_activation(self, name: str) -> bool:
        return self._by_node[name]["op"] in ("Relu", "Clip", "LeakyRelu")

    def _drawn_into(self, name: str) -> list[str]:
        """Return the node whose output an activation changes: quantised, they are one."""
        return self._before.get(name, [])[:1] if self._is_activation(name) else []

    def _walk(self, name: str, edges: dict[str, list[str]], *, far: int = _NEAR) -> Iterator[str]:
        """Yield neighbours, the nearest first, and none beyond one with weights."""
        frontier = [name]
        for _ in range(far):
            frontier = [other for node in frontier for other in edges.get(node, [])]
            yield from frontier
            frontier = [node for node in frontier if self._by_node[node]["op"] not in WEIGHTED]
