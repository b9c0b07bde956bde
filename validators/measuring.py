"""Run an engine over a golden set and measure its outputs, one run at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelreg.registry.errors import ModelregError, WorkerStartError
from modelreg.registry.tensor_sets import TensorSet, row_chunks
from modelreg.registry.words import Json
from modelreg.validators.behaviour import Behaviour, Prober
from modelreg.validators.durations import RunTimes
from modelreg.validators.golden import LABEL, OUTPUT, SLICE, CheckedGolden, class_scores
from modelreg.validators.interface import EvaluationPass, Progress, RangeUse, Runner
from modelreg.validators.metrics import MetricAccumulator, OutputMetrics
from modelreg.validators.ranking import RankAccumulator, RankMetrics, top1
from modelreg.validators.slicing import SliceAccumulator, SliceMetrics
from modelreg.validators.task_metrics import TaskMeasure, TaskScore

Array = NDArray[Any]


class OutputMismatchError(Exception):
    """An engine's outputs do not line up with the golden set's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassMeasurement:
    """What one pass over the golden set found; `error` is empty unless it could not be finished.

    Attributes:
        overflows: By node, the values between nodes that became infinite; None where they cannot be seen.
        runs: How long the engine's runs took, the way to its process included; None where they were not timed.
        ranges: How quantised values used their ranges; None where they cannot be seen.
        behaviour: What further runs showed; None where nobody asked, or the engine does not run.
        scores: The task's own metrics, by name.
        slices: By output, what each slice of the samples came to.
        looks_inside: Whether the outputs are not judged here.
    """

    name: str
    outputs: dict[str, OutputMetrics]
    decisions: dict[str, dict[int, Json]]
    ranks: RankMetrics | None
    seconds: float
    overflows: dict[str, int] | None = None
    error: str = ""
    runs: Json | None = None
    ranges: tuple[RangeUse, ...] | None = None
    behaviour: Behaviour | None = None
    scores: dict[str, TaskScore] = field(default_factory=dict)
    slices: dict[str, tuple[SliceMetrics, ...]] = field(default_factory=dict)
    looks_inside: bool = False


def measure_pass(
    evaluation: EvaluationPass,
    *,
    golden: TensorSet,
    checked: CheckedGolden,
    progress: Progress,
    metrics: Sequence[str] = (),
    prober: Prober | None = None,
) -> PassMeasurement:
    """
    Return what an engine does with a golden set; its crash is a measurement with an error, no exception.

    Args:
        evaluation: How it is run.
        golden: The open golden set.
        checked: How the set is used.
        progress: Called after every run of the engine.
        metrics: The task's own metrics, by name.
        prober: Tries the engine further once the golden set is through; None where nobody asks.

    Raises:
        WorkerStartError: What runs it could not be started here, so that nothing was measured.
    """
    started = time.perf_counter()
    if evaluation.looks_inside:
        return _look_inside(evaluation, golden, checked, progress)
    outputs = {name: _OutputMeasure(name, golden, checked) for name in checked.scales}
    tasks = [TaskMeasure(metric, golden, checked.samples) for metric in metrics]
    error, times = "", RunTimes()
    overflows: Mapping[str, int] | None = None
    behaviour: Behaviour | None = None
    try:
        with evaluation.open_runner() as runner:
            done = partial(progress, evaluation.name)
            _run_all(
                runner,
                outputs,
                tasks,
                golden=golden,
                checked=checked,
                done=lambda samples: done(samples, checked.samples),
                times=times,
            )
            overflows = runner.overflows
            behaviour = prober.probe(runner) if prober is not None else None
    except OutputMismatchError as mismatch:
        error = str(mismatch)
    except WorkerStartError:
        raise
    except Exception as crash:
        error = _one_line(crash)
    labelled = outputs[checked.labelled_output] if checked.labelled_output is not None else None
    return PassMeasurement(
        name=evaluation.name,
        outputs={name: output.metrics.result() for name, output in outputs.items()},
        decisions={name: output.decisions() for name, output in outputs.items()},
        ranks=labelled.ranks.result() if labelled is not None else None,
        seconds=time.perf_counter() - started,
        overflows=None if overflows is None else dict(overflows),
        error=error,
        runs=times.to_json(),
        behaviour=behaviour,
        scores={} if error else {score.metric: score for score in (task.result() for task in tasks)},
        slices={name: each.slices.result() for name, each in outputs.items() if each.slices is not None},
    )


def _look_inside(
    evaluation: EvaluationPass, golden: TensorSet, checked: CheckedGolden, progress: Progress
) -> PassMeasurement:
    """Run a pass whose outputs nobody asks for, over as many samples as it wants."""
    started = time.perf_counter()
    wanted = checked.samples if evaluation.samples is None else min(evaluation.samples, checked.samples)
    error = ""
    ranges: Sequence[Mapping[str, Any]] | None = None
    try:
        with evaluation.open_runner() as runner:
            for batch in checked.feed.iterate_batches(golden):
                runner.run(batch.inputs)
                progress(evaluation.name, min(batch.stop, wanted), wanted)
                if batch.stop >= wanted:
                    break
            ranges = runner.ranges
    except WorkerStartError:
        raise
    except Exception as crash:
        error = _one_line(crash)
    return PassMeasurement(
        name=evaluation.name,
        outputs={},
        decisions={},
        ranks=None,
        seconds=time.perf_counter() - started,
        ranges=None if ranges is None else tuple(RangeUse(**each) for each in ranges),
        error=error,
        looks_inside=True,
    )


def _run_all(
    runner: Runner,
    outputs: Mapping[str, _OutputMeasure],
    tasks: Sequence[TaskMeasure],
    *,
    golden: TensorSet,
    checked: CheckedGolden,
    done: Callable[[int], None],
    times: RunTimes,
) -> None:
    for batch in checked.feed.iterate_batches(golden):
        began = time.perf_counter()
        found = runner.run(batch.inputs)
        times.add(time.perf_counter() - began)
        for name, output in outputs.items():
            if name not in found:
                raise OutputMismatchError(f"the engine has no output {name!r}")
            output.update(found[name])
        for task in tasks:
            task.update({name: found[name] for name in outputs}, batch.start, batch.stop)
        done(batch.stop)
    for output in outputs.values():
        output.finish()


class _OutputMeasure:
    """One output: the metrics, the decisions, and how many golden rows were used up."""

    def __init__(self, name: str, golden: TensorSet, checked: CheckedGolden) -> None:
        self.metrics = MetricAccumulator(scale=checked.scales[name])
        self.ranks = RankAccumulator()
        self._name = name
        self._golden = golden
        self._info = golden.tensors[OUTPUT + name]
        self._is_labelled = name == checked.labelled_output
        is_per_sample = bool(self._info.shape) and self._info.rows == checked.samples
        self.slices = SliceAccumulator(checked.slices) if checked.slices and is_per_sample else None
        self._offset = 0
        self._seen: dict[int, Json] = {}

    def update(self, candidate: object) -> None:
        if not isinstance(candidate, np.ndarray | np.generic):
            raise OutputMismatchError(f"output {self._name!r} is a {type(candidate).__name__}, no array")
        rows = np.asarray(candidate)
        if rows.ndim == 0:
            rows = rows.reshape(1)
        if rows.shape[1:] != self._info.shape[1:]:
            raise OutputMismatchError(
                f"output {self._name!r} has shape {list(rows.shape)}, the golden set has {list(self._info.shape)}"
            )
        if self._offset + len(rows) > self._info.rows:
            raise OutputMismatchError(f"output {self._name!r} gives more than the golden set's {self._info.rows} rows")
        for start, stop in row_chunks(self._info):
            if start >= len(rows):
                break
            self._update_chunk(rows[start : min(stop, len(rows))])

    def finish(self) -> None:
        if self._offset != self._info.rows:
            raise OutputMismatchError(
                f"output {self._name!r} gave {self._offset} rows, the golden set has {self._info.rows}"
            )

    def decisions(self) -> dict[int, Json]:
        """Return what was expected, got and right in the worst rows of a classifier."""
        return {worst.row: self._seen[worst.row] for worst in self.metrics.worst if worst.row in self._seen}

    def _update_chunk(self, candidate: Array) -> None:
        first, self._offset = self._offset, self._offset + len(candidate)
        reference = self._golden.read(OUTPUT + self._name, first, self._offset)
        if reference.ndim == 0:
            reference = reference.reshape(1)
        self.metrics.update(reference, candidate)
        labels = self._golden.read(LABEL, first, self._offset) if self._is_labelled else None
        if self.slices is not None:
            scores = (reference, candidate) if labels is None else (class_scores(reference), class_scores(candidate))
            self.slices.update(*scores, labels, self._golden.read(SLICE, first, self._offset))
        if labels is not None:
            self.ranks.update(class_scores(reference), class_scores(candidate), labels)
            self._see(first, class_scores(reference), class_scores(candidate), labels)

    def _see(self, first: int, reference: Array, candidate: Array, labels: Array) -> None:
        rows = [worst.row for worst in self.metrics.worst if worst.row >= first]
        for row in rows:
            part = slice(row - first, row - first + 1)
            expected, got = int(top1(reference[part])[0]), int(top1(candidate[part])[0])
            self._seen[row] = {"expected": expected, "got": got, "label": int(labels[row - first])}
        self._seen = self.decisions()


def _one_line(crash: Exception) -> str:
    lines = str(crash).strip().splitlines()
    if not lines:
        return type(crash).__name__
    # Our own errors say what happened; what a backend raises often says it by its class alone.
    return lines[0][:300] if isinstance(crash, ModelregError) else f"{type(crash).__name__}: {lines[0][:300]}"
