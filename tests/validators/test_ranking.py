from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from modelreg.config.policy import Metric
from modelreg.validators import ranking
from modelreg.validators.ranking import RankAccumulator, RankMetrics


def compare(reference: Any, candidate: Any, labels: Any, *, parts: int = 1) -> RankMetrics:
    accumulator = RankAccumulator()
    cuts = (np.array_split(np.asarray(a), parts) for a in (reference, candidate, labels))
    for r, c, y in zip(*cuts, strict=True):
        accumulator.update(r, c, y)
    found = accumulator.result()
    assert found is not None
    return found


scores = hnp.arrays(np.float32, (9, 8), elements=st.integers(-3, 3).map(float))


@settings(deadline=None, max_examples=200, database=None)
@given(scores, scores, hnp.arrays(np.int64, 9, elements=st.integers(0, 7)))
@pytest.mark.slow
def test_agreement_and_accuracy_are_those_of_argmax_and_a_stable_sort(r: Any, c: Any, y: Any) -> None:
    found = compare(r, c, y, parts=2)
    expected, got = r.argmax(1), c.argmax(1)
    first5 = np.argsort(-c, axis=1, kind="stable")[:, :5]
    assert found.top1_agreement == (expected == got).mean()
    assert found.top5_agreement == np.mean([e in row for e, row in zip(expected, first5, strict=True)])
    assert (found.reference_right, found.right) == ((expected == y).sum(), (got == y).sum())
    assert found.measured[Metric.ACCURACY_DROP] == (found.reference_right - found.right) / 9


def test_an_output_that_collapsed_to_one_value_agrees_with_nothing_by_luck() -> None:
    r = np.eye(10, dtype=np.float32)
    found = compare(r, np.zeros_like(r), np.arange(10))
    assert found.top1_agreement == 0.1
    assert found.top5_agreement == 0.5
    assert (found.reference_accuracy, found.accuracy) == (1.0, 0.1)


def test_a_row_with_a_nan_is_a_wrong_decision() -> None:
    r = np.eye(6, dtype=np.float32)
    c = r.copy()
    c[2, 2] = c[4, 0] = np.nan
    found = compare(r, c, np.arange(6))
    assert found.right == 4
    assert found.top1_agreement == found.top5_agreement == 4 / 6
    assert [(flip.row, flip.got) for flip in found.flips] == [(2, -1), (4, -1)]
    both = compare(c, c, np.arange(6))
    assert both.top1_agreement == 4 / 6


def test_lost_samples_come_before_other_flips_and_only_five_are_kept() -> None:
    r = np.eye(20, dtype=np.float32)
    c = np.roll(r, 1, axis=1)
    labels = np.where(np.arange(20) < 16, 99, np.arange(20))
    found = compare(r, c, labels, parts=4)
    assert [flip.row for flip in found.flips] == [16, 17, 18, 19, 0]
    assert found.flips[0].to_json() == {"row": 16, "expected": 16, "got": 17, "label": 16}
    assert found.to_json()["flips"][4]["label"] == 99


def test_a_drop_on_the_limit_is_exact() -> None:
    r = np.zeros((200, 2), dtype=np.float32)
    r[:, 0] = 1
    c = r.copy()
    c[0] = [0, 1]
    assert compare(r, c, np.zeros(200, dtype=np.int64)).measured[Metric.ACCURACY_DROP] == 0.005


def test_a_better_engine_has_a_negative_drop() -> None:
    r = np.array([[1.0, 0.0], [1.0, 0.0]])
    c = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert compare(r, c, np.array([0, 1])).measured[Metric.ACCURACY_DROP] == -0.5


def test_class_numbers_are_their_own_prediction() -> None:
    found = compare(np.array([1, 2, 3]), np.array([1, 2, 4]), np.array([1, 0, 3]))
    assert (found.reference_right, found.right) == (2, 1)
    assert found.top1_agreement == pytest.approx(2 / 3)
    assert found.top5_agreement is None
    assert Metric.TOP5_AGREEMENT not in found.measured


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    r, c = generator.standard_normal((50, 7)), generator.standard_normal((50, 7))
    y = generator.integers(0, 7, 50)
    whole = compare(r, c, y)
    monkeypatch.setattr(ranking, "BLOCK_VALUES", 5)
    assert compare(r, c, y) == whole


def test_no_sample_is_no_result_and_wrong_shapes_are_the_callers_bug() -> None:
    assert RankAccumulator().result() is None
    with pytest.raises(ValueError, match="do not fit"):
        RankAccumulator().update(np.zeros((2, 3)), np.zeros((2, 3)), np.zeros(3, dtype=int))
    with pytest.raises(ValueError, match="do not fit"):
        RankAccumulator().update(np.zeros((2, 3, 4)), np.zeros((2, 3, 4)), np.zeros(2, dtype=int))
