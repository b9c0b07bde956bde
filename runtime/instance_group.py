"""Several instances of one engine, on one device or on many, that answer as one engine.

A request goes to the instance with the fewest. One that fails is taken out and opened again in the background; the
request that it had is run once more elsewhere, since inference changes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING

from modelreg.registry.errors import ModelregError, WorkerError
from modelreg.registry.words import Json
from modelreg.runtime.devices import Device
from modelreg.runtime.dispatching import choose_instance
from modelreg.runtime.engines import Engine, is_dead
from modelreg.runtime.instances import Instance
from modelreg.runtime.runner import RunError
from modelreg.runtime.serving import InstanceState

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from modelreg.registry.toolchains.pieces import Feed

    Array = NDArray[np.generic]

_TRIES = 2
"""A request may end this many processes, and no more: it may be the reason that they end."""


class RequestLostError(RunError):
    """The instance that had the request died over it, and the group lives on."""


def is_refusal(error: BaseException) -> bool:
    """Return whether the backend refuses the inputs of a request, and nothing else is wrong. Pure."""
    return isinstance(error, RunError) and not isinstance(error, RequestLostError)


class InstanceGroup:
    """An engine made of instances; one that is out is opened again by itself."""

    waiting = 0

    def __init__(
        self,
        devices: Sequence[Device],
        open_engine: Callable[[Device], Engine],
        *,
        warm: Callable[[Engine], None],
        unused: Sequence[tuple[Device, str]] = (),
        needed: Collection[str] | None = None,
        retry_s: float = 5.0,
        on_change: Callable[[], None],
    ) -> None:
        """
        Open all instances at a time.

        Args:
            devices: The device of each instance; the same one may be there several times.
            open_engine: Loads the engine on a device; called by the instance's thread, now and after a failure.
            warm: Makes an engine ready that was opened again; those of now the caller tries itself.
            unused: Devices that the engine does not suit, each with the reason, for the state.
            needed: Names of the devices that must come up; None: one of all.
            retry_s: When a failed instance is tried again at first.
            on_change: Called, by any thread, when an instance is taken out or is back.

        Raises:
            ModelregError: No instance can be opened, or one on a needed device cannot.
        """
        self._lock = threading.Lock()
        self._last = -1
        self._on_change = on_change
        self._unused = tuple(InstanceState(device=each.name, uuid=each.uuid, reason=why) for each, why in unused)
        self._instances = [
            Instance(device, partial(open_engine, device), warm, retry_s=retry_s, on_change=on_change)
            for device in devices
        ]
        try:
            self._require(needed)
        except BaseException:
            self.close()
            raise

    def _require(self, needed: Collection[str] | None) -> None:
        engines = [instance.wait() for instance in self._instances]
        missing = [each for each in self._instances if each.error is not None]
        fatal = [each for each in missing if needed is not None and each.device.name in needed]
        if not any(engines) or fatal:
            error = (fatal or missing)[0].error
            assert error is not None
            raise error
        self.profiles: Sequence[Json] = next(engine.profiles for engine in engines if engine is not None)

    @property
    def size(self) -> int:
        """Return how many instances there are, those that are out among them."""
        return len(self._instances)

    @property
    def members(self) -> list[Engine]:
        """Return the engines of the instances that are there."""
        return [engine for instance in self._instances if (engine := instance.engine) is not None]

    @property
    def instances(self) -> Sequence[InstanceState]:
        """Return a look at each instance, then the devices that are not used."""
        with self._lock:
            return (*(instance.state for instance in self._instances), *self._unused)

    def run(self, inputs: Feed, *, until_s: float | None = None) -> dict[str, Array]:
        """
        Return every output, of whichever instance.

        Raises:
            RunError: The backend refuses the inputs; or, as `RequestLostError`, two instances died over them.
            DeadlineExceededError: Its turn did not come in time.
            WorkerError: No instance is left.
        """
        return self._run(inputs, until_s=until_s, tries=_TRIES)

    def run_once(self, inputs: Feed, *, until_s: float | None = None) -> dict[str, Array]:
        """Return the same, but try no other instance where one dies: a batch is taken apart instead."""
        return self._run(inputs, until_s=until_s, tries=1)

    def _run(self, inputs: Feed, *, until_s: float | None, tries: int) -> dict[str, Array]:
        while True:
            instance, engine = self._take()
            try:
                outputs = engine.run(inputs, until_s=until_s)
            except ModelregError as error:
                dead = is_dead(error)
                left = self._give_back(instance, engine, dead=error if dead else None)
                tries -= 1
                if not dead or not left:
                    raise
                if not tries:
                    raise RequestLostError(f"{instance.device.name} failed over this request: {error}") from error
            except BaseException:
                self._give_back(instance, engine, dead=None)
                raise
            else:
                with self._lock:
                    instance.in_flight -= 1
                    instance.done += 1
                return outputs

    def _take(self) -> tuple[Instance, Engine]:
        with self._lock:
            loads = [None if each.engine is None else each.in_flight for each in self._instances]
            chosen = choose_instance(loads, after=self._last)
            instance = None if chosen is None else self._instances[chosen]
            engine = None if instance is None else instance.engine
            if chosen is None or instance is None or engine is None:
                raise WorkerError("no instance of this group is left")
            self._last = chosen
            instance.in_flight += 1
            return instance, engine

    def _give_back(self, instance: Instance, engine: Engine, *, dead: Exception | None) -> int:
        """Count a request that failed; return how many instances are there."""
        with self._lock:
            instance.in_flight -= 1
            instance.failed += 1
            is_news = dead is not None and instance.take_out(engine, dead)
            left = sum(each.engine is not None for each in self._instances)
        if is_news:
            self._on_change()
        return left

    def read_free_memory(self) -> int | None:
        """Return the free bytes of the device that has the fewest."""
        found = [free for member in self.members if (free := member.read_free_memory()) is not None]
        return min(found, default=None)

    def close(self) -> None:
        """Free every instance, all at a time."""
        for instance in self._instances:
            instance.begin_close()
        for instance in self._instances:
            instance.close()

    def is_gone(self) -> bool:
        """Return whether all that they had is freed."""
        return all(instance.is_gone() for instance in self._instances)
