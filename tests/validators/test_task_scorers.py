from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelreg.validators.task_metrics import MetricError
from modelreg.validators.task_scorers import SHIPPED, box_iou, edits


def scored(name: str, outputs: dict[str, Any], labels: dict[str, Any], *, batch: int = 3) -> float:
    scorer = SHIPPED[name]()
    rows = len(next(iter(labels.values())))
    for start in range(0, rows, batch):
        part = slice(start, start + batch)
        scorer.update({k: v[part] for k, v in outputs.items()}, {k: v[part] for k, v in labels.items()})
    return float(scorer.result())


def test_top_k_counts_labels_among_the_best_and_ties_for_nobody() -> None:
    scores = np.array([[0.1, 0.9, 0.5, 0.3], [0.9, 0.1, 0.2, 0.3], [0.5, 0.5, 0.5, 0.5]], np.float32)
    labels = {"label": np.array([2, 1, 3])}
    assert scored("top_1", {"y": scores}, labels) == 0.0
    assert scored("top_3", {"y": scores}, labels) == pytest.approx(1 / 3)
    assert scored("top_5", {"y": scores}, labels) == 1.0
    nan = np.full((1, 4), np.nan, np.float32)
    assert scored("top_3", {"y": nan}, {"label": np.array([0])}) == 0.0


def test_mean_iou_is_that_of_the_definition_and_leaves_out_what_is_ignored() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(7, 3, 5, 4)).astype(np.float32)
    mask = rng.integers(-1, 3, (7, 5, 4))
    classes = scores.argmax(axis=1)
    counts = mask >= 0
    expected = [
        ((classes == c) & (mask == c) & counts).sum() / (((classes == c) | (mask == c)) & counts).sum()
        for c in range(3)
    ]
    assert scored("mean_iou", {"y": scores}, {"mask": mask}) == pytest.approx(np.mean(expected))
    assert scored("mean_iou", {"y": classes}, {"mask": mask}) == pytest.approx(np.mean(expected))
    assert scored("mean_iou", {"y": mask.clip(0)}, {"mask": mask}) == 1.0
    with pytest.raises(MetricError, match="no pixel has a class"):
        scored("mean_iou", {"y": classes}, {"mask": np.full_like(mask, 255)})


def detections(boxes: Any, scores: Any, classes: Any) -> dict[str, Any]:
    return {"boxes": np.array(boxes, np.float32), "scores": np.array(scores, np.float32), "classes": np.array(classes)}


def test_average_precision_of_an_example_worked_by_hand() -> None:
    one, two, far = [0, 0, 10, 10], [20, 20, 30, 30], [50, 50, 60, 60]
    labels = {"boxes": np.array([[one, two]], np.float32), "classes": np.array([[0, 0]])}
    right = detections([[one, far, two]], [[0.9, 0.8, 0.7]], [[0, 0, 0]])
    assert scored("mean_average_precision", right, labels) == pytest.approx(1 / 2 + 2 / 3 / 2)
    other = detections([[one, two]], [[0.9, 0.8]], [[0, 1]])
    assert scored("mean_average_precision", other, labels) == pytest.approx(0.5)
    twice = detections([[one, one, two]], [[0.9, 0.8, 0.7]], [[0, 0, 0]])
    assert scored("mean_average_precision", twice, labels) == pytest.approx(1 / 2 + 2 / 3 / 2)
    nothing = detections([[far]], [[np.nan]], [[0]])
    assert scored("mean_average_precision", nothing, labels) == 0.0
    empty = {"boxes": np.zeros((1, 2, 4), np.float32), "classes": np.full((1, 2), -1)}
    with pytest.raises(MetricError, match="no object"):
        scored("mean_average_precision", right, empty)


def test_overlap_is_that_of_the_definition() -> None:
    boxes = np.array([[0, 0, 10, 10], [5, 5, 15, 15], [20, 20, 30, 30]], np.float32)
    np.testing.assert_allclose(box_iou(boxes[0], boxes), [1, 25 / 175, 0], rtol=1e-6)


def by_recursion(one: Sequence[int], two: Sequence[int]) -> int:
    if not one or not two:
        return len(one) + len(two)
    if one[0] == two[0]:
        return by_recursion(one[1:], two[1:])
    return 1 + min(by_recursion(one[1:], two), by_recursion(one, two[1:]), by_recursion(one[1:], two[1:]))


words = st.lists(st.integers(0, 2), max_size=5)


@given(words, words)
def test_the_edit_distance_is_that_of_the_definition(one: list[int], two: list[int]) -> None:
    assert edits(np.array(one, np.int64), np.array(two, np.int64)) == by_recursion(one, two)


def test_edits_are_counted_per_token_of_the_label() -> None:
    labels = {"tokens": np.array([[1, 2, 3, -1], [4, 5, -1, -1]])}
    tokens = np.array([[1, 3, -1, -1], [4, 5, 6, -1]])
    assert scored("edit_distance", {"y": tokens}, labels) == 2 / 5
    logits = np.eye(7, dtype=np.float32)[np.array([[1, 2, 3, 3], [4, 5, 5, 5]])]
    assert scored("edit_distance", {"y": logits}, labels) == 3 / 5
    ctc = np.eye(7, dtype=np.float32)[np.array([[1, 1, 0, 2, 3, 0], [0, 4, 0, 4, 5, 5]])]
    assert scored("ctc_edit_distance", {"y": ctc}, labels) == 1 / 5
    with pytest.raises(MetricError, match="no token"):
        scored("edit_distance", {"y": tokens}, {"tokens": np.full((2, 4), -1)})
    assert not SHIPPED["edit_distance"]().higher_is_better


def test_retrieval_finds_the_nearest_other_by_angle() -> None:
    angles = np.deg2rad([0, 3, 90, 93, 45])
    embeddings = (np.stack([np.cos(angles), np.sin(angles)], axis=1) * [[1], [9], [1], [5], [2]]).astype(np.float32)
    labels = {"identity": np.array([1, 1, 2, 2, 3])}
    assert scored("retrieval", {"y": embeddings}, labels) == 0.8
    with pytest.raises(MetricError, match="two samples"):
        scored("retrieval", {"y": embeddings[:1]}, {"identity": np.array([1])})


def test_what_is_missing_is_named() -> None:
    with pytest.raises(MetricError, match=r"the golden set has no label\.tokens"):
        scored("edit_distance", {"y": np.zeros((1, 2), np.int64)}, {"label": np.zeros(1)})
    with pytest.raises(MetricError, match=r"no output is embeddings \(samples, size\); there are y \[1, 2, 3\]"):
        scored("retrieval", {"y": np.zeros((1, 2, 3), np.float32)}, {"label": np.zeros(1)})
