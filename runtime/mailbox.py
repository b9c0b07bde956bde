"""What other threads hand to an event loop: one wake-up for the answers of a whole batch.

Each wake-up writes to a pipe, and lets the loop's thread take the interpreter from the one that still has answers to
give: with one for each answer, a batch cost more than its requests did alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator

_this_thread = threading.local()


class Mailbox:
    """Calls that an event loop shall make, in order; any thread puts them in."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[Callable[[], None]] = deque()

    def put(self, call: Callable[[], None]) -> None:
        """Have the loop make a call: soon, or where this thread is in `one_wakeup`, at the end of that."""
        self._calls.append(call)
        touched: dict[Mailbox, None] | None = getattr(_this_thread, "touched", None)
        if touched is None:
            self._wake()
        else:
            touched[self] = None

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._empty)

    def _empty(self) -> None:
        while self._calls:
            self._calls.popleft()()


@contextlib.contextmanager
def one_wakeup() -> Iterator[None]:
    """Wake each event loop that this thread hands something to once, at the end."""
    touched: dict[Mailbox, None] = {}
    _this_thread.touched = touched
    try:
        yield
    finally:
        _this_thread.touched = None
        for mailbox in touched:
            mailbox._wake()
