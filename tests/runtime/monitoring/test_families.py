from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from modelreg.runtime.monitoring.families import Family, MetricKind, write_number, write_text

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@settings(deadline=None)
@given(TEXT, TEXT, st.floats())
def test_any_text_and_number_survive_prometheus_own_parser(help_text: str, label: str, value: float) -> None:
    family = Family("a_metric", MetricKind.GAUGE, help_text)
    family.add({"name": label, "other": "x"}, value)
    (read,) = text_string_to_metric_families(write_text([family]).decode())
    (sample,) = read.samples
    assert sample.labels == {"name": label, "other": "x"}
    assert sample.value == value or (math.isnan(sample.value) and math.isnan(value))


def test_a_counter_keeps_its_name_and_its_type() -> None:
    family = Family("nv_inference_count", MetricKind.COUNTER, "Samples.")
    family.add({}, 3)
    assert write_text([family]) == (
        b"# HELP nv_inference_count Samples.\n# TYPE nv_inference_count counter\nnv_inference_count 3\n"
    )


def test_what_was_not_measured_is_left_out_and_not_0() -> None:
    family = Family("nv_gpu_utilization", MetricKind.GAUGE, "Busy.")
    family.add({"gpu": "0"}, None)
    assert write_text([family]) == b""


def test_a_histogram_is_cumulative_and_ends_in_infinity() -> None:
    family = Family("took_seconds", MetricKind.HISTOGRAM, "Time.")
    family.add_histogram({"model": "m"}, [0.1, 1.0], [2, 0, 1], 4.2)
    (read,) = text_string_to_metric_families(write_text([family]).decode())
    assert [(s.name, s.labels.get("le"), s.value) for s in read.samples] == [
        ("took_seconds_bucket", "0.1", 2),
        ("took_seconds_bucket", "1", 2),
        ("took_seconds_bucket", "+Inf", 3),
        ("took_seconds_count", None, 3),
        ("took_seconds_sum", None, 4.2),
    ]
    assert read.type == "histogram"


def test_lone_surrogates_do_not_break_a_page() -> None:
    family = Family("a", MetricKind.GAUGE, "x")
    family.add({"name": "\udcff"}, 1)
    assert write_text([family]).decode().endswith('a{name="?"} 1\n')


def test_numbers_are_written_as_prometheus_reads_them() -> None:
    assert [write_number(each) for each in (1, 1.5, 1e300, math.inf, -math.inf, math.nan, True)] == [
        *("1", "1.5", "1e+300", "+Inf", "-Inf", "NaN", "1")
    ]
