"""Watch what a process serves: count its requests, look at it once a second, and say how it is.

with Monitor({"resnet50": model}) as monitor, monitor.serve_http(9400):
    served = monitor.wrap("resnet50")
    answer = served.infer({"image": images})
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from modelreg.config.health_limits import HealthLimits, load_health_limits
from modelreg.registry.clock import utc_now
from modelreg.registry.errors import ModelregError
from modelreg.registry.words import Json
from modelreg.runtime.monitoring import gauges
from modelreg.runtime.monitoring.devices import DeviceReader
from modelreg.runtime.monitoring.documents import describe
from modelreg.runtime.monitoring.facts import Facts, ModelFacts
from modelreg.runtime.monitoring.families import CONTENT_TYPE, Family, write_text
from modelreg.runtime.monitoring.health import Finding, HealthReport, HealthWatch
from modelreg.runtime.monitoring.host_load import HostReader
from modelreg.runtime.monitoring.metrics import RequestMetrics
from modelreg.runtime.monitoring.tracking import ModelTracker
from modelreg.runtime.requests import RequestRecord
from modelreg.runtime.serving import ActiveState, Answer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from modelreg.runtime.active import ActiveModel
    from modelreg.runtime.active_async import AsyncActiveModel
    from modelreg.runtime.monitoring.exporter import Exporter
    from modelreg.runtime.monitoring.parity import OnlineParity
    from modelreg.runtime.monitoring.wrapped import AsyncMonitoredModel, MonitoredModel

    Array = NDArray[np.generic]

_log = logging.getLogger("modelreg.runtime")

_STALE_LOOKS = 5


class Watched(Protocol):
    """What says how it is: `ActiveModel` and `AsyncActiveModel` do."""

    def state(self) -> ActiveState:
        """Return a look at what is served."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """One look at everything."""

    facts: Facts
    report: HealthReport
    at_s: float


class Monitor:
    """
    Watches some models. Every method may be called by any thread.

    Args:
        models: What is served, by the name that it is asked under.
        limits: Of the health rules; None: the settings `health.…` of the defaults and the environment.
        parity: Online parity of some of the models, by name; started and stopped with the monitor.
        pending: Returns how many requests wait for their turn, by model; None where nobody knows.
        period_s: How often devices, host and models are looked at.
        devices: Reads the GPUs; None: those that CUDA_VISIBLE_DEVICES leaves to this process.
    """

    def __init__(
        self,
        models: Mapping[str, Watched],
        *,
        limits: HealthLimits | None = None,
        parity: Mapping[str, OnlineParity] | None = None,
        pending: Callable[[], Mapping[str, int]] | None = None,
        period_s: float = 1.0,
        devices: DeviceReader | None = None,
    ) -> None:
        self._models = dict(models)
        self.parity = dict(parity or {})
        if unknown := self.parity.keys() - self._models.keys():
            raise ValueError(f"parity of {min(unknown)!r}, which is not served")
        self.requests = RequestMetrics(self._models)
        self._trackers = {name: ModelTracker(name) for name in self._models}
        self._health = HealthWatch(load_health_limits() if limits is None else limits)
        self._pending, self._period_s = pending, period_s
        self._devices = devices or DeviceReader(visible=os.environ.get("CUDA_VISIBLE_DEVICES"))
        self._host = HostReader()
        self._last: _Look | None = None
        self._looking = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    # -- what is told --------------------------------------------------------------------------------------
    def observe(self, record: RequestRecord) -> None:
        """Count a request that has ended: `RequestObserver`."""
        self.requests.observe(record)

    def offer(self, model: str, inputs: Mapping[str, Array], answer: Answer) -> None:
        """Offer an answer to online parity, which takes a share of them; costs next to nothing else."""
        parity = self.parity.get(model)
        if parity is not None:
            parity.offer(answer.served, inputs, answer.outputs)

    def wrap(self, name: str) -> MonitoredModel:
        """Return the `ActiveModel` of that name with its calls counted."""
        from modelreg.runtime.monitoring.wrapped import MonitoredModel  # noqa: PLC0415 - a server needs none

        model: ActiveModel = self._models[name]  # type: ignore[assignment]
        return MonitoredModel(model, name=name, monitor=self)

    def wrap_async(self, name: str) -> AsyncMonitoredModel:
        """Return the `AsyncActiveModel` of that name with its calls counted."""
        from modelreg.runtime.monitoring.wrapped import AsyncMonitoredModel  # noqa: PLC0415 - as above

        model: AsyncActiveModel = self._models[name]  # type: ignore[assignment]
        return AsyncMonitoredModel(model, name=name, monitor=self)

    # -- what is said --------------------------------------------------------------------------------------
    def render(self) -> tuple[bytes, str]:
        """Return all metrics in Prometheus' text format, and its content type."""
        return write_text(self.families()), CONTENT_TYPE

    def families(self) -> Iterator[Family]:
        """Yield all metrics as values."""
        look = self._look()
        self._introduce(look.facts.models)
        yield from self.requests.families()
        pairs = [(self._fresh(each), self._trackers[each.name]) for each in look.facts.models]
        yield from gauges.model_families(pairs, None if self._pending is None else self._pending())
        yield from gauges.parity_families(self.parity)
        yield from gauges.device_families(look.facts.devices.readings)
        yield from gauges.host_families(look.facts.host)
        yield from gauges.health_families(look.report)

    @property
    def health(self) -> HealthReport:
        """Return how all is, by the last look."""
        return self._look().report

    def document(self) -> Json:
        """Return state and health as one JSON document: what `modelreg top` shows."""
        look = self._look()
        return describe(
            look.facts,
            look.report,
            trackers=self._trackers,
            totals={name: self.requests.totals(name) for name in self._models},
            latencies={name: self.requests.latencies(name) for name in self._models},
            parity=self.parity,
            pending=None if self._pending is None else self._pending(),
        )

    def serve_http(self, port: int, *, host: str = "127.0.0.1") -> Exporter:
        """
        Serve `/metrics` and the document over HTTP, for a process without a server of its own; close it, or use `with`.

        Args:
            port: 0 for any that is free; `Exporter.url` says which.
            host: The address to listen on; `0.0.0.0` for a Prometheus on another host. There is no authentication.

        Raises:
            ModelregError: The port cannot be had.
        """
        from modelreg.runtime.monitoring.exporter import Exporter  # noqa: PLC0415 - a server has its own

        return Exporter(self, host=host, port=port)

    # -- looking -------------------------------------------------------------------------------------------
    def start(self) -> Monitor:
        """Begin to look, in a thread."""
        for parity in self.parity.values():
            parity.start()
        if self._thread is None:
            self._closing.clear()
            self._thread = threading.Thread(target=self._run, name="modelreg monitor", daemon=True)
            self._thread.start()
        return self

    def stop(self) -> None:
        """End; what was counted can still be asked for."""
        thread, self._thread = self._thread, None
        self._closing.set()
        if thread is not None:
            thread.join()
        for parity in self.parity.values():
            parity.stop()
        self._devices.close()

    def __enter__(self) -> Monitor:
        return self.start()

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.stop()

    def look(self) -> HealthReport:
        """Look at everything now, and judge it; the thread does it by itself."""
        with self._looking:
            now_s = time.monotonic()
            models = tuple(self._look_at(name, now_s=now_s) for name in self._models)
            self._introduce(models)
            self.requests.prune()
            facts = Facts(models=models, devices=self._devices.read(), host=self._host.read())
            before = self._last
            report = self._health.judge(facts, now_s=now_s, at=utc_now())
            self._last = _Look(facts=facts, report=report, at_s=now_s)
        _tell_changes(() if before is None else before.report.findings, report.findings)
        return report

    def _run(self) -> None:
        while True:
            try:
                self.look()
            except Exception:  # a mistake of ours must not end the watching for good
                _log.exception("the monitor could not look")
            if self._closing.wait(self._period_s):
                return

    def _look(self) -> _Look:
        """Return the last look; a new one where there is none that is fresh: nobody started, or the thread hangs."""
        if self._last is None or time.monotonic() - self._last.at_s > _STALE_LOOKS * self._period_s:
            self.look()
        assert self._last is not None
        return self._last

    def _look_at(self, name: str, *, now_s: float) -> ModelFacts:
        state = self._ask(name)
        totals = self.requests.totals(name)
        parity = self.parity.get(name)
        return self._trackers[name].look(
            state,
            requests=totals.requests,
            faults=totals.faults,
            now_s=now_s,
            parity=() if parity is None or state is None else parity.facts(state.served),
        )

    def _ask(self, name: str) -> ActiveState | None:
        try:
            return self._models[name].state()
        except ModelregError:  # an asynchronous model that is not open
            return None

    def _fresh(self, facts: ModelFacts) -> ModelFacts:
        """Return a model's facts with its state of this moment: who asks after a swap is told of it."""
        return replace(facts, state=self._ask(facts.name))

    def _introduce(self, models: tuple[ModelFacts, ...]) -> None:
        for each in models:
            if each.state is not None and each.state.served is not None:
                self.requests.introduce(each.name, each.state.served)


def _tell_changes(before: tuple[Finding, ...], now: tuple[Finding, ...]) -> None:
    """Write to the log what was found, and what is over."""
    known = {(each.rule, each.subject, each.part, each.state) for each in before}
    found = {(each.rule, each.subject, each.part, each.state) for each in now}
    for each in now:
        if (each.rule, each.subject, each.part, each.state) not in known:
            _log.warning("%s: %s", each.state, each)
    for each in before:
        if (each.rule, each.subject, each.part, each.state) not in found:
            _log.info("no more: %s: %s", each.state, each)
