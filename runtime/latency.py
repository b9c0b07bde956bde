"""What trtexec says of many runs, in its words: min, max, mean, median, percentiles, throughput. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelreg.registry.words import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """
    Milliseconds of one run, over many.

    Attributes:
        boundary: What a run is: `gpu-compute`, between two events around it on the GPU, inputs uploaded before; or
            `host`, the backend's call from arrays to arrays.
        batch: Samples of one run.
        runs: How many runs.
    """

    boundary: str
    batch: int
    runs: int
    min_ms: float
    max_ms: float
    mean_ms: float
    median_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float

    @property
    def throughput(self) -> float:
        """Return samples a second, runs one after the other."""
        return self.batch * 1000 / self.mean_ms

    def to_json(self) -> Json:
        """Return it as JSON."""
        names = ("min_ms", "max_ms", "mean_ms", "median_ms", "p90_ms", "p95_ms", "p99_ms")
        figures = {name: getattr(self, name) for name in names}
        return {
            "boundary": self.boundary,
            "batch": self.batch,
            "runs": self.runs,
            **figures,
            "throughput": self.throughput,
        }


def summarise(times_ms: NDArray[Any], *, boundary: str, batch: int) -> Latency:
    """
    Return the figures of some runs. A percentile is a run that there was, as trtexec has it, never one in between.

    Args:
        times_ms: Milliseconds, shape (runs,), at least one.
        boundary: What was timed.
        batch: Samples of a run.
    """
    p90, p95, p99 = (float(np.quantile(times_ms, part, method="higher")) for part in (0.90, 0.95, 0.99))
    return Latency(
        boundary=boundary,
        batch=batch,
        runs=len(times_ms),
        min_ms=float(times_ms.min()),
        max_ms=float(times_ms.max()),
        mean_ms=float(times_ms.mean()),
        median_ms=float(np.median(times_ms)),
        p90_ms=p90,
        p95_ms=p95,
        p99_ms=p99,
    )
