"""Find a smallest set of nodes to keep in a high precision, with few trials. Pure: trials are a function.

A prefix of the ranking that passes is found by doubling and halving; then parts of it are given back, halves first and
single nodes last, until none can be: such a set is minimal, since dropping any one node of it fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Nodes = frozenset[str]


class OutOfBudgetError(Exception):
    """No further trial may be made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """
    What a search came to.

    Attributes:
        nodes: The smallest set found that passes; None where none was.
        is_minimal: Whether dropping any one of them was tried and fails.
        is_exhausted: Whether the budget ended the search.
    """

    nodes: Nodes | None
    is_minimal: bool
    is_exhausted: bool


def find_smallest(ranking: Sequence[str], passes: Callable[[Nodes], bool]) -> SearchResult:
    """
    Return a minimal set of nodes that passes.

    Args:
        ranking: Nodes, the likeliest first.
        passes: One trial; raises `OutOfBudgetError` when no more may be made. It should remember what it answered.
    """
    passed: list[Nodes] = []

    def noting(nodes: Nodes) -> bool:
        found = passes(nodes)
        if found:
            passed.append(nodes)
        return found

    try:
        length = _passing_prefix(ranking, noting)
        if length is None:
            return SearchResult(nodes=None, is_minimal=False, is_exhausted=False)
        kept = list(ranking[:length])
        size = max(1, len(kept) // 2)
        while len(kept) > 1:
            smaller = _without_some(kept, size, noting)
            if smaller is not None:
                kept = smaller
                size = min(size, max(1, len(kept) // 2))
            elif size == 1:
                break
            else:
                size = max(1, size // 2)
    except OutOfBudgetError:
        return SearchResult(nodes=min(passed, key=len, default=None), is_minimal=False, is_exhausted=True)
    return SearchResult(nodes=frozenset(kept), is_minimal=True, is_exhausted=False)


def _passing_prefix(ranking: Sequence[str], passes: Callable[[Nodes], bool]) -> int | None:
    """Return the length of a short prefix that passes, or None where not even all nodes do."""
    failed, length = 0, 1
    while not passes(frozenset(ranking[:length])):
        if length >= len(ranking):
            return None
        failed, length = length, min(len(ranking), 2 * length)
    while length - failed > 1:
        middle = (failed + length) // 2
        if passes(frozenset(ranking[:middle])):
            length = middle
        else:
            failed = middle
    return length


def _without_some(kept: Sequence[str], size: int, passes: Callable[[Nodes], bool]) -> list[str] | None:
    """Return the nodes without a part of so many that is not needed, the least likely first, or None."""
    for stop in range(len(kept), 0, -size):
        rest = [*kept[: max(0, stop - size)], *kept[stop:]]
        if rest and passes(frozenset(rest)):
            return rest
    return None
