"""Pipes to a child whose every wait has an end."""

from __future__ import annotations

import contextlib
import io
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

_TICK_S = 0.25
_this_thread = threading.local()


@contextlib.contextmanager
def interrupted_by(stop: threading.Event) -> Iterator[None]:
    """Let this thread's waits for a child end in `KeyboardInterrupt` once `stop` is set; Ctrl-C reaches one thread."""
    before = getattr(_this_thread, "stop", None)
    _this_thread.stop = stop
    try:
        yield
    finally:
        _this_thread.stop = before


def raise_if_interrupted() -> None:
    """Raise `KeyboardInterrupt` where this thread is `interrupted_by` an event that is set."""
    stop: threading.Event | None = getattr(_this_thread, "stop", None)
    if stop is not None and stop.is_set():
        raise KeyboardInterrupt


class TimedPipe(io.RawIOBase):
    """Both pipes of a child as one raw stream whose every wait ends at `deadline` (`time.monotonic`)."""

    def __init__(self, write_fd: int, read_fd: int, on_tick: Callable[[], None]) -> None:
        super().__init__()
        self._write_fd = write_fd
        self._read_fd = read_fd
        self._on_tick = on_tick
        self.deadline = 0.0
        self.ended = False

    def readable(self) -> bool:
        """Return True: answers are read."""
        return True

    def writable(self) -> bool:
        """Return True: requests are written."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what is there, at most what fits; raise `TimeoutError` at the deadline."""
        self._wait(self._read_fd, select.POLLIN)
        size = os.readv(self._read_fd, [buffer])
        self.ended = size == 0
        return size

    def write(self, data: Any) -> int:
        """Write all of it: raw streams may write less, this one does not."""
        view = memoryview(data)
        while view:
            self._wait(self._write_fd, select.POLLOUT)
            with contextlib.suppress(BlockingIOError):
                view = view[os.write(self._write_fd, view) :]
        return len(data)

    def _wait(self, fd: int, events: int) -> None:
        poll = select.poll()
        poll.register(fd, events)
        while True:
            raise_if_interrupted()
            left_s = self.deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            if poll.poll(min(left_s, _TICK_S) * 1000):
                return
            self._on_tick()
