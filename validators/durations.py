"""How long single runs of an engine took, in bounded memory: of very many, evenly spaced ones are kept."""

from __future__ import annotations

from array import array

import numpy as np

from modelreg.registry.words import Json

KEPT = 1 << 16


class RunTimes:
    """Durations of runs, in seconds; from 65,536 on every second one is dropped, and then every second run is kept."""

    def __init__(self, *, kept: int = KEPT) -> None:
        self._kept = kept
        self._seconds = array("d")
        self._runs = 0
        self._every = 1
        self._total = 0.0

    def add(self, seconds: float) -> None:
        """Add one run."""
        if self._runs % self._every == 0:
            if len(self._seconds) == self._kept:
                self._seconds = self._seconds[::2]
                self._every *= 2
            if self._runs % self._every == 0:
                self._seconds.append(seconds)
        self._runs += 1
        self._total += seconds

    def to_json(self) -> Json | None:
        """Return count, mean and percentiles in milliseconds, or None where nothing ran."""
        if not self._runs:
            return None
        found = np.percentile(np.frombuffer(self._seconds), [0, 50, 90, 99, 100]) * 1e3
        names = ("min_ms", "p50_ms", "p90_ms", "p99_ms", "max_ms")
        return {
            "runs": self._runs,
            "mean_ms": round(self._total / self._runs * 1e3, 6),
            **{name: round(float(value), 6) for name, value in zip(names, found, strict=True)},
        }
