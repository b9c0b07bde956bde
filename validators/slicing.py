"""Slices of a golden set (night, one camera, short sentences): each is judged alone, and the worst one is named.

A slice is small, and a rate over few samples is coarse: one sample of twenty is five percent. So a drop in accuracy
fails only where an exact sign test over the samples that only one side gets right finds it too unlikely to be chance;
else it is inconclusive. The chance of a false alarm is held at five percent for all slices together (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelreg.config.policy import Metric, Policy, Rule, Scope
from modelreg.registry.records import GateResult
from modelreg.registry.words import GateOutcome, Json
from modelreg.validators.formulas import sqnr_db
from modelreg.validators.gates import rule_gate, skipped_gate
from modelreg.validators.metrics import json_number
from modelreg.validators.ranking import top1

Array = NDArray[Any]

SIGNIFICANCE = 0.05
WORST_OF_SLICE = 8
"""So many samples of a slice are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceMetrics:
    """What was measured of one slice.

    Attributes:
        samples: Its samples.
        lost: Samples that the reference gets right and the engine does not; `gained` the other way round.
        agreed: Samples of the same top-1.
        sqnr: Decibels of the output over the slice; None where a value is not finite.
        has_decisions: Whether there are labels.
        worst: The rows with the largest errors, the worst first.
    """

    name: str
    samples: int
    lost: int
    gained: int
    agreed: int
    sqnr: float | None
    has_decisions: bool
    worst: tuple[int, ...] = ()

    @property
    def accuracy_drop(self) -> float:
        """Return the accuracy of the reference less that of the engine."""
        return (self.lost - self.gained) / self.samples

    def measure(self, metric: object) -> float | None:
        """Return a metric, or None where it cannot be measured."""
        if metric is Metric.SQNR_DB:
            return self.sqnr
        if not self.has_decisions:
            return None
        return self.accuracy_drop if metric is Metric.ACCURACY_DROP else self.agreed / self.samples

    def to_json(self) -> Json:
        """Return it as JSON."""
        body: Json = {"slice": self.name, "samples": self.samples}
        body["sqnr_db"] = None if self.sqnr is None else json_number(self.sqnr)
        if self.has_decisions:
            body |= {"accuracy_drop": self.accuracy_drop, "top1_agreement": self.agreed / self.samples}
            body |= {"lost": self.lost, "gained": self.gained}
        return body


class SliceAccumulator:
    """Measures one output slice by slice, batch by batch; the memory of a batch."""

    def __init__(self, names: dict[int, str]) -> None:
        self._names = names
        self._numbers = np.array(list(names), dtype=np.int64)
        # samples, lost, gained, agreed
        self._counts = np.zeros((len(names), 4), dtype=np.int64)
        self._energies = np.zeros((len(names), 2), dtype=np.float64)  # reference², error²
        self._has_decisions = False
        self._rows = 0
        self._worst: dict[int, list[tuple[float, int]]] = {}

    def update(self, reference: Array, candidate: Array, labels: Array | None, slices: Array) -> None:
        """Measure the next rows.

        Args:
            reference: Golden rows, shape (rows, ...); class scores (rows, classes) or class numbers with `labels`.
            candidate: The engine's, same shape.
            labels: The right classes, shape (rows,), or None.
            slices: The slice of each row, shape (rows,).
        """
        place = np.searchsorted(self._numbers, slices.astype(np.int64))
        counts = [np.ones(len(slices), dtype=np.int64)]
        if labels is not None:
            self._has_decisions = True
            expected, got = top1(reference), top1(candidate)
            was, is_now = expected == labels, got == labels
            counts += [was & ~is_now, ~was & is_now, expected == got]
        for column, counted in enumerate(counts):
            np.add.at(self._counts[:, column], place, counted.astype(np.int64))
        with np.errstate(all="ignore"):
            r = reference.reshape(len(reference), -1).astype(np.float64)
            d = r - candidate.reshape(len(candidate), -1)
            np.add.at(self._energies[:, 0], place, np.einsum("ij,ij->i", r, r))
            errors = np.einsum("ij,ij->i", d, d)
            np.add.at(self._energies[:, 1], place, errors)
        self._remember(place, np.nan_to_num(errors, nan=np.inf))

    def _remember(self, place: NDArray[np.int64], errors: NDArray[np.float64]) -> None:
        """Keep the rows of each slice with the largest errors."""
        for slice_place in np.unique(place):
            rows = np.flatnonzero(place == slice_place)
            rows = rows[np.argsort(-errors[rows], kind="stable")[:WORST_OF_SLICE]]
            found = [(float(errors[row]), self._rows + int(row)) for row in rows if errors[row] > 0]
            known = self._worst.get(int(slice_place), [])
            self._worst[int(slice_place)] = sorted([*known, *found], key=lambda w: (-w[0], w[1]))[:WORST_OF_SLICE]
        self._rows += len(place)

    def result(self) -> tuple[SliceMetrics, ...]:
        """Return what was measured, by slice."""
        return tuple(
            SliceMetrics(
                name=name,
                samples=int(samples),
                lost=int(lost),
                gained=int(gained),
                agreed=int(agreed),
                sqnr=sqnr_db(*energies) if np.isfinite(energies).all() else None,
                has_decisions=self._has_decisions,
                worst=tuple(row for _, row in self._worst.get(place, ())),
            )
            for place, (name, (samples, lost, gained, agreed), energies) in enumerate(
                zip(self._names.values(), self._counts, self._energies, strict=True)
            )
            if samples
        )


def slice_gates(slices: Sequence[SliceMetrics] | None, *, policy: Policy, subject: str) -> list[GateResult]:
    """Return the gates of the slices, each by the worst one; skipped without slices."""
    gates = []
    for rule in policy.rules_for(Scope.SLICE):
        if not slices:
            gates.append(skipped_gate(rule.gate, f"{subject} by slice", "the golden set has no slices"))
        else:
            gates.append(_gate(rule, slices, subject))
    return gates


def _gate(rule: Rule, slices: Sequence[SliceMetrics], subject: str) -> GateResult:
    measured = [(value, each) for each in slices if (value := each.measure(rule.metric)) is not None]
    if not measured:
        return skipped_gate(rule.gate, f"{subject} by slice", "no slice can be measured: there are no labels")
    value, worst = (min if rule.comparison == ">=" else max)(measured, key=lambda pair: pair[0])
    name = f"{subject}, slice {worst.name}"
    fact = f"{rule.metric} of slice {worst.name} ({worst.samples} samples) is {value:.4g}, the worst of {len(measured)}"
    gate = rule_gate(rule, value, subject=name, fact=fact, samples=worst.worst)
    if gate.outcome is not GateOutcome.FAIL or rule.metric is not Metric.ACCURACY_DROP:
        return gate
    bad = [each for _, each in measured if not rule.is_met(each.accuracy_drop)]
    surest = min(bad, key=lambda each: sign_test(each.lost, each.gained))
    chance = sign_test(surest.lost, surest.gained) * len(measured)
    if chance <= SIGNIFICANCE:
        said = f"accuracy_drop of slice {surest.name} ({surest.samples} samples) is {surest.accuracy_drop:.4g}"
        sure = rule_gate(
            rule, surest.accuracy_drop, subject=f"{subject}, slice {surest.name}", fact=said, samples=surest.worst
        )
        return replace(sure, reason=f"{sure.reason}: {surest.lost} samples lost, {surest.gained} gained")
    reason = f"{gate.reason}; {worst.lost} lost and {worst.gained} gained may be chance (p {min(1.0, chance):.2g})"
    return replace(gate, outcome=GateOutcome.INCONCLUSIVE, reason=reason)


def sign_test(lost: int, gained: int) -> float:
    """Return how likely so many losses or more are among the changed samples, if losing and gaining are as likely."""
    changed = lost + gained
    if not changed:
        return 1.0
    return float(sum(math.comb(changed, k) for k in range(lost, changed + 1)) / 2**changed)
