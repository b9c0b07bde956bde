"""Comparing the layers of engines while they are validated: what was asked, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from modelreg.cli.layer_views import open_views
from modelreg.cli.progress import Reporter
from modelreg.cli.render import print_warning
from modelreg.config.policy import Metric
from modelreg.registry.errors import ModelregError, WorkerStartError
from modelreg.registry.words import GateOutcome

if TYPE_CHECKING:
    from modelreg.cli.context import Registry
    from modelreg.config.policy import Policy
    from modelreg.registry.records import EngineRecord, GateResult, VersionRecord
    from modelreg.registry.tensor_sets import TensorSet
    from modelreg.registry.words import Json
    from modelreg.validators.interface import EvaluationPass
    from modelreg.validators.layers.comparison import LayerReport
    from modelreg.validators.validation import ValidationOutcome


_OF_BATCHES = (Metric.REPEAT_ERROR, Metric.SHAPE_ERROR, Metric.BATCH_ERROR, Metric.RANGE_USE)
"""What fails where only another batch or run is wrong; what a range leaves unused is no error of a layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerChoice:
    """Which layers are compared: modules, or every node; on so many samples, by the version's mapping table."""

    every_node: bool
    samples: int
    overrides: Mapping[str, str]


def read_choice(registry: Registry, version: VersionRecord, *, every_node: bool, samples: int) -> LayerChoice:
    """Return the choice with the mapping table that a user gave to the version."""
    from modelreg.registry.layer_maps import read_layer_map

    with registry.database.read() as connection:
        return LayerChoice(every_node=every_node, samples=samples, overrides=read_layer_map(connection, version))


def compare_engine(
    choice: LayerChoice,
    *,
    engine: EngineRecord,
    version: VersionRecord,
    golden: TensorSet,
    policy: Policy,
    served: EvaluationPass,
    registry: Registry,
    reporter: Reporter,
    folder: Path,
    outcome: ValidationOutcome,
) -> LayerReport | str:
    """Return what was found of an engine's layers, or why nothing was: the verdict does not depend on it."""
    from modelreg.validators.layers.comparison import compare_layers, layer_limit_db

    batch, limit = wrong_batch(outcome)
    limit_db = -20 * math.log10(limit) if batch else layer_limit_db(policy, engine.precision)
    label = f"comparing layers of engine {engine.id} ({engine.target.name} {engine.precision})"
    try:
        with reporter.step(label) as tell, open_views(engine, version, registry, folder) as views:
            return compare_layers(
                version=version,
                golden=golden,
                source=views.source,
                candidate=views.candidate,
                isolating=views.isolating,
                own=views.own,
                limit_db=limit_db,
                overrides=choice.overrides,
                every_node=choice.every_node,
                engine=served,
                most=choice.samples,
                worst=worst_samples(outcome.gates),
                batch=batch,
                profiles=engine.profiles,
                progress=tell,
            )
    except WorkerStartError:
        raise
    except ModelregError as error:
        print_warning(f"the layers of engine {engine.id} are not compared: {error}; {error.hint()}".rstrip("; "))
        return str(error)


def wrong_batch(outcome: ValidationOutcome) -> tuple[int, float]:
    """
    Return the samples of the run that is wrong, and the gate's limit, where only some runs are; else zeros.

    The golden set's own runs are right then, and a comparison with what they should give shows nothing. Where two runs
    of the same inputs differ, any batch shows it.
    """
    from modelreg.validators.layers.measuring import GROUP

    bad = [gate for gate in outcome.gates if gate.outcome in (GateOutcome.FAIL, GateOutcome.ERROR)]
    found = {str(gate.gate): gate for gate in bad}
    repeat, gate = found.get(str(Metric.REPEAT_ERROR)), found.get(str(Metric.SHAPE_ERROR))
    if any(each.gate not in _OF_BATCHES for each in bad):
        return 0, 0.0
    if repeat is not None and repeat.limit:
        return min(GROUP, int(outcome.report["golden"]["batch"])), repeat.limit
    if gate is None or not gate.limit:
        return 0, 0.0
    points = [
        (float(point["error"]), int(point["rows"]))
        for each in outcome.report["passes"]
        for point in (each["behaviour"] or {}).get("points", ())
        if point.get("rows")
    ]
    error, rows = max(points, default=(0.0, 0))
    return (rows, gate.limit) if error > gate.limit else (0, 0.0)


def worst_samples(gates: Sequence[GateResult]) -> tuple[int, ...]:
    """Return the worst samples of the gates that failed, in turns: each gate's worst first."""
    failed = [gate.worst_samples for gate in gates if gate.outcome in (GateOutcome.FAIL, GateOutcome.ERROR)]
    turns = zip_longest(*failed)
    return tuple(dict.fromkeys(sample for turn in turns for sample in turn if sample is not None))


def layers_document(found: LayerReport | str) -> Json:
    """Return what goes into the engine's report."""
    return {"error": found} if isinstance(found, str) else found.to_json()
