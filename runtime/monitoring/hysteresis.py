"""From a measurement to a state that does not flutter. Pure.

A state gets worse when the measurement has been beyond its limit for long enough, and better when it has been a
twentieth inside the limit for as long as it takes to be believed. In between it stays what it was.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from modelreg.registry.words import Word

RELEASE = 0.05
"""So far inside its limit must a measurement be to end a finding, as a part of the limit."""


class HealthState(Word):
    """How something is. `UNKNOWN`: what would say so could not be measured, which is not the same as healthy."""

    HEALTHY = "HEALTHY"
    UNKNOWN = "UNKNOWN"
    WARNING = "WARNING"
    CRITICAL = "CRITICAL"


_LEVELS = (HealthState.HEALTHY, HealthState.WARNING, HealthState.CRITICAL)
_SEVERITY = {HealthState.HEALTHY: 0, HealthState.UNKNOWN: 1, HealthState.WARNING: 2, HealthState.CRITICAL: 3}


def worst(*states: HealthState) -> HealthState:
    """Return the worst of some states; of none, that nothing is known."""
    return max(states, key=_SEVERITY.__getitem__, default=HealthState.UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """
    What a measurement is held to.

    Attributes:
        warning: Beyond it, WARNING; infinite for never.
        critical: Beyond it, CRITICAL; infinite for never.
        is_floor: Whether beyond means below.
        holds_s: Seconds that it must be beyond before that counts.
        clears_s: Seconds that it must be well inside before it is over.
    """

    warning: float = math.inf
    critical: float = math.inf
    is_floor: bool = False
    holds_s: float = 0.0
    clears_s: float = 0.0

    def level_of(self, measured: float, *, inside: float = 0.0) -> HealthState:
        """Return what a measurement alone says, with the limits moved inwards by a part of themselves."""
        if math.isnan(measured):
            return HealthState.CRITICAL
        for state, limit in ((HealthState.CRITICAL, self.critical), (HealthState.WARNING, self.warning)):
            if math.isinf(limit):
                continue
            edge = limit + abs(limit) * inside if self.is_floor else limit - abs(limit) * inside
            if measured < edge if self.is_floor else measured > edge:
                return state
        return HealthState.HEALTHY

    def of(self, state: HealthState) -> float:
        """Return the limit of a state."""
        return self.critical if state is HealthState.CRITICAL else self.warning


@dataclass(frozen=True, slots=True, kw_only=True)
class Latch:
    """The state of one rule for one subject, since when, and where it is on the way to."""

    state: HealthState = HealthState.HEALTHY
    since_s: float = 0.0
    pending: HealthState | None = None
    pending_since_s: float = 0.0


def step(latch: Latch, measured: float, limit: Limit, *, now_s: float) -> Latch:
    """
    Return the latch after one more measurement.

    Args:
        latch: What it was.
        measured: The measurement; NaN is beyond every limit.
        limit: What it is held to.
        now_s: A clock that only goes forward.
    """
    target = _target(latch.state, measured, limit)
    if target is latch.state:
        return replace(latch, pending=None)
    is_worse = _LEVELS.index(target) > _LEVELS.index(latch.state)
    pending, since_s = target, now_s
    if latch.pending is not None and (_LEVELS.index(latch.pending) > _LEVELS.index(latch.state)) == is_worse:
        # Only what held all the time counts: the mildest of what was beyond, the worst of what got better.
        pick = min if is_worse else max
        pending, since_s = pick(latch.pending, target, key=_LEVELS.index), latch.pending_since_s
    if now_s - since_s >= (limit.holds_s if is_worse else limit.clears_s):
        return Latch(state=pending, since_s=since_s)
    return replace(latch, pending=pending, pending_since_s=since_s)


def _target(state: HealthState, measured: float, limit: Limit) -> HealthState:
    """Return the state that a measurement speaks for: what it says alone, but no better than well inside allows."""
    alone, released = limit.level_of(measured), limit.level_of(measured, inside=RELEASE)
    kept = min(state, released, key=_LEVELS.index)
    return max(alone, kept, key=_LEVELS.index)
