"""The order in which people read targets: by number, so that `sm_89` comes before `sm_120`. Pure.

The manifest keeps its own order, by name: its digest rests on it.
"""

from __future__ import annotations

from collections.abc import Iterable

_DIGITS = "0123456789"


def target_key(target: str) -> tuple[str, int, str]:
    """Return what a target is sorted by: its letters, its number, and its whole name where these are the same."""
    letters = target.rstrip(_DIGITS)
    digits = target[len(letters) :]
    return letters, int(digits) if digits else -1, target


def in_order(targets: Iterable[str]) -> tuple[str, ...]:
    """Return targets in the order in which people read them, each once."""
    return tuple(sorted(set(targets), key=target_key))
