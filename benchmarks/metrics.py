"""Gate metrics: our one blocked pass beside NumPy over whole arrays, and the floor (reading both arrays once).

Run: python benchmarks/metrics.py [VALUES]. Prints seconds, ratio to the floor, extra memory, and errors against
whole-array float64 truth. Asserts nothing: times differ between machines, ratios in one run do not.
"""

from __future__ import annotations

import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelreg.config.policy import Metric
from modelreg.validators.formulas import reference_scale
from modelreg.validators.metrics import MetricAccumulator
from modelreg.validators.ranking import RankAccumulator

Array = NDArray[Any]
CLASSES = 1000
BATCH = 512


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def extra_memory(work: Callable[[], object]) -> int:
    """Return the most resident bytes above the start, sampled every half millisecond."""
    start, peak, done = resident_bytes(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.0005):
            peak = max(peak, resident_bytes() - start)

    watcher = threading.Thread(target=watch)
    watcher.start()
    work()
    done.set()
    watcher.join()
    return peak


def best_times(ways: dict[str, Callable[[], object]], rounds: int = 5) -> dict[str, float]:
    """Return the shortest time of each way; the ways take turns, so that a busy machine slows all of them."""
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, work in ways.items():
            start = time.perf_counter()
            work()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def read_once(reference: Array, candidate: Array) -> None:
    reference.max()
    candidate.max()


def ours(reference: Array, candidate: Array) -> dict[Metric, float]:
    accumulator = MetricAccumulator(scale=reference_scale(-6.0, 6.0))
    accumulator.update(reference, candidate)
    return accumulator.result().measured


def ours_ranked(reference: Array, candidate: Array) -> object:
    """Measure batch by batch, as a validation does: the second look at a batch finds it in the cache."""
    accumulator, ranks = MetricAccumulator(scale=reference_scale(-6.0, 6.0)), RankAccumulator()
    labels = np.zeros(len(reference), dtype=np.int64)
    for start in range(0, len(reference), BATCH):
        part = slice(start, start + BATCH)
        accumulator.update(reference[part], candidate[part])
        ranks.update(reference[part], candidate[part], labels[part])
    return accumulator.result(), ranks.result()


def whole_arrays(reference: Array, candidate: Array, dtype: Any) -> dict[Metric, float]:
    r, c = reference.astype(dtype, copy=False).ravel(), candidate.astype(dtype, copy=False).ravel()
    d = r - c
    a = np.abs(d)
    return {
        Metric.MAX_ABS: float(a.max()),
        Metric.MEAN_ABS: float(a.mean()),
        Metric.RMSE: float(np.sqrt(np.mean(d * d))),
        Metric.COSINE: float(r @ c / np.sqrt((r @ r) * (c @ c))),
        Metric.SQNR_DB: float(10 * np.log10((r @ r) / (d @ d))),
    }


def main() -> None:
    values = int(float(sys.argv[1])) if len(sys.argv) > 1 else 100_000_000
    rows = values // CLASSES
    generator = np.random.default_rng(0)
    reference = generator.standard_normal((rows, CLASSES), dtype=np.float32)
    candidate = reference + generator.standard_normal((rows, CLASSES), dtype=np.float32) * np.float32(1e-3)
    ours(reference[:10], candidate[:10])
    ways: dict[str, Callable[[], object]] = {
        "floor: read both once": lambda: read_once(reference, candidate),
        "ours: metrics": lambda: ours(reference, candidate),
        "ours: metrics + top-1/top-5": lambda: ours_ranked(reference, candidate),
        "numpy whole arrays float32": lambda: whole_arrays(reference, candidate, np.float32),
        "numpy whole arrays float64": lambda: whole_arrays(reference, candidate, np.float64),
    }
    print(f"{reference.size:,} float32 values, {CLASSES} classes")
    print(f"{'way':30} {'seconds':>8} {'x floor':>8} {'extra MB':>9} {'s per 1e8':>10}")
    best = best_times(ways)
    floor = next(iter(best.values()))
    for name, seconds in best.items():
        extra = extra_memory(ways[name]) / 1e6
        per_1e8 = seconds * 1e8 / reference.size
        print(f"{name:30} {seconds:8.3f} {seconds / floor:8.1f} {extra:9.1f} {per_1e8:10.3f}")
    truth, found = whole_arrays(reference, candidate, np.float64), ours(reference, candidate)
    for metric, true in truth.items():
        error = abs(found[metric] / true - 1)
        print(f"{metric!s:12} truth {true:.9g}  ours {found[metric]:.9g}  relative error {error:.1e}")


if __name__ == "__main__":
    main()
