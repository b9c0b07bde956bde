from __future__ import annotations

import math
import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from modelreg.config.policy import Metric
from modelreg.registry.digests import canonical_json
from modelreg.validators import metrics as module
from modelreg.validators.formulas import reference_scale
from modelreg.validators.metrics import MetricAccumulator, OutputMetrics

# hypothesis warns where a filesystem or a machine is slow; our tests are about numbers.
EXACT = settings(deadline=None, max_examples=150, database=None)


def measure(reference: Any, candidate: Any, *, parts: int = 1, scale: float = 1.0) -> OutputMetrics:
    accumulator = MetricAccumulator(scale=scale)
    for r, c in zip(np.array_split(reference, parts), np.array_split(candidate, parts), strict=True):
        accumulator.update(r, c)
    return accumulator.result()


def truth(reference: Any, candidate: Any) -> dict[Metric, float]:
    r, c = reference.astype(np.longdouble).ravel(), candidate.astype(np.longdouble).ravel()
    good = np.isfinite(r) & np.isfinite(c)
    r, c = r[good], c[good]
    d = np.abs(r - c)
    rr, cc, dd = (r * r).sum(), (c * c).sum(), (d * d).sum()
    cosine = 1.0 if rr == cc else 0.0
    if rr and cc:
        cosine = float((r * c).sum() / (np.sqrt(rr) * np.sqrt(cc)))
    sqnr = math.inf if not dd else (-math.inf if not rr else float(10 * np.log10(rr / dd)))
    return {
        Metric.MAX_ABS: float(d.max()),
        Metric.MEAN_ABS: float(d.mean()),
        Metric.RMSE: float(np.sqrt((d * d).mean())),
        Metric.COSINE: cosine,
        Metric.SQNR_DB: sqnr,
    }


def assert_close(found: OutputMetrics, true: dict[Metric, float]) -> None:
    for metric, value in true.items():
        measured = found.measured[metric]
        if metric is Metric.COSINE:
            assert measured == pytest.approx(value, abs=2e-6)
        elif metric is Metric.SQNR_DB:
            assert measured == pytest.approx(value, abs=1e-3)
        else:
            # Differences of float32 are rounded to float32: half a unit in the last place.
            assert measured == pytest.approx(value, rel=2e-5, abs=0)


def pairs(dtype: Any, elements: Any) -> Any:
    shapes = hnp.array_shapes(min_dims=1, max_dims=3, max_side=7)
    return shapes.flatmap(lambda shape: st.tuples(*[hnp.arrays(dtype, shape, elements=elements) for _ in range(2)]))


any_float32 = hnp.from_dtype(np.dtype(np.float32), allow_nan=False, allow_infinity=False)
any_float64 = hnp.from_dtype(np.dtype(np.float64), allow_nan=False, allow_infinity=False)
odd = st.sampled_from([0.0, 1.0, -2.0, np.inf, -np.inf, np.nan, 3e38, 1e-45, -1e-39, 1e20])


@EXACT
@given(pairs(np.float32, any_float32))
def test_any_finite_float32_values_are_measured_as_wider_arithmetic_measures_them(pair: Any) -> None:
    with np.errstate(all="ignore"):
        assert_close(measure(*pair), truth(*pair))


@EXACT
@given(pairs(np.float64, any_float64))
def test_any_finite_float64_values_are_measured_as_wider_arithmetic_measures_them(pair: Any) -> None:
    with np.errstate(all="ignore"):
        true = truth(*pair)
        found = measure(*pair)
    for metric, value in true.items():
        if metric is Metric.COSINE:
            assert found.measured[metric] == pytest.approx(value, abs=2e-6)
        elif metric is Metric.SQNR_DB and math.isfinite(value):
            assert found.measured[metric] == pytest.approx(value, abs=1e-6)  # decibels near 0 are all cancellation
        elif math.isfinite(value):
            assert found.measured[metric] == pytest.approx(value, rel=2e-5, abs=1e-300)


@EXACT
@given(pairs(np.float32, odd))
def test_nan_and_infinity_are_counted_and_set_aside(pair: Any) -> None:
    r, c = pair
    with np.errstate(all="ignore"):
        found = measure(r, c)
        nans = int((np.isnan(c) & ~np.isnan(r)).sum())
        infs = int(((r != c) & ~np.isnan(c) & ~(np.isfinite(r) & np.isfinite(c))).sum())
        assert (found.nan_count, found.inf_count) == (nans, infs)
        good = np.isfinite(r) & np.isfinite(c)
        assert found.values == int(good.sum())
        if good.any():
            assert_close(found, truth(r, c))


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e6])
@pytest.mark.parametrize("shape", [(300_000,), (3000, 100), (2, 150_000), (3, 400_001)])
def test_many_values_with_a_large_offset_keep_their_digits(offset: float, shape: tuple[int, ...]) -> None:
    generator = np.random.default_rng(1)
    r = (generator.standard_normal(shape) + offset).astype(np.float32)
    c = r + (generator.standard_normal(shape) * 1e-3 * max(1, offset)).astype(np.float32)
    assert_close(measure(r, c, parts=2), truth(r, c))


def test_many_batches_measure_what_one_batch_measures() -> None:
    generator = np.random.default_rng(2)
    r = generator.standard_normal((1000, 7), dtype=np.float32)
    c = r + np.float32(0.01) * generator.standard_normal((1000, 7), dtype=np.float32)
    whole, cut = measure(r, c), measure(r, c, parts=13)
    assert whole.worst == cut.worst
    for metric, value in whole.measured.items():
        assert cut.measured[metric] == pytest.approx(value, rel=1e-6), metric


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64"])
@pytest.mark.parametrize("candidate", ["float16", "float32", "float64"])
def test_dtypes_may_differ_between_reference_and_engine(dtype: str, candidate: str) -> None:
    values = np.array([[1, 2, 3], [4, 5, 6]])
    r = values.astype(getattr(ml_dtypes, dtype) if dtype == "bfloat16" else dtype)
    c = (values + np.array([[0, 0, 1], [0, 0, 0]])).astype(candidate)
    found = measure(r, c)
    assert found.measured[Metric.MAX_ABS] == 1
    assert found.measured[Metric.MEAN_ABS] == pytest.approx(1 / 6)
    assert found.worst[0].row == 0
    assert (Metric.MISMATCH_RATE in found.measured) == dtype.startswith(("int", "uint"))


def test_infinite_half_precision_values_are_counted() -> None:
    for dtype in (np.float16, ml_dtypes.bfloat16):
        r = np.array([1, 2, 3, 4], dtype=dtype)
        found = measure(r, np.array([1, np.inf, np.nan, 4]).astype(dtype))
        assert (found.inf_count, found.nan_count, found.values) == (1, 1, 2)
        assert found.measured[Metric.COSINE] == 1.0


def test_integers_and_booleans_are_compared_exactly() -> None:
    big = np.array([2**62, 2**62 + 1, 5, 7])
    assert measure(big, big + np.array([0, 1, 0, 0])).measured[Metric.MISMATCH_RATE] == 0.25
    flags = np.array([True, False, True, True])
    found = measure(flags, ~flags)
    assert found.measured[Metric.MISMATCH_RATE] == 1.0
    assert found.measured[Metric.MAX_ABS] == 1.0


def test_equal_values_have_no_error_and_infinite_signal_to_noise() -> None:
    found = measure(np.array([1.0, 2.0], dtype=np.float32), np.array([1.0, 2.0], dtype=np.float32), scale=0.0)
    assert found.measured[Metric.SQNR_DB] == math.inf
    assert found.measured[Metric.COSINE] == 1.0
    assert found.measured[Metric.RANGE_ERROR] == found.measured[Metric.MAX_RELATIVE] == 0.0
    assert found.worst == ()


def test_zero_references_are_as_bad_as_what_is_beside_them() -> None:
    zero, some = np.zeros(4, dtype=np.float32), np.ones(4, dtype=np.float32)
    same, wrong = measure(zero, zero, scale=0.0), measure(zero, some, scale=0.0)
    assert (same.measured[Metric.COSINE], same.measured[Metric.SQNR_DB]) == (1.0, math.inf)
    assert (wrong.measured[Metric.COSINE], wrong.measured[Metric.SQNR_DB]) == (0.0, -math.inf)
    assert wrong.measured[Metric.RANGE_ERROR] == math.inf
    assert wrong.measured[Metric.MAX_RELATIVE] > 1e30
    assert measure(some, zero).measured[Metric.COSINE] == 0.0


@EXACT
@given(pairs(np.float32, st.floats(-1000, 1000, width=32)), st.floats(0.01, 10))
def test_the_relative_error_has_a_floor(pair: Any, floor: float) -> None:
    r, c = pair
    accumulator = MetricAccumulator(scale=1.0, relative_floor=floor)
    accumulator.update(r, c)
    r, c = r.astype(np.float64), c.astype(np.float64)
    true = (np.abs(r - c) / (np.abs(r) + floor)).max()
    assert accumulator.result().measured[Metric.MAX_RELATIVE] == pytest.approx(true, rel=1e-4, abs=1e-30)


@pytest.mark.parametrize(("width", "rows"), [(3, 200_000), (1, 400_000), (1000, 500), (300_000, 9)])
def test_the_worst_rows_are_found_whatever_their_width_and_place(width: int, rows: int) -> None:
    r = np.zeros((rows, width), dtype=np.float32)
    c = r.copy()
    expected = [0, rows - 1, rows // 2, rows // 3, 1, 2, rows - 2]
    for rank, row in enumerate(expected):
        c[row, width // 2] = (10 - rank) * (-1) ** rank
    found = measure(r, c, parts=3)
    assert [(w.row, w.max_abs) for w in found.worst] == [(row, 10 - rank) for rank, row in enumerate(expected[:5])]


def test_a_row_that_is_not_finite_is_the_worst() -> None:
    c = np.zeros((10, 4), dtype=np.float32)
    c[3, 1], c[7, 2], c[8, 0] = 1e30, np.nan, np.inf
    worst = measure(np.zeros((10, 4), dtype=np.float32), c).worst
    assert [w.row for w in worst] == [7, 8, 3]
    assert worst[0].max_abs == math.inf


def test_equal_infinities_are_no_error() -> None:
    r = np.array([1, -np.inf, np.nan], dtype=np.float32)
    found = measure(r, r.copy())
    assert (found.nan_count, found.inf_count, found.values) == (0, 0, 1)


def test_nothing_to_compare_is_empty_and_not_perfect() -> None:
    for shape in [(0, 10), (5, 0), (0,)]:
        found = measure(np.zeros(shape), np.zeros(shape))
        assert found.is_empty
        assert found.measured == {}
        assert found.rows == shape[0]
    all_nan = measure(np.zeros(3), np.full(3, np.nan))
    assert not all_nan.is_empty
    assert all_nan.measured == {}


def test_shapes_that_differ_are_the_callers_bug() -> None:
    accumulator = MetricAccumulator(scale=1.0)
    with pytest.raises(ValueError, match="cannot be compared"):
        accumulator.update(np.zeros((2, 3)), np.zeros((3, 2)))
    with pytest.raises(ValueError, match="cannot be compared"):
        accumulator.update(np.zeros(()), np.zeros(()))


def test_arrays_that_are_not_contiguous_are_measured() -> None:
    r = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert measure(r.T, np.asfortranarray(r.T + 1)).measured[Metric.MAX_ABS] == 1.0


def test_the_scale_is_the_range_but_no_less_than_a_tenth_of_the_peak() -> None:
    assert reference_scale(-1.0, 3.0) == 4.0
    assert reference_scale(-100.0, -100.0) == 10.0
    assert reference_scale(0.0, 0.0) == 0.0


def test_metrics_are_json_even_when_not_finite() -> None:
    body = measure(
        np.zeros((2, 3), dtype=np.float32), np.array([[1, np.nan, 0], [0, 0, 0]], dtype=np.float32)
    ).to_json()
    assert body["sqnr_db"] == "-inf"
    assert body["worst"] == [{"row": 0, "max_abs": "inf"}]
    canonical_json(body)


def test_memory_stays_under_16_megabytes_whatever_is_measured() -> None:
    r = np.random.default_rng(0).standard_normal((40, 100_000), dtype=np.float32)
    c = r.copy()
    c[3, 5], c[9, 9], r[20], c[20] = np.nan, np.inf, 1e30, 1e-30
    wide = r.astype(np.float64)
    tracemalloc.start()
    accumulator = MetricAccumulator(scale=1.0)
    accumulator.update(r, c)
    accumulator.update(wide, c)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16e6
    assert accumulator.result().values > 7_000_000


def test_blocks_are_cut_at_rows_where_rows_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_VALUES", 10)
    generator = np.random.default_rng(3)
    for shape in [(7, 3), (4, 10), (3, 25)]:
        r, c = generator.standard_normal(shape), generator.standard_normal(shape)
        found = measure(r, c)
        assert_close(found, truth(r, c))
        errors = np.abs(r - c).max(axis=1)
        assert [w.row for w in found.worst] == list(np.argsort(-errors, kind="stable")[:5])
