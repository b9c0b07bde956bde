"""Who uses which engine: requests borrow the one that is current, a swap takes one reference for another.

A request keeps the engine that it began with. An engine is closed by its owner when nobody has it any more.
"""

from __future__ import annotations

import threading
import time
from typing import Generic, Protocol, TypeVar

from modelreg.runtime.serving import NotServingError


class Closable(Protocol):
    """What is lent."""

    def close(self) -> None:
        """Free it."""
        ...


EngineT = TypeVar("EngineT", bound=Closable)
LabelT = TypeVar("LabelT")


class Seat(Generic[EngineT]):
    """An engine, and how many requests are on it. `is_broken` once it can answer nothing any more."""

    __slots__ = ("engine", "is_broken", "users")

    def __init__(self, engine: EngineT) -> None:
        self.engine = engine
        self.users = 0
        self.is_broken = False


class Placed(Generic[EngineT, LabelT]):
    """A seat under one label. Two labels may share a seat: another release with the same engine."""

    __slots__ = ("label", "seat")

    def __init__(self, seat: Seat[EngineT], label: LabelT) -> None:
        self.seat = seat
        self.label = label


class Lender(Generic[EngineT, LabelT]):
    """Lends the current engine; every method may be called by any thread."""

    def __init__(self) -> None:
        self._current: Placed[EngineT, LabelT] | None = None
        self._is_closed = False
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)

    @property
    def current(self) -> Placed[EngineT, LabelT] | None:
        """Return what is lent now."""
        return self._current

    def borrow(self, *, wait_s: float) -> Placed[EngineT, LabelT]:
        """
        Return the current engine; give it back. Waits while there is none, or a broken one, that is being replaced.

        Raises:
            NotServingError: Nothing came within `wait_s`, or all is closed.
        """
        with self._lock:
            placed = self._current
            if placed is None or placed.seat.is_broken:
                placed = self._wait(wait_s)
            placed.seat.users += 1
            return placed

    def try_borrow(self) -> Placed[EngineT, LabelT] | None:
        """Return the current engine, as `borrow`; None at once where there is none, or a broken one."""
        with self._lock:
            placed = self._current
            if placed is None or placed.seat.is_broken:
                return None
            placed.seat.users += 1
            return placed

    def _wait(self, wait_s: float) -> Placed[EngineT, LabelT]:
        until_s = time.monotonic() + wait_s
        while True:
            if self._is_closed:
                raise NotServingError("this model is closed")
            placed = self._current
            if placed is not None and not placed.seat.is_broken:
                return placed
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise NotServingError(
                    f"no engine was there within {wait_s:g} s", hint="Its state says why: ActiveModel.state().alarms."
                )
            self._changed.wait(left_s)

    def give_back(self, placed: Placed[EngineT, LabelT], *, is_broken: bool = False) -> None:
        """Say that a request is done with an engine, or that it found it broken."""
        seat = placed.seat
        with self._lock:
            seat.users -= 1
            if is_broken:
                seat.is_broken = True
            if seat.users == 0 and (self._current is None or self._current.seat is not seat):
                self._changed.notify_all()

    def swap(self, new: Placed[EngineT, LabelT] | None) -> Placed[EngineT, LabelT] | None:
        """Lend `new` from now on (None: nothing; who borrows waits); return what was lent before."""
        with self._lock:
            old, self._current = self._current, new
            self._changed.notify_all()
            return old

    def wait_until_free(self, seat: Seat[EngineT], *, timeout_s: float) -> bool:
        """Return whether nobody has a seat, that is lent no more, within the time."""
        with self._lock:
            return self._changed.wait_for(lambda: seat.users == 0, timeout_s)

    def close(self) -> Placed[EngineT, LabelT] | None:
        """Lend nothing any more: who waits or comes gets an error. Return what was lent."""
        with self._lock:
            self._is_closed = True
            old, self._current = self._current, None
            self._changed.notify_all()
            return old
