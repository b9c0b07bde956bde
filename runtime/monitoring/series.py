"""What is counted of the requests that one engine answered, or that no engine did."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from modelreg.runtime.requests import RequestOutcome, RequestRecord

BOUNDS_S = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
"""Upper bounds of the latency histogram: 1, 2.5 and 5 of each power of ten from 100 us on."""

QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
"""Those that Triton's summaries have unless it is told otherwise."""

WINDOW_S = 60.0
"""What a summary looks back on; Triton's own default."""

_KEPT = 4096
"""Latencies of a series that are kept for its quantiles: at more than 68 requests a second the window is shorter."""

_SERVERS_FAULT = (RequestOutcome.FAILED, RequestOutcome.REFUSED, RequestOutcome.EXPIRED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Seconds that requests took lately, in all and in their parts."""

    request_s: tuple[float, ...]
    queue_s: tuple[float, ...]
    compute_s: tuple[float, ...]


class Series:
    """Counts of one engine under one name; `observe` may be called by any thread."""

    __slots__ = (
        "_failures",
        "_lock",
        "_recent",
        "answered",
        "buckets",
        "bytes_in",
        "bytes_out",
        "compute_s",
        "executions",
        "queue_s",
        "request_s",
        "rows",
        "touched_s",
    )

    def __init__(self) -> None:
        # Apart from answers, as the hash of an enum's member takes as long as all the rest of a counter.
        self._failures: dict[RequestOutcome, int] = {
            outcome: 0 for outcome in RequestOutcome if outcome is not RequestOutcome.OK
        }
        self.answered = self.rows = self.bytes_in = self.bytes_out = 0
        self.executions = 0
        self.request_s = self.queue_s = self.compute_s = 0.0
        self.buckets = [0] * (len(BOUNDS_S) + 1)
        self.touched_s = time.monotonic()
        self._recent: deque[tuple[float, float, float, float]] = deque(maxlen=_KEPT)
        self._lock = threading.Lock()

    def observe(self, record: RequestRecord) -> None:
        """Count a request. Latencies are those of answers: a refusal at once would make a busy server look quick."""
        now_s = time.monotonic()
        with self._lock:
            self.bytes_in += record.bytes_in
            self.bytes_out += record.bytes_out
            self.touched_s = now_s
            if record.served is not None:
                self.executions += record.executions
            if record.outcome is not RequestOutcome.OK:
                self._failures[record.outcome] += 1
                return
            self.answered += 1
            total_s = record.total_s
            self.rows += record.rows
            self.request_s += total_s
            self.queue_s += record.queue_s
            self.compute_s += record.compute_s
            self.buckets[bisect_left(BOUNDS_S, total_s)] += 1
            self._recent.append((now_s, total_s, record.queue_s, record.compute_s))

    @property
    def outcomes(self) -> dict[RequestOutcome, int]:
        """Return how many requests ended how."""
        return {RequestOutcome.OK: self.answered, **self._failures}

    def recent(self, *, now_s: float | None = None) -> Latencies:
        """Return the latencies within the window, at most the last 4096."""
        since_s = (time.monotonic() if now_s is None else now_s) - WINDOW_S
        with self._lock:
            rows = [row for row in self._recent if row[0] >= since_s]
        _, request, queue, compute = zip(*rows, strict=True) if rows else ((), (), (), ())
        return Latencies(request_s=request, queue_s=queue, compute_s=compute)


def quantiles_of(values: Iterable[float], wanted: Iterable[float] = QUANTILES) -> dict[float, float]:
    """Return quantiles that are values that there were, as trtexec has its percentiles; none of nothing. Pure."""
    ordered = sorted(values)
    if not ordered:
        return {}
    last = len(ordered) - 1
    return {quantile: ordered[min(last, -int(-quantile * last // 1))] for quantile in wanted}


def count_faults(outcomes: Mapping[RequestOutcome, int]) -> int:
    """Return how many requests failed by the server's fault; what is invalid or was canceled is the client's. Pure."""
    return sum(outcomes[each] for each in _SERVERS_FAULT)
