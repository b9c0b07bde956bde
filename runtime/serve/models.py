"""What is served, under which names. Why these names: docs/decisions/0053-names-of-served-models.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from modelreg.registry.contents import Signature
from modelreg.runtime.serve.admitting import Admission
from modelreg.runtime.serve.limits import Limits
from modelreg.runtime.serve.problems import NoEngineError, UnknownModelError
from modelreg.runtime.serve.statistics import Statistics
from modelreg.runtime.serving import ActiveState, Answer, NotServingError, ServedEngine, count_instances

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.generic]


class Servable(Protocol):
    """What answers: an `AsyncActiveModel` that is open."""

    @property
    def signature(self) -> Signature:
        """Return what it takes and gives."""
        ...

    @property
    def is_batched(self) -> bool:
        """Return whether requests wait in the queue of dynamic batching, which says itself when it is full."""
        ...

    async def infer(self, inputs: Mapping[str, Array], *, timeout_s: float | None = None) -> Answer:
        """Return every output; a request that still waits after that time is not run."""
        ...

    def state(self) -> ActiveState:
        """Return a look at it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """
    One channel, served.

    Attributes:
        name: What clients call it.
        reference: NAME@CHANNEL, which they may call it too.
        active: What answers.
        admission: The places at its engine.
        statistics: Its counts.
    """

    name: str
    reference: str
    active: Servable
    admission: Admission
    statistics: Statistics

    @property
    def served(self) -> ServedEngine | None:
        """Return the engine that answers now; None while one is replaced, and when all is closed."""
        try:
            return self.active.state().served
        except NotServingError:
            return None

    @property
    def waiting(self) -> int:
        """Return how many requests wait for their turn: for a place, and in the queue of dynamic batching."""
        try:
            return self.admission.waiting + self.active.state().waiting
        except NotServingError:
            return self.admission.waiting

    def require_version(self, version: str | None) -> ServedEngine:
        """
        Return the engine that answers now, which must be of the version that a URL names.

        Raises:
            NoEngineError: There is none at this moment.
            UnknownModelError: It is of another version.
        """
        served = self.served
        if served is None:
            raise NoEngineError(f"{self.name} has no engine at this moment")
        require_served(version, served, name=self.name)
        return served


def require_served(version: str | None, served: ServedEngine, *, name: str) -> None:
    """Raise UnknownModelError where a URL names another version than is served."""
    if version is not None and version != str(served.version):
        raise UnknownModelError(
            f"{name} has no version {version[:40]!r} here", hint=f"Version {served.version} is served."
        )


class ServedModels:
    """Every served model; the order is that of the command line."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self._models = tuple(models)
        self._by_name = {model.reference: model for model in models} | {model.name: model for model in models}

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models)

    def find(self, name: str) -> ServedModel:
        """Return the model of a name; raises UnknownModelError."""
        found = self._by_name.get(name)
        if found is None:
            known = ", ".join(model.name for model in self._models)
            raise UnknownModelError(f"there is no model {name[:60]!r}; this server has {known}")
        return found


def name_models(references: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """
    Return the name of each served (model, channel): NAME for the first channel of a model, NAME@CHANNEL for another.

    Raises:
        ValueError: One is there twice.
    """
    if len(set(references)) != len(references):
        raise ValueError("a channel is served once")
    names: list[str] = []
    for model, channel in references:
        names.append(f"{model}@{channel}" if model in names else model)
    return tuple(names)


def serve_models(actives: Mapping[str, Servable], limits: Limits) -> list[ServedModel]:
    """Return what serves each open model, by NAME@CHANNEL in order."""
    pairs = [(model, channel) for model, _, channel in (reference.partition("@") for reference in actives)]
    return [
        ServedModel(
            name=name,
            reference=reference,
            active=active,
            admission=admit(active, limits),
            statistics=Statistics(),
        )
        for name, (reference, active) in zip(name_models(pairs), actives.items(), strict=True)
    ]


def admit(active: Servable, limits: Limits) -> Admission:
    """
    Return the places at an open model's engine: `limits.concurrency`, and at least one for each instance.

    Where requests are batched there is a place for whatever is connected: what the batcher shall put together must
    reach its queue, and that queue has the limit.
    """
    if active.is_batched:
        return Admission(concurrency=limits.max_connections, max_queue=0)
    return Admission(concurrency=max(limits.concurrency, count_instances(active.state())), max_queue=limits.max_queue)
