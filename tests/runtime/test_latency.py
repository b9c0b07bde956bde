from __future__ import annotations

import numpy as np
import pytest

from modelreg.runtime.latency import Boundary, count_bins, find_remarks, measure, summarise, thin_out


def test_percentiles_are_runs_that_there_were_and_trtexecs() -> None:
    found = summarise(np.arange(100.0, 0.0, -1.0), boundary=Boundary.HOST)
    assert (found.min_ms, found.max_ms, found.mean_ms, found.median_ms) == (1, 100, 50.5, 50.5)
    assert (found.p90_ms, found.p95_ms, found.p99_ms) == (90, 95, 99)


@pytest.mark.parametrize(("runs", "p99"), [(1, 1.0), (2, 2.0), (99, 99.0), (199, 198.0), (200, 198.0)])
def test_so_few_runs_leave_none_out(runs: int, p99: float) -> None:
    assert summarise(np.arange(1.0, runs + 1.0), boundary=Boundary.HOST).p99_ms == p99


def test_throughput_is_by_the_wall_whatever_overlapped() -> None:
    samples = {Boundary.GPU_COMPUTE: np.full(20, 2.0), Boundary.ENQUEUE: np.full(20, 0.1)}
    found = measure(samples, batch=8, wall_s=0.02, told={"streams": 2})
    assert (found.queries_per_s, found.throughput) == (1000, 8000)
    assert found.shown.boundary is Boundary.GPU_COMPUTE
    assert list(found.figures()["boundaries"]) == ["gpu-compute", "enqueue"]


def test_kept_runs_are_thinned_evenly_and_few_are_kept_all() -> None:
    assert thin_out(np.arange(101.0), most=3).tolist() == [0, 50, 100]
    assert thin_out(np.arange(3.0), most=10).tolist() == [0, 1, 2]
    assert thin_out(np.arange(3.0)).dtype == np.float32


@pytest.mark.parametrize("times", [np.full(9, 2.0), np.linspace(1, 2, 1000), np.array([1.0, 1.0, 50.0])])
def test_no_run_is_missing_from_a_histogram(times: np.ndarray) -> None:
    found = count_bins(times)
    assert sum(found["counts"]) + found["beyond"] == len(times)
    assert found["low_ms"] == times.min()


def test_a_slow_run_of_a_hundred_does_not_flatten_a_histogram() -> None:
    times = np.append(np.linspace(1, 2, 199), 900.0)
    assert (count_bins(times)["high_ms"] <= 2, count_bins(times)["beyond"] >= 1) == (True, True)


@pytest.mark.parametrize(
    ("changes", "told", "remarks"),
    [
        ({}, {}, []),
        ({Boundary.ENQUEUE: 0.9}, {}, ["throughput may be bound by the host's enqueuing; try --useCudaGraph"]),
        ({Boundary.ENQUEUE: 0.9}, {"cuda_graph": True}, ["throughput may be bound by the host's enqueuing"]),
        ({Boundary.D2H: 1.0}, {}, ["throughput may be bound by d2h transfers; --noDataTransfers leaves them out"]),
    ],
)
def test_trtexecs_warnings_are_given_at_its_thresholds(
    changes: dict[Boundary, float], told: dict[str, bool], remarks: list[str]
) -> None:
    usual = {Boundary.GPU_COMPUTE: 1.0, Boundary.ENQUEUE: 0.8, Boundary.H2D: 0.5, Boundary.D2H: 0.5}
    samples = {boundary: np.full(100, value) for boundary, value in {**usual, **changes}.items()}
    assert find_remarks(measure(samples, batch=1, wall_s=0.1, told=told)) == remarks


def test_unstable_and_few_runs_are_remarked() -> None:
    samples = {Boundary.GPU_COMPUTE: np.array([1.0, 1.1] * 10), Boundary.ENQUEUE: np.full(20, 0.1)}
    found = find_remarks(measure(samples, batch=1, wall_s=0.1, told={}))
    assert found[0] == "GPU compute is not stable: lock the clocks"
    assert found[1].startswith("P99 is the slowest of 20 runs")
    assert find_remarks(measure({Boundary.HOST: np.ones(100)}, batch=1, wall_s=0.1, told={})) == []


def test_a_busy_host_is_remarked() -> None:
    times = np.array([1.0] * 95 + [25.0] * 5)
    assert find_remarks(measure({Boundary.HOST: times}, batch=1, wall_s=0.1, told={})) == [
        "P99 is 25 times the median: the host is busy"
    ]
    times[95:] = 10.0
    assert find_remarks(measure({Boundary.HOST: times}, batch=1, wall_s=0.1, told={})) == []


def test_pytorch_on_a_gpu_has_no_enqueue_time_and_needs_none() -> None:
    # Seen on a GPU: `bench --pytorch` ended with a KeyError.
    alone = measure({Boundary.GPU_COMPUTE: np.ones(100)}, batch=64, wall_s=0.1, told={})
    assert find_remarks(alone) == []
