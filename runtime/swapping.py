"""Bring a new engine up, let it take over, free the old one. One thread does this; requests go on meanwhile."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from modelreg.registry.clock import utc_now
from modelreg.registry.errors import IntegrityError, ModelregError, NotFoundError
from modelreg.registry.manifest import parse_manifest
from modelreg.registry.storage.rules import MANIFEST_NAME
from modelreg.registry.words import Backend
from modelreg.runtime.admission import choose_mode, estimate_need
from modelreg.runtime.engines import Engine, require_intact
from modelreg.runtime.host import Host
from modelreg.runtime.lending import Lender, Placed, Seat
from modelreg.runtime.opening import open_again, prepare_engine
from modelreg.runtime.pull_request import Pulled
from modelreg.runtime.resolver import resolve_release
from modelreg.runtime.serving import (
    Alarm,
    AlarmKind,
    MemoryAdmissionError,
    NotServingError,
    SmokeTestError,
    SwapMode,
    SwapReport,
    describe_served,
)
from modelreg.runtime.trying import Label, ServingOptions, require_same_inputs

_log = logging.getLogger("modelreg.runtime")
_QUICK_DRAIN_S = 0.5
"""So long the swapping thread waits for requests to leave the old engine; after that it looks from time to time."""


OnAlarm = Callable[[Alarm], None]


class Swapper:
    """Owns every engine of one model. `lender`, and what only reads, may be used by any thread; the rest by one."""

    def __init__(self, *, host: Host, options: ServingOptions, on_alarm: OnAlarm) -> None:
        self.lender: Lender[Engine, Label] = Lender()
        self.swaps = 0
        self.last_swap: SwapReport | None = None
        self.on_change: Callable[[], None] = lambda: None
        """Called, by any thread, when `sweep` has something to say of a device."""
        self._host = host
        self._options = options
        self._on_alarm = on_alarm
        self._alarms: dict[AlarmKind, Alarm] = {}
        self._retired: list[tuple[Seat[Engine], SwapReport]] = []
        self._last_good: Label | None = None
        self._measured: tuple[int, int] = (0, 0)

    # -- what is wrong -------------------------------------------------------------------------------------
    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """Return what is wrong now."""
        return tuple(self._alarms.copy().values())

    @property
    def last_good(self) -> Label | None:
        """Return what is served, or was served last."""
        return self._last_good

    @property
    def retired(self) -> int:
        """Return how many replaced engines still have a request."""
        return len(self._retired)

    def raise_alarm(self, kind: AlarmKind, error: Exception, *, generation: int | None = None) -> None:
        """Tell of something, in the state, in the log and to the callback; the same thing once."""
        hint = error.hint() if isinstance(error, ModelregError) else ""
        alarm = Alarm(kind=kind, message=str(error), hint=hint, generation=generation, at=utc_now())
        before = self._alarms.get(kind)
        self._alarms[kind] = alarm
        if before is not None and (before.message, before.generation) == (alarm.message, alarm.generation):
            return
        _log.error("%s: %s%s", kind, alarm.message, f" ({alarm.hint})" if alarm.hint else "")
        try:
            self._on_alarm(alarm)
        except Exception:  # somebody else's code: serving goes on
            _log.exception("the alarm's callback failed")

    def clear_alarm(self, *kinds: AlarmKind) -> None:
        """Say that something is well again."""
        for kind in kinds:
            if self._alarms.pop(kind, None) is not None:
                _log.info("%s: well again", kind)

    # -- bringing up ---------------------------------------------------------------------------------------
    def bring_up(self, pulled: Pulled) -> None:
        """
        Serve a release that lies here; whatever fails, what was served goes on.

        Raises:
            ModelregError: It cannot be served.
        """
        new = self._find(pulled)
        current = self.lender.current
        usable = None if current is None or current.seat.is_broken else current
        if usable is not None and usable.label.is_same_engine(new):
            self._take_over(
                usable.seat, new, SwapReport(generation=new.served.generation, mode=SwapMode.SAME_ENGINE, load_s=0.0)
            )
            return
        require_intact(new.found.engine, new.folder)
        before = self._last_good if current is None else current.label
        if before is not None and not self._options.accept_new_inputs:
            require_same_inputs(before.signature, new.signature)
        if usable is None:
            self._load(new, SwapMode.FIRST if before is None else SwapMode.OVERLAP, old=None)
            return
        free = usable.seat.engine.read_free_memory()
        need = estimate_need(
            new.files_bytes,
            instances=self._options.instances_per_device,
            old_files_bytes=self._measured[0],
            old_used_bytes=self._measured[1],
        )
        if choose_mode(self._options.overlap, need_bytes=need, free_bytes=free) is SwapMode.OVERLAP:
            self._load(new, SwapMode.OVERLAP, old=usable, free_bytes=free)
        else:
            self._drain_and_load(new, usable, need_bytes=need, free_bytes=free)

    def _find(self, pulled: Pulled) -> Label:
        """Return the best engine for this host among those that were pulled."""
        manifest = parse_manifest((pulled.path / MANIFEST_NAME).read_bytes(), where=str(pulled.path))
        here = manifest._replace(engines=tuple(each for each in manifest.engines if each.target in pulled.plans))
        found = resolve_release(pulled.pointer, here, pulled.path, self._host, preference=self._options.preference)
        if found.best is None:
            raise NotFoundError(
                f"no engine of generation {pulled.pointer.generation} runs on this host",
                hint="; ".join(f"{each.engine.target}: {each.reason}" for each in found.candidates),
            )
        return Label(
            served=describe_served(pulled.pointer, found.best.engine),
            found=found.best,
            folder=pulled.path,
            signature=manifest.signature,
        )

    def _load(
        self, new: Label, mode: SwapMode, *, old: Placed[Engine, Label] | None, free_bytes: int | None = None
    ) -> None:
        began = time.monotonic()
        before = None if old is None else old.seat.engine
        engine = prepare_engine(new, self._options, old=before, on_change=self._changed)
        left = engine.read_free_memory()
        if free_bytes is not None and left is not None and new.found.engine.backend is not Backend.ONNXRUNTIME:
            self._measured = (new.files_bytes, max(0, free_bytes - left))  # only a device's memory is that steady
        report = SwapReport(
            generation=new.served.generation,
            mode=mode,
            load_s=time.monotonic() - began,
            memory_before_bytes=free_bytes,
        )
        self._take_over(Seat(engine), new, report)

    def _drain_and_load(
        self, new: Label, old: Placed[Engine, Label], *, need_bytes: int, free_bytes: int | None
    ) -> None:
        """Make room first: requests wait until the new engine is there, or the old one again."""
        _log.info("generation %d does not go beside the old engine: draining first", new.served.generation)
        self.lender.swap(None)
        if not self.lender.wait_until_free(old.seat, timeout_s=self._options.drain_timeout_s):
            self.lender.swap(old)
            raise MemoryAdmissionError(
                f"the new engine takes about {need_bytes >> 20} MiB, {(free_bytes or 0) >> 20} MiB are free beside the"
                f" old one, and its requests did not end within {self._options.drain_timeout_s:g} s"
            )
        old.seat.engine.close()
        try:
            self._load(new, SwapMode.DRAIN_FIRST, old=None, free_bytes=free_bytes)
        except BaseException:
            self.restore()
            raise

    def restore(self) -> None:
        """Load again what was served last: its engine is gone, or its process died; what fails is an alarm."""
        label = self._last_good
        if label is None:
            return
        try:
            require_intact(label.found.engine, label.folder)
            engine = open_again(label, self._options, on_change=self._changed)
        except Exception as error:
            self.raise_alarm(AlarmKind.DIED, error, generation=label.served.generation)
            return
        old = self.lender.swap(Placed(Seat(engine), label))
        if old is not None:
            self._retire(old.seat, None)
        self.clear_alarm(AlarmKind.DIED)
        _log.info("serving %s again", label.served)

    # -- taking over, and freeing --------------------------------------------------------------------------
    def _take_over(self, seat: Seat[Engine], label: Label, report: SwapReport) -> None:
        old = self.lender.swap(Placed(seat, label))
        self.clear_alarm(AlarmKind.DIED)  # of the engine before, which could not be started again perhaps
        self._last_good = label
        self.swaps += 1
        in_flight = 0 if old is None or old.seat is seat else old.seat.users
        self.last_swap = replace(report, in_flight=in_flight)
        _log.info("serving %s (%s, %.2f s, %d in flight)", label.served, report.mode, report.load_s, in_flight)
        if old is not None and old.seat is not seat:
            self._retire(old.seat, self.last_swap)

    def _retire(self, seat: Seat[Engine], report: SwapReport | None) -> None:
        self._retired.append((seat, report or SwapReport(generation=0, mode=SwapMode.OVERLAP, load_s=0.0)))
        self.lender.wait_until_free(seat, timeout_s=_QUICK_DRAIN_S)
        self.sweep()

    def _changed(self) -> None:
        self.on_change()

    def _look_at_devices(self) -> None:
        """Tell of the instances that are out."""
        current = self.lender.current
        out = [] if current is None else [each for each in current.seat.engine.instances if each.out_since is not None]
        if out:
            said = "; ".join(f"{each.device} {each.uuid}".strip() + f" is out: {each.reason}" for each in out)
            self.raise_alarm(AlarmKind.DEVICE, NotServingError(said, hint="It is tried again by itself."))
        else:
            self.clear_alarm(AlarmKind.DEVICE)

    def sweep(self) -> None:
        """Free the replaced engines that no request is on any more, and tell of instances that are out."""
        self._look_at_devices()
        for entry in [each for each in self._retired if each[0].users == 0]:
            seat, report = entry
            engine = seat.engine
            engine.close()
            freed = engine.is_gone()
            if not freed:
                self.raise_alarm(AlarmKind.NOT_FREED, MemoryAdmissionError("a replaced engine is still in memory"))
            current = self.lender.current
            after = None if current is None else current.seat.engine.read_free_memory()
            if self.last_swap is not None and self.last_swap.generation == report.generation:
                self.last_swap = replace(self.last_swap, freed=freed, memory_after_bytes=after)
            self._retired.remove(entry)  # last: who sees none left sees what came of it

    def close(self) -> None:
        """Free everything: who asks gets an error, who is being answered gets the answer."""
        last = self.lender.close()
        seats = [seat for seat, _ in self._retired] + ([last.seat] if last is not None else [])
        for seat in seats:
            self.lender.wait_until_free(seat, timeout_s=self._options.drain_timeout_s)
            seat.engine.close()
        self._retired.clear()


def kind_of(error: Exception) -> AlarmKind:
    """Return what an error of bringing up is an alarm of."""
    if isinstance(error, SmokeTestError):
        return AlarmKind.SMOKE
    if isinstance(error, (MemoryAdmissionError, MemoryError)):
        return AlarmKind.MEMORY
    return AlarmKind.STORE if isinstance(error, IntegrityError) else AlarmKind.LOAD
