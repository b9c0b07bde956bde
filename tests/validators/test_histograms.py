from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from modelreg.validators.durations import RunTimes
from modelreg.validators.histograms import ALL_COUNT_UP_TO, ErrorHistogram
from modelreg.validators.metrics import BLOCK_VALUES, MetricAccumulator


def counted(errors: Any, *, block: int = BLOCK_VALUES) -> dict[str, Any]:
    histogram = ErrorHistogram()
    for start in range(0, len(errors), block):
        histogram.add(errors[start : start + block])
    return histogram.to_json()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_error_is_counted_in_the_bin_of_its_power_of_two(dtype: Any) -> None:
    found = counted(np.array([0.25, 0.3, 0.49, 0.5, 0.99, 4.0, 0.0], dtype=dtype))
    assert found["first_exponent"] == -2
    assert found["counts"] == [3, 2, 0, 0, 1]  # [1/4, 1/2), [1/2, 1), [1, 2), [2, 4), [4, 8)
    assert (found["zeros"], found["not_finite"], found["sampled"]) == (1, 0, False)


def test_what_is_not_finite_or_nearly_nothing_is_counted_apart() -> None:
    found = counted(np.array([np.inf, 1e-300, 1.0]))
    assert (found["counts"], found["zeros"], found["not_finite"]) == ([1], 1, 1)


def test_no_errors_at_all_have_no_bins() -> None:
    assert counted(np.zeros(3, np.float32))["counts"] == []
    assert ErrorHistogram().to_json()["zeros"] == 0


def test_of_many_errors_a_part_says_nearly_the_same() -> None:
    errors = np.abs(np.random.default_rng(0).normal(size=8 * ALL_COUNT_UP_TO)).astype(np.float32)
    found = counted(errors)
    assert found["sampled"] is True
    whole = np.bincount(np.frexp(errors)[1] + 200, minlength=256)
    for offset, number in enumerate(found["counts"]):
        exact = int(whole[found["first_exponent"] + offset + 1 + 200])
        if exact > len(errors) // 100:
            assert number / sum(found["counts"]) == pytest.approx(exact / len(errors), abs=0.005)


def test_metrics_carry_the_histogram_of_all_their_blocks() -> None:
    reference = np.zeros((10, 100_000), np.float32)
    candidate = np.full((10, 100_000), 0.75, np.float32)
    candidate[3, 3] = np.nan
    accumulator = MetricAccumulator(scale=1.0)
    accumulator.update(reference[:4], candidate[:4])
    histogram = accumulator.result().to_json()["histogram"]
    assert histogram["first_exponent"] == -1
    assert histogram["counts"] == [399_999]
    assert histogram["not_finite"] == 1


def test_run_times_give_percentiles_in_milliseconds() -> None:
    times = RunTimes()
    assert times.to_json() is None
    for milliseconds in range(1, 102):
        times.add(milliseconds / 1e3)
    found = times.to_json()
    assert found is not None
    assert (found["runs"], found["min_ms"], found["p50_ms"], found["max_ms"]) == (101, 1, 51, 101)
    assert found["mean_ms"] == pytest.approx(51)


def test_run_times_of_very_many_runs_stay_small_and_right() -> None:
    times = RunTimes(kept=64)
    tracemalloc.start()
    for number in range(100_000):
        times.add(number / 1e3)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    found = times.to_json()
    assert found is not None
    assert peak < 50_000
    assert found["runs"] == 100_000
    assert found["p50_ms"] == pytest.approx(50_000, rel=0.05)
