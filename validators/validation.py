"""Validate one engine: run it over the golden set in every pass, apply the policy, write the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass

from modelreg.config.policy import Policy, Scope
from modelreg.registry.clock import iso, utc_now
from modelreg.registry.records import EngineRecord, GateResult, VersionRecord
from modelreg.registry.tensor_sets import TensorSet
from modelreg.registry.words import Json, Verdict
from modelreg.validators.behaviour import Prober
from modelreg.validators.behaviour_gates import behaviour_gates
from modelreg.validators.gates import error_gate, judge, output_gates, realised_gate, scope_of, skipped_gate, task_gates
from modelreg.validators.golden import OUTPUT, CheckedGolden, check_golden
from modelreg.validators.inside_gates import inside_gates
from modelreg.validators.interface import EvaluationPass, Progress, Runner, no_progress
from modelreg.validators.measuring import PassMeasurement, measure_pass
from modelreg.validators.slicing import slice_gates
from modelreg.validators.task_metrics import own_gates, own_metrics

REPORT_SCHEMA = 1
Compare = Callable[[TensorSet, CheckedGolden], tuple[list[GateResult], Json]]
"""Returns the gates of an engine beside others, and what the report says of them."""


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
    open_source: Callable[[], AbstractContextManager[Runner]] | None = None,
    compare: Compare | None = None,
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
        open_source: Opens the source in ONNX Runtime, to compare with at shapes that the golden set does not have.
        compare: Compares the engine with others once the golden set is checked; its gates count like all others.

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
    checked = check_golden(golden, version.source.signature, profiles=engine.profiles)
    prober = None
    if policy.rules_for(Scope.BEHAVIOUR):
        prober = Prober(golden, checked, version.source.signature, profiles=engine.profiles, open_source=open_source)
    measured = [
        measure_pass(
            p,
            golden=golden,
            checked=checked,
            progress=progress,
            metrics=own_metrics(policy),
            prober=prober if number == 0 else None,
        )
        for number, p in enumerate(passes)
    ]
    judged = [measurement for measurement in measured if not measurement.looks_inside]
    gates = [realised_gate(engine)]
    for measurement in judged:
        label = measurement.name if len(judged) > 1 else ""
        gates += pass_gates(measurement, golden=golden, checked=checked, policy=policy, label=label)
    gates += _inside_gates(measured, policy=policy)
    gates += behaviour_gates(measured[0].behaviour, policy=policy)
    beside, beside_report = ([], {}) if compare is None else compare(golden, checked)
    gates += beside
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
        **beside_report,
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
    gates += task_gates(measurement.ranks, policy=policy, subject=task)
    gates += own_gates(measurement.scores, policy=policy, subject=task)
    name = checked.labelled_output or next(iter(measurement.slices), "outputs")
    return gates + slice_gates(measurement.slices.get(name), policy=policy, subject=_subject(name, label))


def _inside_gates(measured: Sequence[PassMeasurement], *, policy: Policy) -> list[GateResult]:
    """Return the gates of the one pass that sees the values between nodes; it may have failed on its own account."""
    seen = next((m for m in measured if m.overflows is not None or m.ranges is not None or m.looks_inside), None)
    label = seen.name if seen is not None and len(measured) > 1 else ""
    subject = _subject("inside", label)
    if seen is None:
        return inside_gates(None, None, policy=policy, subject=subject)
    if seen.looks_inside and seen.error:
        return [skipped_gate(r.gate, subject, seen.error) for r in policy.rules_for(Scope.INSIDE)]
    return inside_gates(seen.overflows, seen.ranges, policy=policy, subject=subject)


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
        "ranges": None if measurement.ranges is None else [asdict(each) for each in measurement.ranges],
        "behaviour": None if measurement.behaviour is None else measurement.behaviour.to_json(),
        "scores": [score.to_json() for score in measurement.scores.values()],
        "slices": {name: [each.to_json() for each in slices] for name, slices in measurement.slices.items()},
        "outputs": outputs,
        "task": measurement.ranks.to_json() if measurement.ranks is not None else None,
    }
