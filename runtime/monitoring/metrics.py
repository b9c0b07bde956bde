"""Count requests, and tell of them in the metrics of Triton Inference Server, so that its dashboards work.

Names, types and the labels `model`, `version` and `reason` are those of Triton's docs/user_guide/metrics.md; the labels
channel, generation, release, precision and digest are ours. Who served a request is part of the series, so a promote
begins new ones: those of all but the last few generations are dropped, and the number of series stays bounded.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from modelreg.runtime.monitoring.families import Family, MetricKind
from modelreg.runtime.monitoring.series import BOUNDS_S, Latencies, Series, count_faults, quantiles_of
from modelreg.runtime.requests import RequestOutcome, RequestRecord
from modelreg.runtime.serving import ServedEngine

KEPT_GENERATIONS = 3
"""Of each model's channel; the one that is served among them."""
KEPT_S = 60.0
"""A series of an older generation stays for so long after its last request: a scrape must see its end."""
OTHER = "(other)"
"""The model of a request for a name that is not served here: names come from clients, and there is no end of them."""

_REASONS = {
    RequestOutcome.REFUSED: "REJECTED",
    RequestOutcome.EXPIRED: "REJECTED",
    RequestOutcome.CANCELED: "CANCELED",
    RequestOutcome.FAILED: "BACKEND",
    RequestOutcome.INVALID: "OTHER",
}
"""Triton's reasons of a failure: it rejects what waits too long, and what finds the queue full."""

_SHORT = 12
_MOST_KNOWN = 256


@dataclass(frozen=True, slots=True)
class _Key:
    model: str
    served: ServedEngine | None

    @property
    def labels(self) -> dict[str, str]:
        served = self.served
        if served is None:
            return {"model": self.model}
        return {"model": self.model, **label(served)}


def label(served: ServedEngine) -> dict[str, str]:
    """Return the labels of an engine, without the model's."""
    return {
        "version": str(served.version),
        "channel": served.channel,
        "generation": str(served.generation),
        "release": served.release[:_SHORT],
        "precision": str(served.precision),
        "digest": served.digest[:_SHORT],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What was counted of a model by now, whoever served it."""

    outcomes: Mapping[RequestOutcome, int]
    rows: int = 0
    executions: int = 0

    @property
    def requests(self) -> int:
        """Return how many requests there were."""
        return sum(self.outcomes.values())

    @property
    def answered(self) -> int:
        """Return how many were answered."""
        return self.outcomes[RequestOutcome.OK]

    @property
    def faults(self) -> int:
        """Return how many failed by the server's fault."""
        return count_faults(self.outcomes)

    def plus(self, series: Series) -> Totals:
        """Return the totals with those of a series."""
        return Totals(
            outcomes={outcome: number + series.outcomes[outcome] for outcome, number in self.outcomes.items()},
            rows=self.rows + series.rows,
            executions=self.executions + series.executions,
        )


_NOTHING = Totals(outcomes=dict.fromkeys(RequestOutcome, 0))


class RequestMetrics:
    """
    Counts requests. `observe` costs some 2 us, and may be called by any thread.

    Args:
        names: What is served here; requests for other names are counted together.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._series: dict[_Key, Series] = {}
        # A served engine is one object as long as it serves: its identity is found in a tenth of the time of its hash.
        self._known: dict[tuple[str, int], tuple[ServedEngine, Series]] = {}
        self._ended: dict[str, Totals] = {}
        self._lock = threading.Lock()

    def observe(self, record: RequestRecord) -> None:
        """Count a request that has ended."""
        self._find(record.model, record.served).observe(record)

    def introduce(self, model: str, served: ServedEngine) -> None:
        """Begin the series of an engine with zeros: a rate needs a value from before the first request."""
        self._find(model, served)

    def _find(self, model: str, served: ServedEngine | None) -> Series:
        known = self._known.get((model, id(served)))
        if known is not None and known[0] is served:
            return known[1]
        key = _Key(model if model in self._names else OTHER, served)
        with self._lock:
            series = self._series.setdefault(key, Series())
            if served is not None:
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                self._known[model, id(served)] = (served, series)
        return series

    def prune(self, *, now_s: float | None = None) -> None:
        """Drop the series of generations that are long over; what they add up to stays in `totals`."""
        now_s = time.monotonic() if now_s is None else now_s
        with self._lock:
            for key in choose_over({key: each.touched_s for key, each in self._series.items()}, now_s=now_s):
                self._ended[key.model] = self._ended.get(key.model, _NOTHING).plus(self._series.pop(key))
                self._known.clear()

    def totals(self, model: str) -> Totals:
        """Return what was counted of a model, its former generations included."""
        with self._lock:
            found, totals = self._of(model), self._ended.get(model, _NOTHING)
        for series in found:
            totals = totals.plus(series)
        return totals

    def latencies(self, model: str) -> Latencies:
        """Return the latencies of a model's last minute, whoever served it."""
        with self._lock:
            found = self._of(model)
        recent = [series.recent() for series in found]
        names = ("request_s", "queue_s", "compute_s")
        return Latencies(**{name: tuple(each for one in recent for each in getattr(one, name)) for name in names})

    def _of(self, model: str) -> list[Series]:
        return [series for key, series in self._series.items() if key.model == model]

    def families(self) -> Iterator[Family]:
        """Return what was counted, as metrics."""
        with self._lock:
            kept = list(self._series.items())
        by_engine = [(key.labels, series) for key, series in kept if key.served is not None]
        yield from _counts([(key.labels, series) for key, series in kept], by_engine)
        yield from _durations(by_engine)


def choose_over(touched_s: Mapping[_Key, float], *, now_s: float) -> list[_Key]:
    """
    Return the series that can go: neither of the last generations of their model's channel, nor used of late. Pure.

    Args:
        touched_s: When each series was last used.
        now_s: The time by the same clock.
    """
    generations: dict[tuple[str, str], set[int]] = {}
    for key in touched_s:
        if key.served is not None:
            generations.setdefault((key.model, key.served.channel), set()).add(key.served.generation)
    return [
        key
        for key, used_s in touched_s.items()
        if key.served is not None
        and key.served.generation not in sorted(generations[key.model, key.served.channel])[-KEPT_GENERATIONS:]
        and now_s - used_s >= KEPT_S
    ]


_Found = list[tuple[dict[str, str], Series]]


def _counts(found: _Found, by_engine: _Found) -> Iterator[Family]:
    success = Family("nv_inference_request_success", MetricKind.COUNTER, "Requests that were answered.")
    failure = Family("nv_inference_request_failure", MetricKind.COUNTER, "Requests that failed, by Triton's reason.")
    outcomes = Family("modelreg_requests_total", MetricKind.COUNTER, "Requests by how they ended.")
    rows = Family("nv_inference_count", MetricKind.COUNTER, "Samples of the requests that were answered.")
    batches = Family("nv_inference_exec_count", MetricKind.COUNTER, "Executions of the engine.")
    taken = Family("modelreg_request_bytes_total", MetricKind.COUNTER, "Bytes of requests.")
    given = Family("modelreg_response_bytes_total", MetricKind.COUNTER, "Bytes of answers.")
    for labels, series in found:
        failed = dict.fromkeys(_REASONS.values(), 0)
        for outcome, number in series.outcomes.items():
            outcomes.add({**labels, "outcome": str(outcome)}, number)
            if outcome in _REASONS:
                failed[_REASONS[outcome]] += number
        for reason, number in failed.items():
            failure.add({**labels, "reason": reason}, number)
        taken.add(labels, series.bytes_in)
        given.add(labels, series.bytes_out)
    for labels, series in by_engine:
        success.add(labels, series.answered)
        rows.add(labels, series.rows)
        batches.add(labels, series.executions)
    yield from (success, failure, outcomes, rows, batches, taken, given)


def _durations(by_engine: _Found) -> Iterator[Family]:
    parts = {
        "request": ("Time from a request's first byte to its answer", "request_s"),
        "queue": ("Time that requests waited for their turn", "queue_s"),
        "compute_infer": ("Time that the engine took", "compute_s"),
    }
    recent = [series.recent() for _, series in by_engine]
    for name, (text, field) in parts.items():
        duration = Family(f"nv_inference_{name}_duration_us", MetricKind.COUNTER, f"{text}, in microseconds.")
        summary = Family(
            f"nv_inference_{name}_summary_us", MetricKind.SUMMARY, f"{text}, in microseconds; quantiles of a minute."
        )
        for (labels, series), lately in zip(by_engine, recent, strict=True):
            total_us = getattr(series, field) * 1e6
            duration.add(labels, total_us)
            quantiles_us = {part: value * 1e6 for part, value in quantiles_of(getattr(lately, field)).items()}
            summary.add_summary(labels, quantiles_us, count=series.answered, total=total_us)
        yield from (duration, summary)
    histogram = Family("modelreg_request_duration_seconds", MetricKind.HISTOGRAM, f"{parts['request'][0]}, in seconds.")
    for labels, series in by_engine:
        histogram.add_histogram(labels, BOUNDS_S, list(series.buckets), series.request_s)
    yield histogram
