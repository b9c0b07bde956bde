from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from modelreg.config.policy import Metric
from modelreg.runtime.monitoring.differences import add_up, compare
from modelreg.validators.metrics import MetricAccumulator

Array = NDArray[Any]


def test_the_figures_are_those_of_the_gates() -> None:
    random = np.random.default_rng(1)
    reference = random.normal(size=(64, 10)).astype(np.float32)
    candidate = (reference + random.normal(scale=0.01, size=reference.shape)).astype(np.float32)
    gates = MetricAccumulator(scale=1.0)
    gates.update(reference, candidate)
    measured = gates.result().measured
    found = add_up(compare(reference[i : i + 8], candidate[i : i + 8]) for i in range(0, 64, 8))
    assert found is not None
    assert found.samples == 8
    assert found.sqnr_db == pytest.approx(measured[Metric.SQNR_DB], rel=1e-5)
    assert found.cosine == pytest.approx(measured[Metric.COSINE], rel=1e-6)
    assert found.max_abs == pytest.approx(measured[Metric.MAX_ABS], rel=1e-6)
    assert found.relative_rmse == pytest.approx(10 ** (-found.sqnr_db / 20))
    assert found.top1_agreement == np.mean(reference.argmax(1) == candidate.argmax(1))


def test_identical_answers_have_no_error() -> None:
    same = compare(np.ones((2, 3)), np.ones((2, 3)))
    assert (same.sqnr_db, same.relative_rmse, same.cosine, same.max_abs) == (math.inf, 0.0, 1.0, 0.0)
    nothing = compare(np.zeros((2, 3)), np.zeros((2, 3)))
    assert (nothing.sqnr_db, nothing.cosine) == (math.inf, 1.0)
    assert (compare(np.zeros(3), np.ones(3)).sqnr_db, compare(np.zeros(3), np.ones(3)).cosine) == (-math.inf, 0.0)


def test_nan_and_infinity_count_where_the_reference_has_not_the_same() -> None:
    reference = np.array([1.0, np.nan, np.inf, 2.0, -np.inf])
    candidate = np.array([np.nan, np.nan, np.inf, np.inf, 3.0])
    found = compare(reference, candidate)
    assert found.not_finite == 3
    assert math.isfinite(found.error2)
    assert compare(reference, reference).not_finite == 0


@pytest.mark.parametrize("shape", [(4,), (4, 1), (2, 3, 4), ()])
def test_what_has_no_classes_has_no_top1(shape: tuple[int, ...]) -> None:
    assert compare(np.ones(shape), np.ones(shape)).top1_agreement is None


def test_other_types_and_other_shapes() -> None:
    assert compare(np.array([[True, False]]), np.array([[True, True]])).max_abs == 1.0
    assert compare(np.ones((1, 2), np.float16), np.ones((1, 2), np.float32)).max_abs == 0.0
    assert compare(np.empty((0, 3)), np.empty((0, 3))).max_abs == 0.0
    with pytest.raises(ValueError, match="differ"):
        compare(np.ones((1, 2)), np.ones((1, 3)))
    assert add_up([]) is None


def test_values_at_the_ends_of_their_type_break_no_figure() -> None:
    tiny, large = np.full((1, 4), 1e-160), np.full((1, 4), 1e10)
    assert compare(tiny, large).sqnr_db == -math.inf
    assert compare(tiny, 2 * tiny).cosine == pytest.approx(1.0, rel=1e-2)
