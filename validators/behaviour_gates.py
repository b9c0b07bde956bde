"""Gates of how an engine behaves from run to run. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from modelreg.config.policy import Metric, Policy, Rule, Scope
from modelreg.registry.records import GateResult
from modelreg.registry.words import GateOutcome
from modelreg.validators.behaviour import Behaviour, Tried
from modelreg.validators.gates import rule_gate, say_measured, skipped_gate

_SUBJECT = "runs"
_BESIDE_SOURCE = (Metric.COSINE, Metric.SQNR_DB)


def behaviour_gates(found: Behaviour | None, *, policy: Policy) -> list[GateResult]:
    """Return one gate for each rule of the scope; skipped where the engine could not be run at all."""
    rules = policy.rules_for(Scope.BEHAVIOUR)
    if found is None:
        return [skipped_gate(r.gate, _SUBJECT, "the engine does not run on the golden set") for r in rules]
    return [_gate(rule, found, policy) for rule in rules]


def _gate(rule: Rule, found: Behaviour, policy: Policy) -> GateResult:
    if rule.metric is Metric.REPEAT_ERROR:
        return _repeat_gate(rule, found)
    if found.reason:
        return skipped_gate(rule.gate, _SUBJECT, found.reason)
    if rule.metric is Metric.BATCH_ERROR:
        if found.alone is None:
            return skipped_gate(
                str(rule.metric), _SUBJECT, "no output has one row per sample in runs of several samples"
            )
        return _batch_gate(rule, found.alone)
    return _shape_gate(rule, found.points, policy)


def _repeat_gate(rule: Rule, found: Behaviour) -> GateResult:
    if found.repeat.problem:
        return _failed(rule, f"the second run on the same inputs failed: {found.repeat.problem}")
    fact = f"two runs on the same inputs differ in {found.repeat.worst} by {found.repeat.error:.3g} of its range"
    return rule_gate(rule, found.repeat.error, subject=_SUBJECT, fact=fact)


def _batch_gate(rule: Rule, alone: Tried) -> GateResult:
    if alone.problem:
        return _failed(rule, f"a sample alone does not run: {alone.problem}")
    fact = f"a sample alone and the same sample in a batch differ in {alone.worst} by {alone.error:.3g} of its range"
    return rule_gate(rule, alone.error, subject=_SUBJECT, fact=fact)


def _shape_gate(rule: Rule, points: Sequence[Tried], policy: Policy) -> GateResult:
    """Judge all points: those of another batch by the rule, others beside the source by the rules for outputs."""
    if not points:
        return skipped_gate(rule.gate, _SUBJECT, "there is no shape beside the golden set's own")
    broken = [f"at {point.name}: {point.problem}" for point in points if point.problem]
    if broken:
        return _failed(rule, "; ".join(broken[:3]))
    for point in points:
        if reason := _beside_source(point, policy):
            return _failed(rule, f"at {point.name}: {reason}")
    tried = [point for point in points if not point.not_tried]
    left = "; ".join(f"{point.name} was not tried: {point.not_tried}" for point in points if point.not_tried)
    if not tried:
        return skipped_gate(rule.gate, _SUBJECT, left)
    worst = max(tried, key=lambda point: point.error)
    fact = f"at {worst.name} the samples of the golden set differ in {worst.worst} by {worst.error:.3g} of its range"
    gate = rule_gate(rule, worst.error, subject=_SUBJECT, fact=fact)
    if left and gate.outcome is GateOutcome.PASS:
        return GateResult(
            gate=gate.gate,
            subject=gate.subject,
            outcome=GateOutcome.INCONCLUSIVE,
            measured=gate.measured,
            comparison=gate.comparison,
            limit=gate.limit,
            reason=left,
        )
    return gate


def _beside_source(point: Tried, policy: Policy) -> str:
    """Return where a point that has no golden answer is further from the source than its precision may be."""
    for output, metrics in point.metrics.items():
        if metrics.nan_count + metrics.inf_count:
            return f"{output} has {metrics.nan_count} NaN and {metrics.inf_count} infinite values"
        for rule in policy.rules_for(Scope.FLOATING):
            measured = metrics.measured.get(rule.metric) if isinstance(rule.metric, Metric) else None
            if rule.metric in _BESIDE_SOURCE and measured is not None and not rule.is_met(measured):
                found = say_measured(measured, limit=rule.limit)
                return f"{rule.metric} of {output} with the source is {found}, {rule.demand} is demanded"
    return ""


def _failed(rule: Rule, reason: str) -> GateResult:
    return GateResult(
        gate=rule.gate,
        subject=_SUBJECT,
        outcome=GateOutcome.FAIL,
        comparison=rule.comparison,
        limit=rule.limit,
        reason=reason,
    )
