"""What a process that serves a channel says: with each answer, about its state, and when something is wrong. Values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from modelreg.registry.clock import iso
from modelreg.registry.errors import ModelregError
from modelreg.registry.manifest import ReleasedEngine
from modelreg.registry.pointers import Pointer
from modelreg.registry.words import Backend, Json, Precision, Word
from modelreg.runtime.turns import ALONE, Turn

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.generic]


class SmokeTestError(ModelregError):
    """A new engine loads, and does not answer as it should."""

    default_hint = "The release was validated elsewhere? Roll back, or build and validate it for this host."


class MemoryAdmissionError(ModelregError):
    """There is no memory for the new engine."""


class NotServingError(ModelregError):
    """There is no engine to answer a request: it is being replaced and nothing came in time, or all is closed."""


class QueueFullError(ModelregError):
    """As many requests wait as may: nothing was begun."""

    default_hint = "Ask again in a moment, more slowly; or raise Batching.max_queue, or add instances."


class DeadlineExceededError(ModelregError):
    """The request's time was over while it waited: it was never run."""


def expired() -> DeadlineExceededError:
    """Return the error of a request whose time was over while it waited."""
    return DeadlineExceededError("the request's time was over before its turn came")


class AlarmKind(Word):
    """What is wrong; in each case the engine that was served goes on, but for `died`."""

    STORE = "store"
    LOAD = "load"
    SMOKE = "smoke"
    MEMORY = "memory"
    DIED = "died"
    DEVICE = "device"
    NOT_FREED = "not-freed"


class SwapMode(Word):
    """How the new engine took over."""

    FIRST = "first"
    OVERLAP = "overlap"
    DRAIN_FIRST = "drain-first"
    SAME_ENGINE = "same-engine"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedEngine:
    """Which engine gave an answer. `digest` is the SHA-256 of its plan, `release` that of the manifest."""

    model: str
    channel: str
    version: int
    generation: int
    release: str
    target: str
    backend: Backend
    precision: Precision
    digest: str

    def to_json(self) -> Json:
        """Return it as JSON."""
        return {
            "model": self.model,
            "channel": self.channel,
            "version": self.version,
            "generation": self.generation,
            "release": self.release,
            "target": self.target,
            "backend": str(self.backend),
            "precision": str(self.precision),
            "digest": self.digest,
        }

    def __str__(self) -> str:
        return (
            f"{self.model}@{self.channel} version {self.version}, generation {self.generation}"
            f" ({self.target} {self.precision})"
        )


def describe_served(pointer: Pointer, engine: ReleasedEngine) -> ServedEngine:
    """Return who answers when `engine` is served at `pointer`."""
    return ServedEngine(
        model=pointer.model,
        channel=pointer.channel,
        version=pointer.version,
        generation=pointer.generation,
        release=pointer.release,
        target=engine.target,
        backend=engine.backend,
        precision=engine.precision,
        digest=engine.plan.digest,
    )


class Answer(Mapping[str, "Array"]):
    """The outputs of one request by name, the engine that gave every one of them, and how its turn came."""

    __slots__ = ("outputs", "served", "turn")

    def __init__(self, outputs: dict[str, Array], served: ServedEngine, turn: Turn = ALONE) -> None:
        self.outputs = outputs
        self.served = served
        self.turn = turn

    def __getitem__(self, name: str) -> Array:
        return self.outputs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.outputs)

    def __len__(self) -> int:
        return len(self.outputs)

    @property
    def generation(self) -> int:
        """Return the channel's generation that answered."""
        return self.served.generation

    @property
    def release(self) -> str:
        """Return the digest of its release."""
        return self.served.release

    @property
    def precision(self) -> Precision:
        """Return its precision."""
        return self.served.precision

    @property
    def digest(self) -> str:
        """Return the digest of its plan."""
        return self.served.digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """Something that a person should look at. `generation` is the one that is not served because of it, if any."""

    kind: AlarmKind
    message: str
    hint: str
    generation: int | None
    at: datetime

    def to_json(self) -> Json:
        """Return it as JSON."""
        return {
            "kind": str(self.kind),
            "message": self.message,
            "hint": self.hint,
            "generation": self.generation,
            "at": iso(self.at),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapReport:
    """
    How one swap went.

    Attributes:
        generation: The one that is served since.
        mode: How it took over.
        load_s: Seconds to try, load and warm up the engine.
        in_flight: Requests that were on the old engine at that moment, and finished there.
        freed: Whether the old engine is gone: its process has ended, or its session was destroyed. None as long as a
            request is on it, and where there was none.
        memory_before_bytes: What was free before the new engine was loaded, of the device's memory for a GPU, else of
            the host's; `memory_after_bytes` when the old one was freed. None where nobody can tell.
    """

    generation: int
    mode: SwapMode
    load_s: float
    in_flight: int = 0
    freed: bool | None = None
    memory_before_bytes: int | None = None
    memory_after_bytes: int | None = None

    def to_json(self) -> Json:
        """Return it as JSON."""
        return {
            "generation": self.generation,
            "mode": str(self.mode),
            "load_s": self.load_s,
            "in_flight": self.in_flight,
            "freed": self.freed,
            "memory_before_bytes": self.memory_before_bytes,
            "memory_after_bytes": self.memory_after_bytes,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceState:
    """
    A look at one instance of a group.

    Attributes:
        device: What it runs on: `cpu`, or `GPU 0` by its number among those that this process sees.
        uuid: The device's; empty for the CPU, and where nobody asked.
        pid: The process that it runs in; None while it is out.
        in_flight: Requests that it has now, those that wait for their turn there among them.
        done: Requests that it answered; `failed`: that it did not, for whatever reason.
        out_since: Since when it gets no requests; None while it does.
        reason: Why it is out, or is not used at all.
    """

    device: str
    uuid: str = ""
    pid: int | None = None
    in_flight: int = 0
    done: int = 0
    failed: int = 0
    out_since: datetime | None = None
    reason: str = ""

    @property
    def is_used(self) -> bool:
        """Return whether it is an instance, be it out at this moment, and no device that is left alone."""
        return self.out_since is not None or not self.reason

    def to_json(self) -> Json:
        """Return it as JSON."""
        return {
            "device": self.device,
            "uuid": self.uuid,
            "pid": self.pid,
            "in_flight": self.in_flight,
            "done": self.done,
            "failed": self.failed,
            "out_since": None if self.out_since is None else iso(self.out_since),
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveState:
    """
    A look at what is served.

    Attributes:
        served: What answers now; None while an engine is replaced drain-first, and when all is closed.
        store_generation: The newest generation that was seen in the store.
        alarms: What is wrong now, by kind; empty when all is well.
        in_flight: Requests under way.
        swaps: How many there were, the first load among them; `last_swap` is the newest.
        retired: Engines that were replaced and still have a request on them.
        waiting: Requests in the queue of dynamic batching; they count as under way too.
        instances: Those of an instance group, and the devices that it does not use; empty where there is no group.
    """

    served: ServedEngine | None
    store_generation: int | None
    alarms: tuple[Alarm, ...]
    in_flight: int
    swaps: int
    last_swap: SwapReport | None
    retired: int
    waiting: int = 0
    instances: tuple[InstanceState, ...] = ()

    @property
    def is_current(self) -> bool:
        """Return whether the newest generation that is known is the one that answers."""
        return self.served is not None and self.served.generation == self.store_generation

    def to_json(self) -> Json:
        """Return it as JSON."""
        return {
            "served": None if self.served is None else self.served.to_json(),
            "store_generation": self.store_generation,
            "is_current": self.is_current,
            "alarms": [alarm.to_json() for alarm in self.alarms],
            "in_flight": self.in_flight,
            "swaps": self.swaps,
            "last_swap": None if self.last_swap is None else self.last_swap.to_json(),
            "retired": self.retired,
            "waiting": self.waiting,
            "instances": [each.to_json() for each in self.instances],
        }


def count_instances(state: ActiveState) -> int:
    """Return how many instances a model has, those that are out among them; 1 where it is no group."""
    return sum(each.is_used for each in state.instances) or 1
