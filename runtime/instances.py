"""One instance of an instance group: an engine on a device, and the thread that opens it, and again after it failed.

The thread lives as long as the instance: a child dies with the thread that started it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from modelreg.registry.clock import utc_now
from modelreg.runtime.devices import Device
from modelreg.runtime.dispatching import next_delay
from modelreg.runtime.engines import Engine
from modelreg.runtime.serving import InstanceState

_log = logging.getLogger("modelreg.runtime")
_CLOSE_TIMEOUT_S = 15.0


class Instance:
    """
    An engine on one device.

    What the group counts on it, it counts under its own lock. `engine` is None while the instance is out.
    """

    def __init__(
        self,
        device: Device,
        open_engine: Callable[[], Engine],
        warm: Callable[[Engine], None],
        *,
        retry_s: float,
        on_change: Callable[[], None],
    ) -> None:
        """
        Begin to open it, in a thread of its own; `wait` for the outcome.

        Args:
            device: Where it runs.
            open_engine: Loads the engine; it is called again, by the same thread, after the engine has failed.
            warm: Makes an engine ready that was opened again.
            retry_s: When the first new try is; each further one is twice as long after.
            on_change: Called by the thread when the instance is back.
        """
        self.device = device
        self.engine: Engine | None = None
        self.in_flight = 0
        self.done = 0
        self.failed = 0
        self.error: Exception | None = None
        self._look = InstanceState(device=device.name, uuid=device.uuid)
        self._open, self._warm, self._retry_s, self._on_change = open_engine, warm, retry_s, on_change
        self._last: Engine | None = None
        self._opened, self._failed, self._closing = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._own, name=f"modelreg {device.name}", daemon=True)
        self._thread.start()

    def wait(self) -> Engine | None:
        """Return the engine once it is loaded; None where it cannot be, for the reason in `error`."""
        self._opened.wait()
        return self.engine

    @property
    def state(self) -> InstanceState:
        """Return a look at it."""
        pid = getattr(self.engine, "pid", None)
        return replace(self._look, pid=pid, in_flight=self.in_flight, done=self.done, failed=self.failed)

    def take_out(self, engine: Engine, error: Exception) -> bool:
        """Hear that `engine` failed; return whether that is news: another thread may have said so, or it is back."""
        if self.engine is not engine:
            return False
        self.engine = None
        self._note_out(error)
        self._failed.set()
        return True

    def begin_close(self) -> None:
        """Have the thread that made the engine free it, and end."""
        self._closing.set()
        self._failed.set()

    def close(self) -> None:
        """Do so, and wait for it."""
        self.begin_close()
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_TIMEOUT_S)  # it may be loading, which cannot be hurried

    def is_gone(self) -> bool:
        """Return whether all that it had is freed."""
        return not self._thread.is_alive() and (self._last is None or self._last.is_gone())

    # -- the thread's own ----------------------------------------------------------------------------------
    def _own(self) -> None:
        try:
            self._try(self._open)
            self._opened.set()
            delay_s: float | None = None
            while True:
                lived_s = self._wait_for_failure()
                self._free()
                delay_s = next_delay(self._retry_s, last_s=delay_s, lived_s=lived_s)
                if self._closing.wait(delay_s):
                    return
                self._failed.clear()
                if self._closing.is_set():
                    return
                if self._try(self._open_again):
                    _log.info("%s is back", self.device.name)
                    self._on_change()
        finally:
            self._opened.set()
            self.engine = None
            self._free()

    def _wait_for_failure(self) -> float | None:
        """Return how long the engine lived, in seconds, once it has failed; None at once where there is none."""
        if self.engine is None:
            return None
        began_s = time.monotonic()
        self._failed.wait()
        return time.monotonic() - began_s

    def _open_again(self) -> Engine:
        engine = self._open()
        try:
            self._warm(engine)
        except BaseException:
            engine.close()
            raise
        return engine

    def _try(self, open_engine: Callable[[], Engine]) -> bool:
        try:
            engine = open_engine()
        except Exception as error:  # whatever a plan does, the others go on
            self.error = error
            self._note_out(error)
            return False
        self._last = engine
        self._look = replace(self._look, out_since=None, reason="")
        self.engine = engine
        return True

    def _note_out(self, error: Exception) -> None:
        since = self._look.out_since or utc_now()
        self._look = replace(self._look, out_since=since, reason=" ".join(str(error).split())[:300])

    def _free(self) -> None:
        if self._last is not None:
            self._last.close()
