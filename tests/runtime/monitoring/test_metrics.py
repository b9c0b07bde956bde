from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modelreg.runtime.monitoring.families import write_text
from modelreg.runtime.monitoring.metrics import KEPT_S, OTHER, RequestMetrics
from modelreg.runtime.monitoring.series import BOUNDS_S, QUANTILES, WINDOW_S, Series, quantiles_of
from modelreg.runtime.requests import RequestOutcome
from modelreg_testing.monitoring import engine, record, samples_of, value_of

FAR_S = 1e9


def text_of(metrics: RequestMetrics) -> bytes:
    return write_text(metrics.families())


def test_an_answer_is_counted_in_tritons_metrics_with_its_labels_and_ours() -> None:
    metrics = RequestMetrics(["lenet"])
    served = engine(7, version=3)
    metrics.observe(record(served, rows=8, total_s=0.02, queue_s=0.005, compute_s=0.012, bytes_in=100, bytes_out=40))
    metrics.observe(record(served, rows=1, total_s=0.01, queue_s=0.0, compute_s=0.01))
    text = text_of(metrics)
    ((labels, value),) = samples_of(text)["nv_inference_request_success"]
    assert value == 2
    assert labels == {
        "model": "lenet",
        "version": "3",
        "channel": "production",
        "generation": "7",
        "release": "ab" * 6,
        "precision": "fp32",
        "digest": "0" * 12,
    }
    assert value_of(text, "nv_inference_count") == 9
    assert value_of(text, "nv_inference_exec_count") == 2
    assert value_of(text, "nv_inference_request_duration_us") == pytest.approx(30_000)
    assert value_of(text, "nv_inference_queue_duration_us") == pytest.approx(5_000)
    assert value_of(text, "nv_inference_compute_infer_duration_us") == pytest.approx(22_000)
    assert value_of(text, "nv_inference_request_summary_us", quantile="0.99") == pytest.approx(20_000)
    assert value_of(text, "modelreg_request_duration_seconds_bucket", le="0.01") == 1
    assert value_of(text, "modelreg_request_duration_seconds_bucket", le="0.025") == 2
    assert value_of(text, "modelreg_request_bytes_total") == 100


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (RequestOutcome.REFUSED, "REJECTED"),
        (RequestOutcome.EXPIRED, "REJECTED"),
        (RequestOutcome.CANCELED, "CANCELED"),
        (RequestOutcome.FAILED, "BACKEND"),
        (RequestOutcome.INVALID, "OTHER"),
    ],
)
def test_a_failure_has_tritons_reason_and_our_outcome_and_no_latency(outcome: RequestOutcome, reason: str) -> None:
    metrics = RequestMetrics(["lenet"])
    metrics.observe(record(None, outcome))
    text = text_of(metrics)
    assert value_of(text, "nv_inference_request_failure", reason=reason) == 1
    assert sum(value for _, value in samples_of(text)["nv_inference_request_failure"]) == 1
    assert value_of(text, "modelreg_requests_total", outcome=str(outcome)) == 1
    assert "nv_inference_request_success" not in samples_of(text)
    assert metrics.latencies("lenet").request_s == ()


def test_requests_for_names_that_are_not_served_are_one_series() -> None:
    metrics = RequestMetrics(["lenet"])
    for number in range(500):
        metrics.observe(record(None, RequestOutcome.INVALID, model=f"guess-{number}"))
    found = samples_of(text_of(metrics))["modelreg_requests_total"]
    assert {labels["model"] for labels, _ in found} == {OTHER}
    assert sum(value for _, value in found) == 500


def test_a_batcher_counts_executions_and_the_batch_size_follows() -> None:
    metrics = RequestMetrics(["lenet"])
    served = engine()
    for _ in range(8):
        metrics.observe(record(served, rows=2, executions=0))
    for _ in range(2):
        metrics.observe(record(served, rows=2, executions=1))
    metrics.observe(record(None, RequestOutcome.REFUSED))
    assert value_of(text_of(metrics), "nv_inference_exec_count") == 2
    assert metrics.totals("lenet").rows / metrics.totals("lenet").executions == 10


def test_an_equal_engine_that_is_another_object_goes_on_with_the_same_series() -> None:
    metrics = RequestMetrics(["lenet"])
    for _ in range(1000):
        metrics.observe(record(replace(engine())))
    assert value_of(text_of(metrics), "nv_inference_request_success") == 1000


def test_series_stay_few_over_a_hundred_generations_and_the_totals_lose_nothing() -> None:
    metrics = RequestMetrics(["lenet"])
    for generation in range(1, 101):
        metrics.observe(record(engine(generation), rows=4))
        metrics.prune(now_s=FAR_S)
    generations = {labels["generation"] for labels, _ in samples_of(text_of(metrics))["nv_inference_request_success"]}
    assert generations == {"98", "99", "100"}
    assert (metrics.totals("lenet").answered, metrics.totals("lenet").rows) == (100, 400)


def test_an_old_generation_stays_until_a_scrape_has_surely_seen_its_end() -> None:
    metrics = RequestMetrics(["lenet"])
    for generation in range(1, 6):
        metrics.observe(record(engine(generation)))
    metrics.prune()
    assert len(samples_of(text_of(metrics))["nv_inference_request_success"]) == 5
    metrics.prune(now_s=FAR_S + KEPT_S)
    assert len(samples_of(text_of(metrics))["nv_inference_request_success"]) == 3


def test_channels_of_one_model_are_pruned_apart() -> None:
    metrics = RequestMetrics(["lenet"])
    for channel in ("production", "staging"):
        for generation in (1, 2, 3):
            metrics.observe(record(engine(generation, channel=channel)))
    metrics.prune(now_s=FAR_S)
    assert len(samples_of(text_of(metrics))["nv_inference_request_success"]) == 6


def test_an_engine_begins_with_zeros_before_its_first_request() -> None:
    metrics = RequestMetrics(["lenet"])
    metrics.introduce("lenet", engine())
    text = text_of(metrics)
    assert value_of(text, "nv_inference_request_success") == 0
    assert value_of(text, "nv_inference_request_summary_us_count") == 0
    assert "nv_inference_request_summary_us" not in samples_of(text)  # quantiles of nothing


def test_eight_threads_lose_no_request() -> None:
    metrics = RequestMetrics(["lenet"])
    engines = [engine(generation) for generation in (1, 2)]

    def ask() -> None:
        for number in range(2000):
            metrics.observe(record(engines[number % 2]))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    totals = metrics.totals("lenet")
    assert (totals.requests, totals.answered, totals.rows) == (16000, 16000, 16000)


def test_latencies_are_those_of_the_last_minute() -> None:
    series = Series()
    series.observe(record(engine(), total_s=1.0))
    assert series.recent(now_s=series.touched_s + WINDOW_S - 1).request_s == (1.0,)
    assert series.recent(now_s=series.touched_s + WINDOW_S + 1).request_s == ()


@settings(deadline=None)
@given(st.lists(st.floats(0, 100), min_size=1, max_size=50))
def test_quantiles_are_values_that_there_were_in_order(values: list[float]) -> None:
    found = list(quantiles_of(values).values())
    assert len(found) == len(QUANTILES)
    assert set(found) <= set(values)
    assert found == sorted(found)
    assert quantiles_of(values, [1.0])[1.0] == max(values)


def test_quantiles_of_nothing_are_none_and_bounds_ascend() -> None:
    assert quantiles_of([]) == {}
    assert list(BOUNDS_S) == sorted(set(BOUNDS_S))
