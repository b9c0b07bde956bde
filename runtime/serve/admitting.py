"""Who may go to an engine: so many at a time, so many waiting in order, the others are told to come again.

Of one event loop. Why here and not in the backend: docs/decisions/0054-how-the-server-says-no.md.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable

from modelreg.runtime.serve.problems import ExpiredError, GoneError, NoRoomError


class Admission:
    """The places at one model's engine, and the queue for them."""

    def __init__(self, *, concurrency: int, max_queue: int) -> None:
        self._free = concurrency
        self._max_queue = max_queue
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """Return how many wait."""
        return len(self._queue)

    async def enter(self, *, until_s: float, gone: Callable[[], Awaitable[object]]) -> None:
        """
        Take a place; `leave` gives it back.

        Args:
            until_s: When to give up, of `time.monotonic`.
            gone: Returns when the client has gone away.

        Raises:
            NoRoomError: As many wait as may.
            ExpiredError: The time is over.
            GoneError: The client has gone away.
        """
        if time.monotonic() >= until_s:
            raise ExpiredError("the deadline passed before the request was here")
        if self._free and not self._queue:
            self._free -= 1
            return
        if len(self._queue) >= self._max_queue:
            raise NoRoomError(f"{self._max_queue} requests wait already")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        leaving = asyncio.ensure_future(gone())
        is_mine = False
        try:
            await asyncio.wait((turn, leaving), timeout=until_s - time.monotonic(), return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                raise GoneError("the client went away while its request waited")
            if not turn.done():
                raise ExpiredError("the deadline passed while the request waited")
            is_mine = True
        finally:
            leaving.cancel()
            if not is_mine:
                self._withdraw(turn)

    def _withdraw(self, turn: asyncio.Future[None]) -> None:
        if turn.done():  # it was given a place at that very moment
            self.leave()
        else:
            self._queue.remove(turn)

    def leave(self) -> None:
        """Give a place to who waits longest."""
        if self._queue:
            self._queue.popleft().set_result(None)
        else:
            self._free += 1


class Gate:
    """
    Whether the server takes requests, and how many are under way. Of one event loop.

    Attributes:
        is_ready: What the readiness probe says.
        is_open: Whether new requests are taken.
    """

    def __init__(self) -> None:
        self.is_ready = True
        self.is_open = True
        self.under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def __enter__(self) -> None:
        self.under_way += 1
        self._idle.clear()

    def __exit__(self, *_: object) -> None:
        self.under_way -= 1
        if not self.under_way:
            self._idle.set()

    async def wait_until_idle(self, *, timeout_s: float) -> bool:
        """Return whether nothing is under way within the time."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except asyncio.TimeoutError:
            return False
        return True
