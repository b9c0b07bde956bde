"""How an engine behaves from run to run: twice the same, alone and in a batch, at every shape that it was built for.

The answers to hold it to are its own, at the batch that the golden pass has compared with the reference: what differs
between runs has nothing to do with precision, so the limits are far below those of the reference. Where other axes
than the batch change, there is no such answer, and the source in ONNX Runtime gives one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelreg.registry.contents import Signature
from modelreg.registry.errors import ModelregError
from modelreg.registry.tensor_sets import TensorSet
from modelreg.registry.words import Json
from modelreg.validators.golden import INPUT, OUTPUT, CheckedGolden
from modelreg.validators.interface import Runner
from modelreg.validators.metrics import BLOCK_VALUES, MetricAccumulator, OutputMetrics, json_number
from modelreg.validators.shapes import Point, batch_symbol, plan_points

Array = NDArray[Any]
Arrays = Mapping[str, Array]

BUDGET_BYTES = 256 << 20
"""Inputs and outputs of one point; a larger one is not tried, and the gate says so."""
_ALONE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What came of one point.

    Attributes:
        error: The largest difference as a part of the output's scale; infinite where a value is not finite.
        worst: The output that it is in.
        problem: Why it did not run, or what is wrong with the shapes of its outputs.
        not_tried: Why nobody ran it.
        metrics: Beside the source, where the point differs in more than the batch.
        rows: The samples of its run, where it differs in the batch alone.
    """

    name: str
    error: float = 0.0
    worst: str = ""
    problem: str = ""
    not_tried: str = ""
    metrics: Mapping[str, OutputMetrics] = field(default_factory=dict)
    rows: int = 0

    def to_json(self) -> Json:
        """Return it as JSON."""
        body: Json = {"point": self.name, "error": json_number(self.error), "worst": self.worst}
        body |= {key: text for key, text in (("problem", self.problem), ("not_tried", self.not_tried)) if text}
        if self.rows:
            body["rows"] = self.rows
        if self.metrics:
            body["beside_source"] = {name: metrics.to_json() for name, metrics in self.metrics.items()}
        return body


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """What was found; None where a question means nothing for the engine, which `reason` explains.

    Attributes:
        same_bytes: Whether two runs on the same inputs gave the same bytes.
    """

    repeat: Tried
    same_bytes: bool
    alone: Tried | None
    points: tuple[Tried, ...]
    reason: str = ""

    def to_json(self) -> Json:
        """Return it as JSON."""
        return {
            "repeat": {**self.repeat.to_json(), "same_bytes": self.same_bytes},
            "alone": None if self.alone is None else self.alone.to_json(),
            "points": [point.to_json() for point in self.points],
            "reason": self.reason,
        }


class Prober:
    """Tries an engine that is loaded already."""

    def __init__(
        self,
        golden: TensorSet,
        checked: CheckedGolden,
        signature: Signature,
        *,
        profiles: Sequence[Json] = (),
        open_source: Callable[[], AbstractContextManager[Runner]] | None = None,
    ) -> None:
        """
        Say what is tried.

        Args:
            golden: The open golden set: its inputs are cut and repeated to make the shapes.
            checked: How they are fed.
            signature: The model's inputs and outputs.
            profiles: Those of the recipe.
            open_source: Opens the source in ONNX Runtime, for shapes that the golden set has no answers for.
        """
        self._golden, self._checked, self._signature = golden, checked, signature
        self._open_source = open_source
        self._cut = [name for name, rows in checked.feed.rows.items() if rows]
        self._reason = batch_symbol(signature, self._cut)
        shapes = {name: self._golden.tensors[INPUT + name].shape for name in checked.feed.rows}
        self._points: list[Point] = []
        if not self._reason:
            self._points = plan_points(
                signature, shapes, self._cut, profiles=profiles, batch=min(checked.feed.batch, checked.samples)
            )

    def probe(self, runner: Runner) -> Behaviour:
        """Run the engine some ten times; what goes wrong is found, not raised."""
        first = next(iter(self._checked.feed.iterate_batches(self._golden))).inputs
        repeat, same = self._repeat(runner, first)
        if self._reason or repeat.problem:
            return Behaviour(repeat=repeat, same_bytes=same, alone=None, points=(), reason=self._reason)
        rows = max([point.rows for point in self._points if self._why_not(point) == ""] or [1])
        try:
            anchor = self._run_in_batches(runner, rows)
        except Exception as error:
            alone = Tried(name="alone", problem=_say(error))
            return Behaviour(repeat=repeat, same_bytes=same, alone=alone, points=())
        tried = [self._try(runner, point, anchor) for point in self._points]
        return Behaviour(repeat=repeat, same_bytes=same, alone=self._alone(runner, anchor), points=tuple(tried))

    # -- the questions -------------------------------------------------------------------------------------
    def _repeat(self, runner: Runner, inputs: Arrays) -> tuple[Tried, bool]:
        try:
            one, two = [{n: np.array(v) for n, v in runner.run(inputs).items()} for _ in range(2)]
        except Exception as error:
            return Tried(name="repeat", problem=_say(error)), False
        same = all(one[name].tobytes() == two[name].tobytes() for name in one)
        return self._compare("repeat", one, two), same

    def _alone(self, runner: Runner, anchor: Arrays) -> Tried | None:
        """Run single rows: the first, the last, and some between."""
        rows = len(next(iter(anchor.values()), ()))
        if not rows or self._checked.feed.batch == 1:
            return None
        chosen = sorted({round(i * (rows - 1) / (_ALONE - 1)) for i in range(_ALONE)})
        try:
            single = [self._rowwise(runner.run(self._inputs_at(row, row + 1)), 1) for row in chosen]
        except Exception as error:
            return Tried(name="alone", problem=_say(error))
        found = {name: np.concatenate([each[name] for each in single]) for name in anchor if name in single[0]}
        return self._compare("alone", {name: anchor[name][chosen] for name in found}, found)

    def _try(self, runner: Runner, point: Point, anchor: Arrays) -> Tried:
        if reason := self._why_not(point):
            return Tried(name=point.name, not_tried=reason)
        if not point.is_batch_alone:
            return self._try_beside_source(runner, point)
        try:
            found = self._rowwise(runner.run(self._inputs_at(0, point.rows)), point.rows)
        except Exception as error:
            return Tried(name=point.name, problem=_say(error))
        if not anchor:
            return Tried(name=point.name, not_tried="it runs there, and no output has one row per sample to compare")
        lost = [name for name in anchor if name not in found]
        if lost:
            return Tried(name=point.name, problem=f"output {lost[0]!r} has not one row per sample any more")
        compared = self._compare(point.name, {name: anchor[name][: point.rows] for name in found}, found)
        return replace(compared, rows=point.rows)

    def _try_beside_source(self, runner: Runner, point: Point) -> Tried:
        if self._open_source is None:
            return Tried(name=point.name, not_tried="there is no source to compare with")
        inputs = {name: self._shaped(name, shape) for name, shape in point.shapes.items()}
        try:
            with self._open_source() as source:
                wanted = source.run(inputs)
        except Exception as error:
            return Tried(name=point.name, not_tried=f"the source does not run there: {_say(error)}")
        try:
            found = runner.run(inputs)
        except Exception as error:
            return Tried(name=point.name, problem=_say(error))
        metrics = {}
        for name, array in wanted.items():
            if "float" not in str(array.dtype) or not array.size:
                continue
            if name not in found or found[name].shape != array.shape:
                return Tried(name=point.name, problem=f"output {name!r} has another shape than the source's")
            accumulator = MetricAccumulator(scale=self._checked.scales.get(name, 0.0))
            accumulator.update(np.atleast_1d(array), np.atleast_1d(found[name]))
            metrics[name] = accumulator.result()
        return Tried(name=point.name, metrics=metrics)

    # -- inputs --------------------------------------------------------------------------------------------
    def _run_in_batches(self, runner: Runner, rows: int) -> dict[str, Array]:
        """Return the engine's own answers for the first rows, run as the golden pass runs them."""
        batch = min(self._checked.feed.batch, self._checked.samples)
        parts: dict[str, list[Array]] = {}
        for start in range(0, rows, batch):
            for name, array in self._rowwise(runner.run(self._inputs_at(start, start + batch)), batch).items():
                parts.setdefault(name, []).append(array)
        return {name: np.concatenate(arrays)[:rows] for name, arrays in parts.items()}

    def _inputs_at(self, start: int, stop: int) -> dict[str, Array]:
        inputs = {}
        for name in self._checked.feed.rows:
            if name in self._cut:
                inputs[name] = self._rows(name, start, stop)
            else:
                inputs[name] = self._constant(name)
        return inputs

    def _rows(self, name: str, start: int, stop: int) -> Array:
        """Return golden rows; after the last comes the first again."""
        samples = self._golden.tensors[INPUT + name].rows
        parts = []
        while start < stop:
            first = start % samples
            count = min(stop - start, samples - first)
            parts.append(self._golden.read(INPUT + name, first, first + count))
            start += count
        return np.concatenate(parts) if len(parts) > 1 else parts[0]

    def _constant(self, name: str) -> Array:
        if self._checked.feed.rows[name] == 0:  # one value per run
            return self._golden.read(INPUT + name, 0, 1).reshape(())
        return self._golden.read(INPUT + name)

    def _shaped(self, name: str, shape: Sequence[int]) -> Array:
        """Return golden values in another shape: cut where it is smaller, repeated where it is larger."""
        array = self._rows(name, 0, shape[0]) if name in self._cut else self._constant(name)
        if not array.ndim:
            return array
        for axis, size in enumerate(shape):
            if array.shape[axis] != size:
                array = np.take(array, np.arange(size), axis=axis, mode="wrap")
        return array

    def _why_not(self, point: Point) -> str:
        outputs = sum(
            self._golden.tensors[OUTPUT + spec.name].row_bytes * point.rows for spec in self._signature.outputs
        )
        inputs = sum(
            self._golden.tensors[INPUT + name].row_bytes
            * point.rows
            * int(np.prod(shape[1:], dtype=np.int64) // max(1, np.prod(self._shape(name)[1:], dtype=np.int64)) or 1)
            for name, shape in point.shapes.items()
        )
        if inputs + outputs > BUDGET_BYTES:
            return f"its tensors take {(inputs + outputs) >> 20} MiB, more than {BUDGET_BYTES >> 20}"
        return ""

    def _shape(self, name: str) -> tuple[int, ...]:
        return self._golden.tensors[INPUT + name].shape

    # -- outputs -------------------------------------------------------------------------------------------
    def _rowwise(self, outputs: Arrays, rows: int) -> dict[str, Array]:
        """Return the outputs that have one row per sample."""
        found = {}
        for spec in self._signature.outputs:
            info = self._golden.tensors[OUTPUT + spec.name]
            is_rowwise = info.shape and info.rows == self._checked.samples
            is_fixed = bool(spec.shape) and isinstance((spec.shape or (0,))[0], int)
            array = outputs.get(spec.name)
            if is_rowwise and not is_fixed and array is not None and array.ndim and len(array) == rows:
                found[spec.name] = array
        return found

    def _compare(self, name: str, wanted: Arrays, found: Arrays) -> Tried:
        worst, where = 0.0, ""
        for output, array in wanted.items():
            if found[output].shape != array.shape:
                return Tried(name=name, problem=f"output {output!r} changes its shape")
            error = difference(array, found[output], scale=self._checked.scales.get(output, 0.0))
            if error > worst or not where:
                worst, where = error, output
        return Tried(name=name, error=worst, worst=where)


def difference(one: Array, two: Array, *, scale: float) -> float:
    """
    Return the largest difference as a part of `scale`, or for integers the part of the values that differ.

    Infinite where one is not finite and the other is something else.
    """
    if not one.size:
        return 0.0
    if one.dtype.kind in "iub":
        return float(np.mean(one != two))
    flat = np.ascontiguousarray(one).reshape(-1), np.ascontiguousarray(two).reshape(-1)
    largest = 0.0
    for start in range(0, one.size, BLOCK_VALUES):
        first, second = (array[start : start + BLOCK_VALUES].astype(np.float64) for array in flat)
        with np.errstate(invalid="ignore"):
            errors = np.abs(first - second)
        errors[(first == second) | (np.isnan(first) & np.isnan(second))] = 0.0
        errors[np.isnan(errors)] = np.inf
        largest = max(largest, float(errors.max()))
    if largest == 0:
        return 0.0
    return largest / scale if scale > 0 else float("inf")


def _say(crash: Exception) -> str:
    lines = str(crash).strip().splitlines() or [""]
    return lines[0][:300] if isinstance(crash, ModelregError) else f"{type(crash).__name__}: {lines[0][:300]}"
