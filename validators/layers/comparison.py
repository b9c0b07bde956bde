"""Compare an engine's layers with the reference's, and say where its error is born."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelreg.config.policy import Metric, Policy, Scope
from modelreg.registry.records import VersionRecord
from modelreg.registry.tensor_sets import TensorSet
from modelreg.registry.words import Json, Precision
from modelreg.validators.activations import Activation, KeptActivations, read_kept
from modelreg.validators.golden import ACTIVATION, OUTPUT, check_golden
from modelreg.validators.interface import EvaluationPass
from modelreg.validators.layers.batching import AtBatch, AtGolden
from modelreg.validators.layers.birth import Diagnosis, State, diagnose
from modelreg.validators.layers.interface import CandidateView, IsolatingView, SourceView
from modelreg.validators.layers.mapping import Match, match_layers
from modelreg.validators.layers.measuring import GROUP, LayerMeasurement, Progress, Row, measure_layers
from modelreg.validators.layers.rows import module_rows, node_rows, output_rows
from modelreg.validators.layers.units import MOST_UNITS, Units, choose_units
from modelreg.validators.metrics import MetricAccumulator, json_number

Array = NDArray[Any]

SCHEMA = 1
_LIMITS_DB = {
    Precision.FP32: 60.0,
    Precision.TF32: 40.0,
    Precision.FP16: 40.0,
    Precision.BEST: 40.0,
    Precision.BF16: 25.0,
    Precision.INT8: 15.0,
    Precision.FP8: 15.0,
}
"""Below what a layer is bad where the policy has no limit for the outputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerReport:
    """
    What a comparison of layers found.

    Attributes:
        reference: `pytorch`, `onnx` where the golden set has no activations, or `itself`: the engine at its batch.
        batch: The samples of a run that was compared with the engine itself; 0 for the golden set's.
        samples: The golden samples (or runs) that were looked at.
        limit_db: Below which a layer is bad.
        rows: The layers, in order of execution.
        matches: Which tensor each activation is.
        gone: Why a layer is not compared.
        taps: What looking inside changed at the outputs; None where that was not asked.
        own: How layers were run alone: `exact`, `simulated`, or `none`.
    """

    reference: str
    unit: str
    samples: tuple[int, ...]
    limit_db: float
    rows: tuple[LayerMeasurement, ...]
    diagnosis: Diagnosis
    matches: tuple[Match, ...]
    gone: Mapping[str, str]
    taps: Json | None
    own: str
    batch: int = 0

    def to_json(self) -> Json:
        """Return the report as JSON."""
        return {
            "schema": SCHEMA,
            "reference": self.reference,
            "batch": self.batch or None,
            "unit": self.unit,
            "samples": list(self.samples),
            "limit_db": self.limit_db,
            "own": self.own,
            **self.diagnosis.to_json(),
            "missing_before": list(self.missing_before),
            "rows": [{**row.to_json(), "state": self.diagnosis.states[row.row.name].value} for row in self.rows],
            "mapping": [match.to_json() for match in self.matches],
            "gone": dict(self.gone),
            "taps": self.taps,
        }

    @property
    def missing_before(self) -> tuple[str, ...]:
        """Return the modules right before the first bad layer that the ONNX has not: the fault may be that."""
        names = [match.activation for match in self.matches]
        if self.diagnosis.first_bad not in names:
            return ()
        missing: list[str] = []
        for match in reversed(self.matches[: names.index(self.diagnosis.first_bad)]):
            if match.tensor or match.reason.startswith("folded"):
                break
            missing.insert(0, match.activation)
        return tuple(missing)

    @property
    def bad(self) -> list[LayerMeasurement]:
        """Return the layers that are not fine, in order of execution; what has healed is."""
        bad = (State.BORN, State.CARRIED)
        return [row for row in self.rows if self.diagnosis.states[row.row.name] in bad]


def layer_limit_db(policy: Policy, precision: Precision) -> float:
    """Return below which signal-to-noise ratio a layer is bad: what the policy asks of floating outputs."""
    for rule in policy.rules_for(Scope.FLOATING):
        if rule.metric is Metric.SQNR_DB:
            return rule.limit
    return _LIMITS_DB[precision]


def compare_layers(
    *,
    version: VersionRecord,
    golden: TensorSet,
    source: SourceView,
    candidate: CandidateView,
    isolating: IsolatingView | None,
    limit_db: float,
    overrides: Mapping[str, str],
    every_node: bool = False,
    engine: EvaluationPass | None = None,
    own: str = "exact",
    most: int = MOST_UNITS,
    worst: Sequence[int] = (),
    batch: int = 0,
    profiles: Sequence[Json] = (),
    progress: Progress = lambda _fraction, _what: None,
) -> LayerReport:
    """
    Return how an engine's layers differ from the reference's.

    Args:
        version: What the engine was built from.
        golden: Its golden set; without activations in it, the source in FP32 is the reference.
        source: The source in FP32.
        candidate: The engine's values between its nodes.
        isolating: What runs its layers alone; None where nothing can.
        limit_db: Below which a layer is bad.
        overrides: Tensors by activation, as a user says.
        every_node: Compare every node of the ONNX with the source in FP32.
        engine: The engine as it is served, whose outputs are compared with those of what is looked into.
        own: How `isolating` runs layers: `exact`, or `simulated`.
        most: The most samples to look at.
        worst: Samples whose outputs are bad, the worst first: some of them are looked at in any case.
        batch: The engine is compared with itself, in runs of so many samples, where only these are wrong.
        profiles: Those of the engine: no run has more samples than they cover.
        progress: Called with the part that is done.

    Raises:
        GoldenSetError: The golden set does not fit the model, or is damaged.
    """
    signature = version.source.signature
    checked = check_golden(golden, signature, profiles=profiles)
    kept = read_kept(golden, samples=checked.samples)
    units = choose_units(golden, checked, signature, kept, most=most, worst=worst)
    progress(0.0, "matching layers")
    matches = match_layers(kept, units, source, overrides) if kept is not None else ()
    rows, gone = _choose_rows(kept if not every_node else None, matches, source, candidate, units)
    by_batch = bool(batch) and bool(units.free) and not units.is_run
    if by_batch:
        found = _measure_by_batch(rows, units, source, candidate, isolating, batch=batch, progress=progress)
    else:
        found = measure_layers(
            rows,
            units=units,
            source=source,
            candidate=candidate,
            isolating=isolating,
            most=min(GROUP, checked.feed.batch),
            progress=progress,
        )
    shown = {each.row.name for each in found}
    gone = {**gone, **{row.name: "the engine does not show it" for row in rows if row.name not in shown}}
    return LayerReport(
        reference="itself" if by_batch else "pytorch" if kept is not None and not every_node else "onnx",
        batch=batch if by_batch else 0,
        unit="run" if units.is_run else "sample",
        samples=units.numbers,
        limit_db=limit_db,
        rows=tuple(found),
        diagnosis=diagnose([row.error for row in found], limit_db=limit_db),
        matches=matches,
        gone=gone,
        taps=None if engine is None else _compare_ends(engine, units, candidate, source.outputs),
        own=own if isolating is not None else "none",
    )


def _measure_by_batch(
    rows: Sequence[Row],
    units: Units,
    source: SourceView,
    candidate: CandidateView,
    isolating: IsolatingView | None,
    *,
    batch: int,
    progress: Progress,
) -> list[LayerMeasurement]:
    """Return what a batch changes in each layer, the engine itself at the golden set's batch being the reference."""
    names = {row.tensor: row for row in rows if not (row.output and row.name != row.tensor)}
    plain = [replace(row, activation=None, output=False) for row in names.values()]
    large = AtBatch(candidate, isolating, cut=units.free, batch=batch)
    return measure_layers(
        plain,
        units=units,
        source=AtGolden(source, candidate, cut=units.free, batch=min(batch, units.checked.feed.batch)),
        candidate=large,
        isolating=None if isolating is None else large,
        most=min(GROUP, batch),
        progress=progress,
    )


def _choose_rows(
    kept: KeptActivations | None,
    matches: Sequence[Match],
    source: SourceView,
    candidate: CandidateView,
    units: Units,
) -> tuple[list[Row], Mapping[str, str]]:
    if kept is None:
        return node_rows(source.tensors, candidate.seen, also=source.outputs), {}
    rows, gone = module_rows(kept, matches, source.tensors, candidate.seen)
    golden = [name for name in source.outputs if _has_rows(name, units)]
    activations = {row.tensor: row.activation for row in rows if not row.through_relu}
    settled = [name for name in golden if name in activations and _is_output(activations[name], name, units)]
    more = output_rows(rows, source.tensors, source.outputs, candidate.seen, golden=golden, settled=settled)
    return more, gone


def _has_rows(output: str, units: Units) -> bool:
    """Return whether the golden set has floating values of an output for each sample."""
    info = units.golden.tensors.get(OUTPUT + output)
    return (
        info is not None and not units.is_run and "float" in info.dtype and info.shape[:1] == (units.checked.samples,)
    )


def _is_output(activation: Activation | None, output: str, units: Units) -> bool:
    """Return whether a module's activation is what the golden set has of an output, in the first sample."""
    if activation is None or activation.elements is not None or activation.axis != 0 or activation.per != 1:
        return True  # what was kept in part, or in another layout, says nothing of the output
    number, place = units.numbers[0], units.places[0]
    module = units.golden.read(ACTIVATION + activation.name, place, place + 1)
    golden = units.golden.read(OUTPUT + output, number, number + 1)
    return module.size == golden.size and np.allclose(module.reshape(-1), golden.reshape(-1), rtol=1e-2, atol=1e-5)


def _compare_ends(engine: EvaluationPass, units: Units, candidate: CandidateView, outputs: Sequence[str]) -> Json:
    """Return how the outputs of what is looked into differ from the engine's: looking in takes fusions apart."""
    names = [name for name in outputs if name in candidate.seen]
    sums = {name: MetricAccumulator(scale=1.0) for name in names}
    with engine.open_runner() as runner:
        for group in units.groups(16):
            served = runner.run(group.inputs)
            inside, _ = candidate.run_candidate(names, group.inputs)
            for name in names:
                sums[name].update(np.atleast_1d(np.asarray(served[name])), np.atleast_1d(inside[name]))
    results = {name: each.result() for name, each in sums.items()}
    return {
        name: {
            "max_abs": json_number(result.measured.get(Metric.MAX_ABS, float("inf"))),
            "sqnr_db": json_number(result.measured.get(Metric.SQNR_DB, float("-inf"))),
            "odd": result.nan_count + result.inf_count,
        }
        for name, result in results.items()
    }
