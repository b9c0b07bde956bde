from __future__ import annotations

import numpy as np

from modelreg.runtime.latency import summarise


def test_percentiles_are_runs_that_there_were() -> None:
    found = summarise(np.arange(1.0, 101.0), boundary="host", batch=4)
    assert (found.min_ms, found.max_ms, found.mean_ms, found.median_ms) == (1, 100, 50.5, 50.5)
    assert (found.p90_ms, found.p95_ms, found.p99_ms) == (91, 96, 100)
    assert found.throughput == 4 * 1000 / 50.5


def test_one_run_is_all_of_its_figures() -> None:
    found = summarise(np.array([2.0]), boundary="host", batch=1)
    assert {found.min_ms, found.median_ms, found.p99_ms, found.max_ms} == {2.0}
