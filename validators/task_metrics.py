"""A task's own metric, shipped or by plug-in: computed of the reference's outputs and of the engine's, and compared.

A plug-in is `module:name` in a policy, or the name of an entry point of the group `modelreg.metrics`. What it names is

- a function of (outputs, labels) that returns one score per sample, which are averaged; more is better, unless it has
  an attribute `higher_is_better = False`; or
- a class (or another callable without arguments) that makes a `Scorer`, for metrics that are no average.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from modelreg.config.policy import Policy, Rule, Scope, TaskMetric
from modelreg.registry.records import GateResult
from modelreg.registry.tensor_sets import TensorSet
from modelreg.registry.words import GateOutcome, Json
from modelreg.validators.gates import rule_gate
from modelreg.validators.golden import LABEL, LABEL_MORE, OUTPUT
from modelreg.validators.metrics import json_number

Array = NDArray[Any]
Arrays = Mapping[str, Array]

GROUP = "modelreg.metrics"


class MetricError(Exception):
    """A task's metric cannot be computed; says why."""


class Scorer(Protocol):
    """Adds up one metric over runs of the model."""

    higher_is_better: bool

    def update(self, outputs: Arrays, labels: Arrays) -> None:
        """
        Take the next samples.

        Args:
            outputs: The model's outputs of one run, by name.
            labels: `label` and every `label.NAME` (as `NAME`) of the same samples, one row per sample.
        """
        ...

    def result(self) -> float:
        """Return the metric over all samples so far."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScore:
    """One metric of the reference and of the engine; `error` says why there is none."""

    metric: str
    reference: float = float("nan")
    engine: float = float("nan")
    higher_is_better: bool = True
    error: str = ""

    @property
    def drop(self) -> float:
        """Return how much worse the engine is; below zero where it is better."""
        lost = self.reference - self.engine
        return lost if self.higher_is_better else -lost

    def to_json(self) -> Json:
        """Return it as JSON."""
        if self.error:
            return {"metric": self.metric, "error": self.error}
        return {
            "metric": self.metric,
            "reference": json_number(self.reference),
            "engine": json_number(self.engine),
            "drop": json_number(self.drop),
            "higher_is_better": self.higher_is_better,
        }


class _Average:
    """The mean of a function's scores per sample."""

    def __init__(self, function: Callable[[Arrays, Arrays], Any]) -> None:
        self.higher_is_better = bool(getattr(function, "higher_is_better", True))
        self._function = function
        self._sum, self._samples = 0.0, 0

    def update(self, outputs: Arrays, labels: Arrays) -> None:
        scores = np.asarray(self._function(outputs, labels), dtype=np.float64)
        rows = len(next(iter(labels.values()), ()))
        if scores.ndim != 1 or (labels and len(scores) != rows):
            raise MetricError(f"it must give one score per sample, and gives {list(scores.shape)} for {rows} samples")
        self._sum += float(scores.sum())
        self._samples += len(scores)

    def result(self) -> float:
        if not self._samples:
            raise MetricError("there are no samples")
        return self._sum / self._samples


def load_metric(name: str) -> Callable[[], Scorer]:
    """
    Return what makes a scorer.

    Raises:
        MetricError: There is no such metric, or it is nothing of the kind.
    """
    found = _find(name)
    if not callable(found):
        raise MetricError(f"{name} is a {type(found).__name__}, no function and no class")
    try:
        parameters = [p for p in inspect.signature(found).parameters.values() if p.default is p.empty]
    except (TypeError, ValueError):
        parameters = []
    if not inspect.isclass(found) and len(parameters) == 2:
        return lambda: _Average(found)

    def make() -> Scorer:
        made = found()
        if not all(hasattr(made, each) for each in ("update", "result", "higher_is_better")):
            raise MetricError(f"{name} makes a {type(made).__name__} without update, result or higher_is_better")
        scorer: Scorer = made
        return scorer

    return make


def _find(name: str) -> Any:
    if ":" in name:
        module, _, attribute = name.partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise MetricError(f"{name} cannot be loaded: {error}") from error
    from modelreg.validators.task_scorers import SHIPPED  # noqa: PLC0415 - it imports this module

    if name in SHIPPED:
        return SHIPPED[name]
    installed = {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}
    if name not in installed:
        known = ", ".join(sorted({*SHIPPED, *installed}))
        raise MetricError(f"there is no metric {name!r}; there are {known}")
    try:
        return installed[name].load()
    except Exception as error:
        raise MetricError(f"the plug-in {name!r} cannot be loaded: {error}") from error


class TaskMeasure:
    """One metric of a policy, of both sides, over one pass; what goes wrong is kept, since it is a gate's outcome."""

    def __init__(self, metric: str, golden: TensorSet, samples: int) -> None:
        self._metric, self._golden, self._samples = metric, golden, samples
        self._error = ""
        self._keys = {k.removeprefix(LABEL_MORE): k for k in golden.tensors if k == LABEL or k.startswith(LABEL_MORE)}
        try:
            if not self._keys:
                raise MetricError("the golden set has no labels")
            make = load_metric(metric)
            self._reference, self._engine = make(), make()
        except Exception as error:
            self._error = _say(error)

    def update(self, outputs: Arrays, start: int, stop: int) -> None:
        """Take the outputs of one run, of the samples `start` to `stop`."""
        if self._error:
            return
        try:
            labels = {name: self._golden.read(key, start, stop) for name, key in self._keys.items()}
            self._reference.update({name: self._expected(name, start, stop) for name in outputs}, labels)
            self._engine.update(outputs, labels)
        except Exception as error:
            self._error = _say(error)

    def result(self) -> TaskScore:
        """Return both sides, or why there are none."""
        if self._error:
            return TaskScore(metric=self._metric, error=self._error)
        try:
            return TaskScore(
                metric=self._metric,
                reference=float(self._reference.result()),
                engine=float(self._engine.result()),
                higher_is_better=self._engine.higher_is_better,
            )
        except Exception as error:
            return TaskScore(metric=self._metric, error=_say(error))

    def _expected(self, name: str, start: int, stop: int) -> Array:
        info = self._golden.tensors[OUTPUT + name]
        if not info.shape or info.rows % self._samples:
            raise MetricError(f"output {name!r} has {info.rows} rows for {self._samples} samples")
        each = info.rows // self._samples
        return self._golden.read(OUTPUT + name, start * each, stop * each)


def own_metrics(policy: Policy) -> tuple[str, ...]:
    """Return the names of the metrics that a policy gets from plug-ins."""
    return tuple(str(rule.metric) for rule in policy.rules_for(Scope.TASK) if isinstance(rule.metric, TaskMetric))


def own_gates(scores: Mapping[str, TaskScore], *, policy: Policy, subject: str) -> list[GateResult]:
    """Return the gates of plug-ins: how much worse the engine is than the reference; `error` where nobody knows."""
    rules = [rule for rule in policy.rules_for(Scope.TASK) if isinstance(rule.metric, TaskMetric)]
    return [_gate(rule, scores[str(rule.metric)], subject) for rule in rules if str(rule.metric) in scores]


def _gate(rule: Rule, score: TaskScore, subject: str) -> GateResult:
    if score.error:
        outcome = GateOutcome.SKIPPED if score.error == "the golden set has no labels" else GateOutcome.ERROR
        return GateResult(gate=rule.gate, subject=subject, outcome=outcome, reason=score.error)
    better = "fell" if score.higher_is_better else "rose"
    fact = f"{rule.metric} {better} from {score.reference:.4g} to {score.engine:.4g}"
    return rule_gate(rule, score.drop, subject=subject, fact=fact)


def _say(error: Exception) -> str:
    if isinstance(error, MetricError):
        return str(error)
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"
