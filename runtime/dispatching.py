"""Which instance takes a request, and when one that failed is tried again. Pure."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_RETRY_S = 600.0
_SETTLED_S = 60.0


def choose_instance(in_flight: Sequence[int | None], *, after: int) -> int | None:
    """
    Return the instance with the fewest requests; None where none is there.

    Args:
        in_flight: Requests of each instance; None for one that is out.
        after: The instance that was chosen last: among equals, the next one around takes its turn.
    """
    around = [(after + step) % len(in_flight) for step in range(1, len(in_flight) + 1)]
    there = [(load, place) for place, number in enumerate(around) if (load := in_flight[number]) is not None]
    return around[min(there)[1]] if there else None


def next_delay(first_s: float, *, last_s: float | None, lived_s: float | None) -> float:
    """
    Return the seconds until a failed instance is tried again.

    Args:
        first_s: The first delay; each further one is twice as long, up to ten minutes.
        last_s: The delay before; None where there was none.
        lived_s: How long it lived since; None where it did not start. One that lived for a minute begins anew.
    """
    if last_s is None or (lived_s is not None and lived_s >= _SETTLED_S):
        return first_s
    return min(2 * last_s, max(LONGEST_RETRY_S, first_s))
