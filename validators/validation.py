"""Validate one engine: run it over the golden set in every pass, apply the policy, write the report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from modelreg.config.policy import Policy
from modelreg.registry.clock import iso, utc_now
from modelreg.registry.records import EngineRecord, GateResult, VersionRecord
from modelreg.registry.tensor_sets import TensorSet
from modelreg.registry.words import Json, Verdict
from modelreg.validators.gates import error_gate, inside_gates, judge, output_gates, realised_gate, scope_of, task_gates
from modelreg.validators.golden import OUTPUT, CheckedGolden, check_golden
from modelreg.validators.interface import EvaluationPass, Progress, no_progress
from modelreg.validators.measuring import PassMeasurement, measure_pass

REPORT_SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationOutcome:
    """What came of one validation: the verdict, every gate, and the report to keep."""

    verdict: Verdict
    gates: tuple[GateResult, ...]
    report: Json


def validate_engine(
    *,
    engine: EngineRecord,
    version: VersionRecord,
    golden: TensorSet,
    golden_digest: str,
    policy: Policy,
    passes: Sequence[EvaluationPass],
    host: Json | None = None,
    progress: Progress = no_progress,
) -> ValidationOutcome:
    """Run every pass over the golden set and return what the policy makes of it.

    Args:
        engine: The engine under test; its realised precision is a gate.
        version: The version it was built from; the golden set must fit its signature.
        golden: The open golden set.
        golden_digest: SHA-256 of its file.
        policy: Limits; a NaN or an infinity that the reference does not have fails under every policy.
        passes: At least one way to run the engine; each must satisfy the policy.
        host: Where it ran, for the report.
        progress: Called after every run of the engine.

    Returns:
        The outcome. An engine that cannot be run, or whose outputs do not line up, has the verdict `error`.

    Raises:
        GoldenSetError: The golden set does not fit the model, or is damaged.
        WorkerStartError: What runs the engine could not be started on this host; nothing was measured.
        ValueError: There is no pass.
    """
    if not passes:
        raise ValueError("an engine is validated in at least one pass")
    started_at, started = utc_now(), time.perf_counter()
    checked = check_golden(golden, version.source.signature)
    measured = [measure_pass(p, golden=golden, checked=checked, progress=progress) for p in passes]
    gates = [realised_gate(engine)]
    for measurement in measured:
        label = measurement.name if len(passes) > 1 else ""
        gates += pass_gates(measurement, golden=golden, checked=checked, policy=policy, label=label)
    gates += _inside_gates(measured, policy=policy)
    verdict = judge(gates)
    report = {
        "schema": REPORT_SCHEMA,
        "started_at": iso(started_at),
        "seconds": round(time.perf_counter() - started, 6),
        "engine": _engine_json(engine),
        "golden": {
            "digest": golden_digest,
            "samples": checked.samples,
            "runs": checked.feed.runs,
            "batch": checked.feed.batch,
            "labelled_output": checked.labelled_output,
        },
        "policy": {**policy.to_json(), "digest": policy.digest, "origins": list(policy.origins)},
        "host": host or {},
        "passes": [_pass_json(measurement) for measurement in measured],
        "gates": [gate.to_json() for gate in gates],
        "verdict": str(verdict),
    }
    return ValidationOutcome(verdict=verdict, gates=tuple(gates), report=report)


def pass_gates(
    measurement: PassMeasurement, *, golden: TensorSet, checked: CheckedGolden, policy: Policy, label: str
) -> list[GateResult]:
    """Return the gates of one pass; `label` tells its gates from those of other passes."""
    if measurement.error:
        return [error_gate(label or measurement.name, measurement.error)]
    dtypes = {name: golden.tensors[OUTPUT + name].dtype for name in measurement.outputs}
    gates: list[GateResult] = []
    for name, metrics in measurement.outputs.items():
        rows = golden.tensors[OUTPUT + name].rows
        gates += output_gates(
            metrics,
            policy=policy,
            scope=scope_of(dtypes, name),
            subject=_subject(name, label),
            samples=_distinct([worst.row * checked.samples // rows for worst in metrics.worst]),
        )
    task = _subject(checked.labelled_output or "task", label)
    return gates + task_gates(measurement.ranks, policy=policy, subject=task)


def _inside_gates(measured: Sequence[PassMeasurement], *, policy: Policy) -> list[GateResult]:
    seen = next((measurement for measurement in measured if measurement.overflows is not None), None)
    label = seen.name if seen is not None and len(measured) > 1 else ""
    return inside_gates(seen.overflows if seen else None, policy=policy, subject=_subject("inside", label))


def _subject(name: str, label: str) -> str:
    return f"{name} ({label})" if label else name


def _distinct(samples: list[int]) -> list[int]:
    return list(dict.fromkeys(samples))


def _engine_json(engine: EngineRecord) -> Json:
    return {
        "id": engine.id,
        "model": engine.model,
        "version": engine.version,
        "target": engine.target.name,
        "gpu": engine.target.gpu,
        "precision": str(engine.precision),
        "backend": str(engine.toolchain.backend),
        "backend_version": engine.toolchain.version,
        "plan": engine.plan_digest,
        "recipe": engine.recipe_digest,
        "realised": engine.realised,
    }


def _pass_json(measurement: PassMeasurement) -> Json:
    outputs = {}
    for name, metrics in measurement.outputs.items():
        body = metrics.to_json()
        decisions = measurement.decisions[name]
        body["worst"] = [{**worst, **decisions.get(worst["row"], {})} for worst in body["worst"]]
        outputs[name] = body
    return {
        "name": measurement.name,
        "seconds": round(measurement.seconds, 6),
        "error": measurement.error,
        "overflows": measurement.overflows,
        "runs": measurement.runs,
        "outputs": outputs,
        "task": measurement.ranks.to_json() if measurement.ranks is not None else None,
    }
