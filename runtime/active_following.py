"""The thread behind a served model: it follows the channel, and it alone touches engines but to run them."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from modelreg.registry.errors import ModelregError, StorageError
from modelreg.registry.manifest import parse_manifest
from modelreg.registry.pointers import Pointer
from modelreg.registry.storage.rules import MANIFEST_NAME
from modelreg.runtime.following import Source, follow, pull_once
from modelreg.runtime.leases import LeaseKeeper
from modelreg.runtime.pull import PullFolder
from modelreg.runtime.pull_request import Pulled, PullRequest, choose_engines
from modelreg.runtime.serving import AlarmKind, NotServingError
from modelreg.runtime.swapping import Swapper, kind_of

_LONGEST_RETRY_S = 600.0
_RESTORE_S = 5.0
_ABOUT_A_RELEASE = (AlarmKind.LOAD, AlarmKind.SMOKE, AlarmKind.MEMORY)


class _StoppedError(Exception):
    """The model is being closed."""


class ActiveFollower:
    """Follows one channel for a `Swapper`. Its thread lives as long as the engines: a child dies with its thread."""

    def __init__(
        self,
        source: Source,
        folder: PullFolder,
        request: PullRequest,
        *,
        swapper: Swapper,
        keeper: LeaseKeeper | None,
        interval_s: float,
        retry_s: float,
    ) -> None:
        self.request = request
        self.swapper = swapper
        swapper.on_change = self.wake
        self.seen: Pulled | None = None
        self._source, self._folder, self._keeper = source, folder, keeper
        self._interval_s, self._retry_s = interval_s, retry_s
        self._served_pointer: Pointer | None = None
        self._refused: tuple[str, float, float] | None = None
        self._restore_at_s = 0.0
        self._closing = threading.Event()
        self._wake = threading.Event()
        self._started = threading.Event()
        self._start_error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"modelreg {request.name}", daemon=True)

    # -- for every thread ----------------------------------------------------------------------------------
    def start(self) -> None:
        """
        Begin; return when something is served.

        Raises:
            ModelregError: Nothing can be.
        """
        self._thread.start()
        self._started.wait()
        if self._start_error is not None:
            raise self._start_error

    def stop(self) -> None:
        """Free everything, after what is under way; again is no mistake."""
        self._closing.set()
        self._wake.set()
        if threading.current_thread() is not self._thread and self._thread.ident is not None:
            self._thread.join()

    def wake(self) -> None:
        """Say that there is something to do."""
        self._wake.set()

    def look_now(self) -> None:
        """Look at the channel at once, and try again what was refused."""
        if self._refused is not None:
            self._refused = (self._refused[0], 0.0, self._refused[2])
        self._wake.set()

    # -- the thread's own ----------------------------------------------------------------------------------
    def _run(self) -> None:
        try:
            while True:
                try:
                    follow(
                        self._source,
                        self._folder,
                        self.request,
                        told=self,
                        wait=self._wait,
                        interval_s=self._interval_s,
                    )
                except _StoppedError:
                    return
                except Exception as error:  # a mistake that no waiting mends, or one of ours: what is served goes on
                    self._fail(AlarmKind.STORE, error)
                    with suppress(_StoppedError):
                        self._wait(self._retry_s)
                    if self._closing.is_set():
                        return
        finally:
            self.swapper.close()
            self._started.set()
            if self._keeper is not None:
                self._keeper.drop()

    def pulled(self, pulled: Pulled) -> None:
        """Hear of a release that lies here now."""
        self.swapper.clear_alarm(AlarmKind.STORE)
        self.seen = pulled
        served = self._served_pointer
        if served is None or served.txn != pulled.pointer.txn:
            self._try(pulled)

    def failed(self, error: ModelregError) -> None:
        """Hear that the store, or what it serves, cannot be read."""
        if self._served_pointer is None and isinstance(error, StorageError) and (left := self._find_left()):
            self._try(left)
        self._fail(AlarmKind.STORE, error)

    def recovered(self) -> None:
        """Hear that it can be read again."""
        self.swapper.clear_alarm(AlarmKind.STORE)

    def _find_left(self) -> Pulled | None:
        """Return what an earlier run left here, where it is complete; its digests are checked when it is loaded."""
        try:
            pointer = self._folder.read_pointer()
            if pointer is None or (pointer.model, pointer.channel) != (self.request.model, self.request.channel):
                return None
            folder = self._folder.root / "releases" / pointer.release
            manifest = parse_manifest((folder / MANIFEST_NAME).read_bytes(), where=str(folder))
            plans = {each.target: folder / each.plan.path for each in choose_engines(manifest, self.request)}
        except (ModelregError, OSError):
            return None
        return Pulled(pointer=pointer, path=folder, plans=plans, fetched_bytes=0, reused_bytes=0, changed=False)

    def _try(self, pulled: Pulled) -> None:
        """Bring a release up; one that is refused is tried again later, each time after twice as long."""
        pointer = pulled.pointer
        try:
            self.swapper.bring_up(pulled)
        except Exception as error:  # whatever a plan does, what was served goes on
            delay_s = self._retry_s
            if self._refused is not None and self._refused[0] == pointer.txn:
                delay_s = min(2 * self._refused[2], max(_LONGEST_RETRY_S, self._retry_s))
            self._refused = (pointer.txn, time.monotonic() + delay_s, delay_s)
            self.swapper.clear_alarm(*_ABOUT_A_RELEASE)
            self._fail(kind_of(error), error, generation=pointer.generation)
        else:
            self._refused, self._served_pointer = None, pointer
            self.swapper.clear_alarm(*_ABOUT_A_RELEASE)
            self._started.set()

    def _fail(self, kind: AlarmKind, error: Exception, *, generation: int | None = None) -> None:
        self.swapper.raise_alarm(kind, error, generation=generation)
        if not self._started.is_set():
            self._start_error = error
            self._started.set()

    def _wait(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while True:
            if self._closing.is_set():
                raise _StoppedError
            self._tend()
            left_s = until_s - time.monotonic()
            if left_s <= 0 or not self._wake.wait(left_s):
                return
            self._wake.clear()
            if not self._closing.is_set() and not self._is_broken():
                return  # somebody asked for a look

    def _is_broken(self) -> bool:
        current = self.swapper.lender.current
        return self._served_pointer is not None and (current is None or current.seat.is_broken)

    def _tend(self) -> None:
        """Do what is due: free old engines, start a dead one again, try what was refused, renew the lease."""
        self.swapper.sweep()
        now_s = time.monotonic()
        if self._is_broken() and now_s >= self._restore_at_s:
            self._restore_at_s = now_s + _RESTORE_S
            self.swapper.raise_alarm(AlarmKind.DIED, NotServingError("the engine's process died; starting it again"))
            self.swapper.restore()
        seen, refused = self.seen, self._refused
        if seen is not None and refused is not None and seen.pointer.txn == refused[0] and now_s >= refused[1]:
            self._retry(seen)
        if self._keeper is not None and self._served_pointer is not None:
            self._keeper.hold(self._served_pointer)

    def _retry(self, seen: Pulled) -> None:
        """Try a release again: its files are read whole, and what is damaged is fetched, where the store is there."""
        with suppress(ModelregError):
            seen = self.seen = pull_once(self._source, self._folder, self.request)
        self._try(seen)
