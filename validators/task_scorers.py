"""The task metrics that ship: top-k, mean IoU, mean average precision, edit distance, cosine retrieval."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelreg.validators.task_metrics import Arrays, MetricError

Array = NDArray[Any]

MAX_GALLERY = 10_000
"""Embeddings that retrieval keeps, so that its memory is bounded."""
IGNORED = (-1, 255)


def label_of(labels: Arrays, *names: str) -> Array:
    """Return the first label of these names."""
    for name in names:
        if name in labels:
            return labels[name]
    wanted = " or ".join("label" if name == "label" else f"label.{name}" for name in names)
    raise MetricError(f"the golden set has no {wanted}")


def output_of(outputs: Arrays, what: str, fits: Callable[[Array], bool]) -> Array:
    """Return the first output that fits."""
    for array in outputs.values():
        if fits(array):
            return array
    shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in outputs.items())
    raise MetricError(f"no output is {what}; there are {shapes}")


class TopK:
    """The part of the samples whose label is among the k best classes."""

    higher_is_better = True

    def __init__(self, k: int) -> None:
        self._k, self._right, self._samples = k, 0, 0

    def update(self, outputs: Arrays, labels: Arrays) -> None:
        """Take the next samples."""
        scores = output_of(outputs, "(samples, classes)", lambda a: a.ndim == 2 and a.dtype.kind == "f")
        own = np.take_along_axis(scores, label_of(labels, "label").astype(np.int64)[:, None], axis=1)
        before = np.arange(scores.shape[1]) < label_of(labels, "label").astype(np.int64)[:, None]
        rank = np.count_nonzero(~(scores <= own), axis=1) + np.count_nonzero((scores == own) & before, axis=1)
        self._right += int(np.count_nonzero(rank < self._k))
        self._samples += len(scores)

    def result(self) -> float:
        """Return the metric so far."""
        return self._right / self._samples


class MeanIoU:
    """Intersection over union of semantic segmentation, averaged over the classes that occur.

    Output: scores (samples, classes, height, width), or class numbers (samples, height, width). Label: `label.mask`,
    (samples, height, width); -1 and 255 are left out.
    """

    higher_is_better = True

    def __init__(self) -> None:
        self._both: dict[int, int] = {}
        self._either: dict[int, int] = {}

    def update(self, outputs: Arrays, labels: Arrays) -> None:
        """Take the next samples."""
        mask = label_of(labels, "mask", "label").astype(np.int64)
        found = output_of(outputs, "a segmentation", lambda a: a.ndim in (3, 4) and a.shape[-2:] == mask.shape[-2:])
        classes = found.argmax(axis=1) if found.ndim == 4 else found.astype(np.int64)
        counts = ~np.isin(mask, IGNORED)
        for number in np.unique(np.concatenate([mask[counts], classes[counts]])):
            expected, got = (mask == number) & counts, (classes == number) & counts
            key = int(number)
            self._both[key] = self._both.get(key, 0) + int(np.count_nonzero(expected & got))
            self._either[key] = self._either.get(key, 0) + int(np.count_nonzero(expected | got))

    def result(self) -> float:
        """Return the metric so far."""
        if not self._either:
            raise MetricError("no pixel has a class")
        return float(np.mean([self._both[key] / self._either[key] for key in self._either]))


class MeanAveragePrecision:
    """Mean average precision of detections at an IoU of 0.5, the area under the whole precision-recall curve.

    Outputs: `boxes` (samples, detections, 4) as x1 y1 x2 y2, `scores` and `classes` (samples, detections). Labels:
    `label.boxes` (samples, objects, 4) and `label.classes` (samples, objects), -1 for none.
    """

    higher_is_better = True

    def __init__(self, threshold: float = 0.5) -> None:
        self._threshold = threshold
        self._hits: dict[int, list[tuple[float, bool]]] = {}
        self._objects: dict[int, int] = {}

    def update(self, outputs: Arrays, labels: Arrays) -> None:
        """Take the next samples."""
        missing = [name for name in ("boxes", "scores", "classes") if name not in outputs]
        if missing:
            raise MetricError(f"the model has no output {missing[0]!r}")
        true_boxes, true_classes = label_of(labels, "boxes"), label_of(labels, "classes").astype(np.int64)
        for row in range(len(true_classes)):
            for number in np.unique(true_classes[row][true_classes[row] >= 0]):
                wanted = int(np.count_nonzero(true_classes[row] == number))
                self._objects[int(number)] = self._objects.get(int(number), 0) + wanted
            found = (outputs[name][row] for name in ("boxes", "scores", "classes"))
            self._match(true_boxes[row], true_classes[row], *found)

    def _match(self, true_boxes: Array, true_classes: Array, boxes: Array, scores: Array, classes: Array) -> None:
        taken = np.zeros(len(true_boxes), dtype=bool)
        for i in np.argsort(-scores, kind="stable"):
            if not np.isfinite(scores[i]) or classes[i] < 0:
                continue
            overlap = np.where((true_classes == classes[i]) & ~taken, box_iou(boxes[i], true_boxes), 0.0)
            best = int(overlap.argmax()) if len(overlap) else 0
            is_hit = bool(len(overlap)) and overlap[best] >= self._threshold
            if is_hit:
                taken[best] = True
            self._hits.setdefault(int(classes[i]), []).append((float(scores[i]), is_hit))

    def result(self) -> float:
        """Return the metric so far."""
        if not self._objects:
            raise MetricError("the labels have no object")
        return float(np.mean([self._average_precision(number) for number in self._objects]))

    def _average_precision(self, number: int) -> float:
        hits = sorted(self._hits.get(number, []), key=lambda hit: -hit[0])
        right = np.cumsum([is_hit for _, is_hit in hits])
        if not len(right) or not right[-1]:
            return 0.0
        precision = right / np.arange(1, len(right) + 1)
        envelope = np.maximum.accumulate(precision[::-1])[::-1]
        is_hit = np.diff(right, prepend=0) > 0
        return float(envelope[is_hit].sum() / self._objects[number])


def box_iou(box: Array, boxes: Array) -> Array:
    """Return the intersection over union of one box with each of others, corners as x1 y1 x2 y2."""
    low, high = np.maximum(box[:2], boxes[:, :2]), np.minimum(box[2:], boxes[:, 2:])
    both = np.prod(np.clip(high - low, 0, None), axis=1)
    areas = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1) + np.prod(box[2:] - box[:2])
    iou: Array = both / np.maximum(areas - both, np.finfo(np.float32).tiny)
    return iou


class EditDistance:
    """Edits (insertions, deletions, substitutions) per token of the label, as word and character error rates have it.

    Output: tokens (samples, length), or scores (samples, length, tokens). Label: `label.tokens` (samples, length).
    Numbers below zero fill up rows. With `ctc`, repeated tokens count once and token 0 is the blank.
    """

    higher_is_better = False

    def __init__(self, *, ctc: bool = False) -> None:
        self._ctc, self._edits, self._tokens = ctc, 0, 0

    def update(self, outputs: Arrays, labels: Arrays) -> None:
        """Take the next samples."""
        wanted = label_of(labels, "tokens")
        found = output_of(outputs, "token sequences", lambda a: a.ndim in (2, 3) and len(a) == len(wanted))
        tokens = found.argmax(axis=2) if found.ndim == 3 else found
        for got, expected in zip(tokens, wanted, strict=True):
            kept = expected[expected >= 0]
            self._edits += edits(self._decode(got), kept)
            self._tokens += len(kept)

    def _decode(self, row: Array) -> Array:
        if not self._ctc:
            return row[row >= 0]
        changed = np.ones(len(row), dtype=bool)
        changed[1:] = row[1:] != row[:-1]
        return row[changed & (row > 0)]

    def result(self) -> float:
        """Return the metric so far."""
        if not self._tokens:
            raise MetricError("the labels have no token")
        return self._edits / self._tokens


def edits(one: Array, two: Array) -> int:
    """Return the edit distance of two sequences, a row of the table at a time."""
    previous = np.arange(len(two) + 1)
    steps = np.arange(1, len(two) + 1)
    for position, token in enumerate(one, start=1):
        changed = np.minimum(previous[1:] + 1, previous[:-1] + (two != token))
        # An insertion costs one more than the entry before it: a running minimum of what is left after the steps.
        current = np.minimum.accumulate(np.concatenate([[position], changed - steps]))
        current[1:] += steps
        previous = current
    return int(previous[-1])


class Retrieval:
    """The part of the samples whose nearest other sample by cosine has the same label (recall at 1).

    Output: embeddings (samples, size). Label: `label.identity`, or `label`. The first 10,000 samples are used.
    """

    higher_is_better = True

    def __init__(self) -> None:
        self._embeddings: list[Array] = []
        self._labels: list[Array] = []
        self._samples = 0

    def update(self, outputs: Arrays, labels: Arrays) -> None:
        """Take the next samples."""
        left = MAX_GALLERY - self._samples
        identities = label_of(labels, "identity", "label")[:left]
        found = output_of(outputs, "embeddings (samples, size)", lambda a: a.ndim == 2 and a.dtype.kind == "f")[:left]
        lengths = np.linalg.norm(found.astype(np.float32), axis=1, keepdims=True)
        self._embeddings.append(found.astype(np.float32) / np.maximum(lengths, 1e-12))
        self._labels.append(identities)
        self._samples += len(identities)

    def result(self) -> float:
        """Return the metric so far."""
        if self._samples < 2:
            raise MetricError("retrieval needs two samples at least")
        gallery, labels = np.concatenate(self._embeddings), np.concatenate(self._labels)
        right = 0
        for start in range(0, len(gallery), 512):
            part = gallery[start : start + 512]
            similar = part @ gallery.T
            similar[np.arange(len(part)), np.arange(start, start + len(part))] = -np.inf
            nearest = np.where(np.isnan(similar), -np.inf, similar).argmax(axis=1)
            right += int(np.count_nonzero(labels[nearest] == labels[start : start + 512]))
        return right / len(gallery)


SHIPPED: dict[str, Callable[[], Any]] = {
    "top_1": partial(TopK, 1),
    "top_3": partial(TopK, 3),
    "top_5": partial(TopK, 5),
    "mean_iou": MeanIoU,
    "mean_average_precision": MeanAveragePrecision,
    "edit_distance": EditDistance,
    "ctc_edit_distance": partial(EditDistance, ctc=True),
    "retrieval": Retrieval,
}
"""By the name that a policy uses with `applies_to = "task"`."""
