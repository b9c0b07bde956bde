"""The order in which people read targets: by number, so that `sm_89` comes before `sm_120`. Pure.

The manifest keeps its own order, by name: its digest rests on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_PARTS = re.compile(r"(.*?)(\d*)", re.DOTALL)


def target_key(target: str) -> tuple[str, int, str]:
    """Return what a target is sorted by: its letters, its number, and its whole name where these are the same."""
    found = _PARTS.fullmatch(target)
    assert found is not None  # both parts may be empty
    letters, digits = found.groups()
    return letters, int(digits) if digits else -1, target


def in_order(targets: Iterable[str]) -> tuple[str, ...]:
    """Return targets in the order in which people read them, each once."""
    return tuple(sorted(set(targets), key=target_key))
