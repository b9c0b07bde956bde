"""Measure a candidate's layers against the reference's, a part of them and a group of samples at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelreg.config.policy import Metric
from modelreg.registry.words import Json
from modelreg.validators.activations import Activation
from modelreg.validators.golden import ACTIVATION, OUTPUT
from modelreg.validators.layers.birth import LayerError
from modelreg.validators.layers.interface import CandidateView, IsolatingView, SourceView
from modelreg.validators.layers.units import Group, Units, arrange
from modelreg.validators.metrics import MetricAccumulator, json_number

Array = NDArray[Any]
Progress = Callable[[float, str], None]

PYTORCH, ONNX = "pytorch", "onnx"
CHUNK_BYTES = 96 << 20
GROUP = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """
    One layer to compare.

    Attributes:
        name: What it is called: a module's activation, or a node.
        tensor: The tensor that is compared.
        node: The node that makes it.
        op: The node's op.
        inputs: The rows that it reads.
        activation: What the golden set has of it; None where the source in FP32 is the reference.
        output: Whether it is an output of the model: the golden set's own values are the reference then.
        through_relu: Whether the tensor is behind a Relu that the candidate has drawn into the layer.
    """

    name: str
    tensor: str
    node: str
    op: str
    inputs: tuple[str, ...]
    activation: Activation | None = None
    output: bool = False
    through_relu: bool = False

    @property
    def is_golden(self) -> bool:
        """Return whether the golden set has what it is compared with; else the source in FP32 is run for it."""
        return self.output or self.activation is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMeasurement:
    """
    What was measured of one layer; ratios in decibels are infinite without any error.

    Attributes:
        own_sqnr_db: The ratio when it is given the reference's values; None where it cannot be run alone.
        odd: NaN and infinite values that the reference does not have.
        saturated: The part of its values that quantisation cut off, or that FP16 made infinite.
        reference_range: The smallest and largest value of the reference.
        candidate_range: The same of the candidate.
    """

    row: Row
    values: int
    cosine: float
    sqnr_db: float
    max_abs: float
    own_sqnr_db: float | None
    odd: int
    own_odd: int
    saturated: float
    reference_range: tuple[float, float]
    candidate_range: tuple[float, float]

    @property
    def error(self) -> LayerError:
        """Return it as what `diagnose` takes."""
        return LayerError(
            name=self.row.name,
            noise=_noise(self.sqnr_db),
            own=None if self.own_sqnr_db is None else _noise(self.own_sqnr_db),
            odd=self.odd,
            own_odd=self.own_odd,
            inputs=self.row.inputs,
        )

    def to_json(self) -> Json:
        """Return the measurement as JSON; numbers that JSON has not become strings."""
        return {
            "name": self.row.name,
            "tensor": self.row.tensor,
            "node": self.row.node,
            "op": self.row.op,
            "inputs": list(self.row.inputs),
            "reference": PYTORCH if self.row.is_golden else ONNX,
            "through_relu": self.row.through_relu,
            "values": self.values,
            "cosine": json_number(self.cosine),
            "sqnr_db": json_number(self.sqnr_db),
            "own_sqnr_db": None if self.own_sqnr_db is None else json_number(self.own_sqnr_db),
            "max_abs": json_number(self.max_abs),
            "odd": self.odd,
            "saturated": self.saturated,
            "reference_range": [json_number(value) for value in self.reference_range],
            "candidate_range": [json_number(value) for value in self.candidate_range],
        }


def measure_layers(
    rows: Sequence[Row],
    *,
    units: Units,
    source: SourceView,
    candidate: CandidateView,
    isolating: IsolatingView | None,
    most: int = GROUP,
    progress: Progress = lambda _fraction, _what: None,
) -> list[LayerMeasurement]:
    """
    Return what was measured of each row that the candidate has shown, in their order.

    Args:
        rows: Layers that the candidate has.
        units: The samples to look at.
        source: The source in FP32: the reference where the golden set has no activation, and what layers are given.
        candidate: What is compared.
        isolating: What runs a candidate's layers alone; None where nothing can.
        most: The most samples of a run.
        progress: Called with the part that is done.
    """
    first = next(units.groups(1))
    shapes = source.shapes([row.tensor for row in rows], first.inputs)
    at = tuple(dict.fromkeys(row.tensor for row in rows))
    found: list[LayerMeasurement] = []
    for part in _parts(rows, shapes):
        progress(len(found) / len(rows), f"comparing {part[0].name}")
        size = min(most, _group_size(part, shapes))
        found += _measure_part(
            part, at=at, units=units, source=source, candidate=candidate, isolating=isolating, size=size
        )
    return found


def _measure_part(
    part: Sequence[Row],
    *,
    at: Sequence[str],
    units: Units,
    source: SourceView,
    candidate: CandidateView,
    isolating: IsolatingView | None,
    size: int,
) -> list[LayerMeasurement]:
    names = list(dict.fromkeys(row.tensor for row in part))
    alone = [name for name in names if isolating is not None and name in isolating.seen]
    needed = list(isolating.needs(alone, at=at)) if isolating is not None and alone else []
    measures = {row.name: _Measure(row) for row in part}
    owners = {row.tensor: row for row in part if row.activation is not None and not row.through_relu}
    wanted = list(dict.fromkeys([*needed, *(row.tensor for row in part if not row.is_golden)]))
    for group in units.groups(size):
        values = source.run_source(wanted, group.inputs) if wanted else {}
        got, saturated = candidate.run_candidate(names, group.inputs)
        own: Mapping[str, Array] = {}
        if isolating is not None and alone:
            given = {name: _as_given(name, values[name], owners, units, group) for name in needed}
            own = isolating.run_isolated(alone, group.inputs, at=at, given=given)
        for row in part:
            if row.tensor not in got:
                continue
            reference = _reference(row, units, group, values)
            measures[row.name].update(reference, _choose(row, got[row.tensor], units, group), saturated[row.tensor])
            if row.tensor in own:
                measures[row.name].update_own(reference, _choose(row, own[row.tensor], units, group))
    return [measure.result() for measure in measures.values() if measure.is_measured]


def _reference(row: Row, units: Units, group: Group, values: Mapping[str, Array]) -> Array:
    if row.output:
        golden = np.concatenate([units.golden.read(OUTPUT + row.tensor, n, n + 1) for n in group.numbers])
        return arrange(golden, is_run=units.is_run, units=group.size)
    if row.activation is None:
        return arrange(values[row.tensor], is_run=units.is_run, units=group.size)
    kept = np.concatenate([units.golden.read(ACTIVATION + row.activation.name, p, p + 1) for p in group.places])
    return np.maximum(kept, 0) if row.through_relu else kept


def _choose(row: Row, array: Array, units: Units, group: Group) -> Array:
    """Return the candidate's values that stand beside those of the reference."""
    if row.activation is None:
        return arrange(array, is_run=units.is_run, units=group.size)
    whole = array[None] if units.is_run else array
    return row.activation.choose(row.activation.arrange(whole, units=group.size))


def _as_given(name: str, value: Array, owners: Mapping[str, Row], units: Units, group: Group) -> Array:
    """Return what a layer is given: PyTorch's values where all of them are kept as they are, else the source's."""
    row = owners.get(name)
    activation = None if row is None else row.activation
    if activation is not None and activation.elements is None and activation.axis == 0 and activation.per == 1:
        kept = np.concatenate([units.golden.read(ACTIVATION + activation.name, p, p + 1) for p in group.places])
        plain = kept[0] if units.is_run else kept
        if plain.shape == value.shape:
            return np.asarray(plain, np.float32)
    return np.asarray(value, np.float32)


def _parts(rows: Sequence[Row], shapes: Mapping[str, tuple[int, ...]]) -> Iterator[list[Row]]:
    part: list[Row] = []
    size = 0
    for row in rows:
        part.append(row)
        size += 4 * math.prod(shapes[row.tensor])
        if size * GROUP > CHUNK_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _group_size(part: Sequence[Row], shapes: Mapping[str, tuple[int, ...]]) -> int:
    size = sum(4 * math.prod(shapes[row.tensor]) for row in part)
    return max(1, min(GROUP, CHUNK_BYTES // max(1, size)))


def _noise(sqnr_db: float) -> float:
    return float("inf") if math.isnan(sqnr_db) else float(10 ** (-sqnr_db / 10)) if sqnr_db > -3000 else float("inf")


class _Measure:
    """One row's sums."""

    def __init__(self, row: Row) -> None:
        self._row = row
        self._carried = MetricAccumulator(scale=1.0)
        self._own = MetricAccumulator(scale=1.0)
        self._has_own = False
        self._below = self._above = self._infinite = self._all = 0
        self._reference = self._candidate = (math.inf, -math.inf)

    def update(self, reference: Array, candidate: Array, cut_off: tuple[int, int]) -> None:
        self._carried.update(reference, candidate)
        self._below += cut_off[0]
        self._above += cut_off[1]
        self._all += candidate.size
        self._infinite += int(np.count_nonzero(np.isinf(candidate) & np.isfinite(reference)))
        self._reference = _widen(self._reference, reference)
        self._candidate = _widen(self._candidate, candidate)

    def update_own(self, reference: Array, candidate: Array) -> None:
        self._has_own = True
        self._own.update(reference, candidate)

    @property
    def is_measured(self) -> bool:
        """Return whether the candidate has shown the layer at all."""
        return self._all > 0

    def result(self) -> LayerMeasurement:
        carried, own = self._carried.result(), self._own.result()
        # A quantised range from zero on is a Relu that was drawn into the layer: what it cuts off is right.
        below = self._below if self._reference[0] < 0 else 0
        lost = float("-inf")
        return LayerMeasurement(
            row=self._row,
            values=carried.values,
            cosine=carried.measured.get(Metric.COSINE, 0.0),
            sqnr_db=carried.measured.get(Metric.SQNR_DB, lost),
            max_abs=carried.measured.get(Metric.MAX_ABS, math.inf) if not carried.inf_count else math.inf,
            own_sqnr_db=own.measured.get(Metric.SQNR_DB, lost) if self._has_own else None,
            odd=carried.nan_count + carried.inf_count,
            own_odd=own.nan_count + own.inf_count,
            saturated=min(1.0, (below + self._above + self._infinite) / max(1, self._all)),
            reference_range=_finite_range(self._reference),
            candidate_range=_finite_range(self._candidate),
        )


def _widen(known: tuple[float, float], values: Array) -> tuple[float, float]:
    finite = values[np.isfinite(values)] if values.size else values
    if not finite.size:
        return known
    return min(known[0], float(finite.min())), max(known[1], float(finite.max()))


def _finite_range(known: tuple[float, float]) -> tuple[float, float]:
    return known if known[0] <= known[1] else (math.nan, math.nan)
