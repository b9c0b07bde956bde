"""What a classifier decides: top-1 and top-5 agreement with the reference, and accuracy against labels.

A class's rank counts the larger values and the equal ones before it, as `argmax` does: an output that collapsed to
one value for every class agrees with nothing by luck of ties.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelreg.config.policy import Metric
from modelreg.registry.words import Json
from modelreg.validators.metrics import BLOCK_VALUES, KEPT_SAMPLES

Array = NDArray[Any]
NO_CLASS = -1  # what a row with a NaN predicts


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """One sample that the engine decides otherwise than the reference; `got` is -1 for a row with a NaN."""

    row: int
    expected: int
    got: int
    label: int

    def to_json(self) -> Json:
        """Return the flip as JSON."""
        return {"row": self.row, "expected": self.expected, "got": self.got, "label": self.label}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMetrics:
    """Agreement from 0 to 1, and how many samples each side gets right.

    Attributes:
        top5_agreement: None with five classes or fewer.
        flips: The first samples that were right in the reference and are wrong now, else of another top-1.
    """

    samples: int
    top1_agreement: float
    top5_agreement: float | None
    reference_right: int
    right: int
    flips: tuple[Flip, ...]

    @property
    def reference_accuracy(self) -> float:
        """Return the part of the samples that the reference gets right."""
        return self.reference_right / self.samples

    @property
    def accuracy(self) -> float:
        """Return the part of the samples that the engine gets right."""
        return self.right / self.samples

    @property
    def measured(self) -> dict[Metric, float]:
        """Return one number per metric."""
        # From the counts, since 0.98 - 0.975 is a little more than 0.005 in floating point.
        drop = (self.reference_right - self.right) / self.samples
        found = {Metric.TOP1_AGREEMENT: self.top1_agreement, Metric.ACCURACY_DROP: drop}
        if self.top5_agreement is not None:
            found[Metric.TOP5_AGREEMENT] = self.top5_agreement
        return found

    def to_json(self) -> Json:
        """Return the metrics as JSON."""
        return {
            "samples": self.samples,
            "reference_accuracy": self.reference_accuracy,
            "accuracy": self.accuracy,
            **{str(metric): value for metric, value in self.measured.items()},
            "flips": [flip.to_json() for flip in self.flips],
        }


class RankAccumulator:
    """Compares decisions batch by batch: scores of shape (rows, classes), or class numbers of shape (rows,)."""

    def __init__(self) -> None:
        self._samples = self._top1 = self._top5 = self._reference_right = self._right = 0
        self._classes = 0
        self._lost: list[Flip] = []
        self._changed: list[Flip] = []

    def update(self, reference: Array, candidate: Array, labels: Array) -> None:
        """Compare the next rows.

        Args:
            reference: Golden rows, shape (rows, classes) or (rows,).
            candidate: The engine's output, same shape.
            labels: The right classes, integers of shape (rows,).

        Raises:
            ValueError: The shapes do not fit.
        """
        rows = reference.shape[0]
        if reference.shape != candidate.shape or labels.shape != (rows,) or reference.ndim not in {1, 2}:
            raise ValueError(f"shapes {reference.shape}, {candidate.shape} and {labels.shape} do not fit")
        self._classes = reference.shape[1] if reference.ndim == 2 else 0
        step = max(1, 4 * BLOCK_VALUES // max(1, self._classes))
        for start in range(0, rows, step):
            part = slice(start, start + step)
            self._update_block(reference[part], candidate[part], labels[part])

    def result(self) -> RankMetrics | None:
        """Return what was measured so far, or None when there was no sample."""
        if not self._samples:
            return None
        return RankMetrics(
            samples=self._samples,
            top1_agreement=self._top1 / self._samples,
            top5_agreement=self._top5 / self._samples if self._classes > 5 else None,
            reference_right=self._reference_right,
            right=self._right,
            flips=tuple([*self._lost, *self._changed][:KEPT_SAMPLES]),
        )

    def _update_block(self, reference: Array, candidate: Array, labels: Array) -> None:
        expected, got = top1(reference), top1(candidate)
        others = np.flatnonzero((expected != got) | (got == NO_CLASS))
        self._top1 += len(labels) - len(others)
        self._top5 += len(labels) - len(others)
        if self._classes > 5 and len(others):
            ranks = _ranks(candidate[others], expected[others])
            self._top5 += int(np.count_nonzero(ranks < 5))
        self._reference_right += int(np.count_nonzero(expected == labels))
        self._right += int(np.count_nonzero(got == labels))
        lost = (expected == labels)[others]
        self._keep(self._lost, others[lost], expected, got, labels)
        self._keep(self._changed, others[~lost], expected, got, labels)
        self._samples += len(labels)

    def _keep(self, flips: list[Flip], rows: Array, expected: Array, got: Array, labels: Array) -> None:
        for i in rows[: KEPT_SAMPLES - len(flips)]:
            flips.append(
                Flip(
                    row=self._samples + int(i),
                    expected=int(expected[i]),
                    got=int(got[i]),
                    label=int(labels[i]),
                )
            )


def top1(scores: Array) -> Array:
    """Return the predicted classes of rows of scores; class numbers are their own prediction."""
    if scores.ndim == 1:
        return scores.astype(np.int64)
    found: Array = scores.argmax(axis=1).astype(np.int64)
    found[np.isnan(scores[np.arange(len(found)), found])] = NO_CLASS  # argmax stops at a NaN
    return found


def _ranks(scores: Array, classes: Array) -> Array:
    """Return how many classes come before `classes` in each row; all of them where the row has a NaN."""
    own = np.take_along_axis(scores, classes[:, None], axis=1)
    before = np.arange(scores.shape[1]) < classes[:, None]
    ranks: Array = np.count_nonzero(scores > own, axis=1) + np.count_nonzero((scores == own) & before, axis=1)
    ranks[np.isnan(scores).any(axis=1)] = scores.shape[1]
    return ranks
