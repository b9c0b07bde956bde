"""What trtexec says of many runs, in its words: min, max, mean, median, percentiles, throughput. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelreg.registry.words import Json, Word

Array = NDArray[Any]

MOST_SAMPLES = 10_000
"""Runs that are kept of one boundary: 40 kB, and enough for any percentile that is told."""
_BINS = 40
_ENQUEUE_PART = 0.8
_UNSTABLE = 0.025
_BUSY = 10.0
_FEW_RUNS = 100


class Boundary(Word):
    """From where to where a run is timed; trtexec's words, and `host` for what has no other clock."""

    HOST = "host"
    ENQUEUE = "enqueue"
    H2D = "h2d"
    GPU_COMPUTE = "gpu-compute"
    D2H = "d2h"
    LATENCY = "latency"


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """
    Milliseconds of one run, over many.

    Attributes:
        boundary: What a run is.
        runs: How many runs.
    """

    boundary: Boundary
    runs: int
    min_ms: float
    max_ms: float
    mean_ms: float
    median_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float

    def to_json(self) -> Json:
        """Return the milliseconds as JSON."""
        names = ("min_ms", "max_ms", "mean_ms", "median_ms", "p90_ms", "p95_ms", "p99_ms")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """
    Everything that was measured of one engine at one batch size.

    Attributes:
        batch: Samples of one query.
        boundaries: The figures of each boundary; the one that tables show comes first.
        samples: Milliseconds by boundary, shape (queries,).
        wall_s: Seconds of the host from the first query that counts to the end of the last.
        told: What the process says of how it ran: streams, graph, transfers, provider.
    """

    batch: int
    boundaries: tuple[Latency, ...]
    samples: Mapping[Boundary, Array]
    wall_s: float
    told: Json

    @property
    def shown(self) -> Latency:
        """Return the boundary that tables show."""
        return self.boundaries[0]

    @property
    def queries_per_s(self) -> float:
        """Return trtexec's throughput: queries over the wall time, whatever overlapped."""
        return self.shown.runs / self.wall_s

    @property
    def throughput(self) -> float:
        """Return samples a second: trtexec's throughput times the batch, which trtexec does not count."""
        return self.queries_per_s * self.batch

    def figures(self) -> Json:
        """Return what a registry keeps of it, beside the runs."""
        return {
            "boundaries": {str(each.boundary): each.to_json() for each in self.boundaries},
            "queries": self.shown.runs,
            "wall_s": self.wall_s,
            "queries_per_s": self.queries_per_s,
            "throughput": self.throughput,
            "told": self.told,
        }


def measure(samples: Mapping[Boundary, Array], *, batch: int, wall_s: float, told: Json) -> Measurement:
    """
    Return the figures of runs that were timed at several boundaries.

    Args:
        samples: Milliseconds by boundary, each of shape (queries,), at least one; what tables show comes first.
        batch: Samples of a query.
        wall_s: Seconds that all of them took together.
        told: What the process says of how it ran.
    """
    return Measurement(
        batch=batch,
        boundaries=tuple(summarise(times, boundary=boundary) for boundary, times in samples.items()),
        samples=samples,
        wall_s=wall_s,
        told=told,
    )


def summarise(times_ms: Array, *, boundary: Boundary) -> Latency:
    """
    Return the figures of some runs. A percentile is a run that there was, never one between two: it leaves out a
    hundredth (fifth, tenth) of the runs, rounded down, as trtexec does in `sampleReporting.cpp`.

    Args:
        times_ms: Milliseconds, shape (runs,), at least one.
        boundary: What was timed.
    """
    ordered = np.sort(times_ms)
    runs = len(ordered)
    p90, p95, p99 = (float(ordered[runs - 1 - runs * (100 - percent) // 100]) for percent in (90, 95, 99))
    return Latency(
        boundary=boundary,
        runs=runs,
        min_ms=float(ordered[0]),
        max_ms=float(ordered[-1]),
        mean_ms=float(ordered.mean()),
        median_ms=float(np.median(ordered)),
        p90_ms=p90,
        p95_ms=p95,
        p99_ms=p99,
    )


def find_remarks(measurement: Measurement) -> list[str]:
    """
    Return what makes figures less than they seem, in the order and by the thresholds of trtexec's own warnings.

    The coefficient of variation is that of GPU compute, which a host cannot disturb. That a host is busy is ours.
    """
    medians = {each.boundary: each.median_ms for each in measurement.boundaries}
    compute_ms = medians.get(Boundary.GPU_COMPUTE)
    remarks = []
    if compute_ms is not None:
        times = measurement.samples[Boundary.GPU_COMPUTE]
        if medians.get(Boundary.ENQUEUE, 0.0) > _ENQUEUE_PART * compute_ms:
            told = "" if measurement.told.get("cuda_graph") else "; try --useCudaGraph"
            remarks.append(f"throughput may be bound by the host's enqueuing{told}")
        for boundary in (Boundary.H2D, Boundary.D2H):
            if medians.get(boundary, 0.0) >= compute_ms:
                remarks.append(f"throughput may be bound by {boundary} transfers; --noDataTransfers leaves them out")
        if times.std() > _UNSTABLE * times.mean():
            remarks.append("GPU compute is not stable: lock the clocks")
    if measurement.shown.p99_ms > _BUSY * measurement.shown.median_ms:
        times_more = measurement.shown.p99_ms / measurement.shown.median_ms
        remarks.append(f"P99 is {times_more:.0f} times the median: the host is busy")
    if measurement.shown.runs < _FEW_RUNS:
        remarks.append(f"P99 is the slowest of {measurement.shown.runs} runs: use a longer --duration")
    return remarks


def thin_out(times_ms: Array, *, most: int = MOST_SAMPLES) -> Array:
    """Return at most so many of the runs, evenly over time, in their order, as float32."""
    chosen = np.linspace(0, len(times_ms) - 1, min(most, len(times_ms))).round().astype(np.int64)
    kept: Array = times_ms[chosen].astype(np.float32)
    return kept


def count_bins(times_ms: Array) -> Json:
    """Return a histogram of runs up to P99: `low_ms`, `high_ms`, `counts` in equal steps, and `beyond`."""
    ordered = np.sort(times_ms)
    low, high = float(ordered[0]), float(ordered[len(ordered) - 1 - len(ordered) // 100])
    if not high > low:
        return {"low_ms": low, "high_ms": high, "counts": [len(ordered)], "beyond": 0}
    counts, _ = np.histogram(ordered, bins=_BINS, range=(low, high))
    return {
        "low_ms": low,
        "high_ms": high,
        "counts": [int(each) for each in counts],
        "beyond": int(len(ordered) - counts.sum()),
    }
