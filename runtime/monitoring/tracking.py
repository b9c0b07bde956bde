"""What is remembered of a model from look to look: its counts of a minute, its swaps, how long it has lagged."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from modelreg.runtime.monitoring.facts import ModelFacts, ParityFacts, RecentRequests
from modelreg.runtime.serving import ActiveState, SwapReport

WINDOW_S = 60.0
RATE_S = 10.0
"""What `top` shows as a rate: short enough to see a change, long enough not to jump."""


class ModelTracker:
    """Follows one model; one thread at a time may tell it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.swaps: dict[str, int] = {}
        self.last_swap: SwapReport | None = None
        self._swaps_seen = 0
        self._looks: deque[tuple[float, int, int]] = deque()
        self._stale_since_s: float | None = None

    def look(
        self,
        state: ActiveState | None,
        *,
        requests: int,
        faults: int,
        now_s: float,
        parity: Iterable[ParityFacts] = (),
    ) -> ModelFacts:
        """
        Take note of one moment, and return it as facts.

        Args:
            state: What the model says of itself.
            requests: Requests by now, and `faults`, how many of them failed by the server's fault.
            faults: See there.
            now_s: A clock that only goes forward.
            parity: What online parity found.
        """
        if state is not None:
            self._note_swaps(state)
        is_stale = state is not None and state.store_generation is not None and not state.is_current
        if not is_stale:
            self._stale_since_s = None
        elif self._stale_since_s is None:
            self._stale_since_s = now_s
        self._looks.append((now_s, requests, faults))
        while len(self._looks) > 2 and self._looks[1][0] <= now_s - WINDOW_S:
            self._looks.popleft()
        return ModelFacts(
            name=self.name,
            state=state,
            stale_s=0.0 if self._stale_since_s is None else now_s - self._stale_since_s,
            recent=self.recent(WINDOW_S),
            parity=tuple(parity),
        )

    def recent(self, seconds: float) -> RecentRequests | None:
        """Return the requests of about the last `seconds`; None before there were two looks."""
        if len(self._looks) < 2:
            return None
        last = self._looks[-1]
        first = next(look for look in self._looks if look[0] >= last[0] - seconds or look is last)
        if first is last:
            first = self._looks[-2]
        return RecentRequests(seconds=last[0] - first[0], requests=last[1] - first[1], faults=last[2] - first[2])

    def _note_swaps(self, state: ActiveState) -> None:
        """Count swaps by mode; of several between two looks, the mode of the last is taken for all."""
        new, last = state.swaps - self._swaps_seen, state.last_swap
        if last is not None and new > 0:
            self._swaps_seen, self.last_swap = state.swaps, last
            self.swaps[str(last.mode)] = self.swaps.get(str(last.mode), 0) + new
