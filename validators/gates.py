"""Gates: measurements against a policy's limits. Pure: nothing is run or read here, and only the policy decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from modelreg.config.policy import FINITE, REALISED, Metric, Policy, Rule, Scope
from modelreg.registry.records import EngineRecord, GateResult
from modelreg.registry.words import GateOutcome, Precision, Verdict
from modelreg.validators.metrics import OutputMetrics
from modelreg.validators.ranking import RankMetrics

RUN = "run"
# A pass of these says nothing about how close the engine is to the reference.
_NO_EVIDENCE = {
    *(FINITE, REALISED, RUN),
    *(str(Metric.OVERFLOWS), str(Metric.SATURATION), str(Metric.RANGE_USE)),
    *(str(Metric.REPEAT_ERROR), str(Metric.BATCH_ERROR), str(Metric.SHAPE_ERROR)),
    *(str(Metric.GAIN), f"{Scope.ACTIVE}_{Metric.LATENCY_RATIO}", f"{Scope.ACTIVE}_{Metric.ACCURACY_DROP}"),
}
_UNCONVERTED = {Precision.FP32, Precision.TF32, Precision.BEST}


def judge(gates: Sequence[GateResult]) -> Verdict:
    """Return the verdict: a pass needs a passed gate with evidence, and none that failed or could not be measured."""
    outcomes = {gate.outcome for gate in gates}
    if GateOutcome.FAIL in outcomes:
        return Verdict.FAIL
    if GateOutcome.ERROR in outcomes:
        return Verdict.ERROR
    has_evidence = any(g.outcome is GateOutcome.PASS and g.gate not in _NO_EVIDENCE for g in gates)
    return Verdict.PASS if has_evidence else Verdict.FAIL


def output_gates(
    metrics: OutputMetrics, *, policy: Policy, scope: Scope, subject: str, samples: Sequence[int]
) -> list[GateResult]:
    """Return the gates of one output.

    Args:
        metrics: What was measured.
        policy: Its rules of `scope` are applied, each one a gate.
        scope: Whether the output is floating or integer.
        subject: What the gates call the output.
        samples: The golden samples with the largest errors, the worst first.
    """
    rules = policy.rules_for(scope)
    if metrics.is_empty:
        names = [rule.gate for rule in rules] or [FINITE]
        return [skipped_gate(name, subject, "the output has no values, so there is no evidence") for name in names]
    gates = [_finite_gate(metrics, subject, samples)]
    for rule in rules:
        if isinstance(rule.metric, Metric) and rule.metric in metrics.measured:
            measured = metrics.measured[rule.metric]
            fact = f"{rule.metric} of {subject} is {say_measured(measured, limit=rule.limit)}"
            gates.append(rule_gate(rule, measured, subject=subject, fact=fact, samples=samples, lists=True))
        else:
            gates.append(skipped_gate(rule.gate, subject, "the output has no finite value to measure"))
    return gates


def task_gates(ranks: RankMetrics | None, *, policy: Policy, subject: str) -> list[GateResult]:
    """Return the gates of the task: agreement and accuracy of what a classifier decides; skipped without labels."""
    gates = []
    for rule in policy.rules_for(Scope.TASK):
        if not isinstance(rule.metric, Metric):
            continue  # a plug-in: see task_metrics
        name = str(rule.metric)
        if ranks is None:
            gates.append(skipped_gate(name, subject, "the golden set has no labels"))
        elif rule.metric not in ranks.measured:
            gates.append(skipped_gate(name, subject, "the output has too few classes"))
        else:
            gates.append(_task_gate(rule, ranks, subject))
    return gates


def realised_gate(engine: EngineRecord) -> GateResult:
    """Return whether the engine became the precision that was asked for, as read back after the build."""
    if "unknown" in engine.realised:
        return skipped_gate(REALISED, "engine", "it was built elsewhere, and what became of its layers is not known")
    stayed = engine.realised.get("stayed", [])
    reason = ""
    if stayed:
        shown = ", ".join(str(node) for node in stayed[:5]) + (", …" if len(stayed) > 5 else "")
        reason = f"{len(stayed)} nodes did not become {engine.precision}: {shown}"
    elif engine.precision not in _UNCONVERTED and not engine.realised.get("converted"):
        reason = f"no node became {engine.precision}"
    return GateResult(
        gate=REALISED,
        subject="engine",
        outcome=GateOutcome.FAIL if reason else GateOutcome.PASS,
        measured=float(len(stayed)),
        comparison="<=",
        limit=0.0,
        reason=reason,
    )


def error_gate(subject: str, reason: str) -> GateResult:
    """Return the gate of a run that could not be measured."""
    return GateResult(gate=RUN, subject=subject, outcome=GateOutcome.ERROR, reason=reason)


def skipped_gate(gate: str, subject: str, reason: str) -> GateResult:
    """Return a gate that did not apply; it is never a pass."""
    return GateResult(gate=gate, subject=subject, outcome=GateOutcome.SKIPPED, reason=reason)


def _finite_gate(metrics: OutputMetrics, subject: str, samples: Sequence[int]) -> GateResult:
    odd = metrics.nan_count + metrics.inf_count
    reason = (
        f"{metrics.nan_count} NaN and {metrics.inf_count} infinite values where the reference has other values, "
        f"{_listed(samples)}"
    )
    return GateResult(
        gate=FINITE,
        subject=subject,
        outcome=GateOutcome.FAIL if odd else GateOutcome.PASS,
        measured=float(odd),
        comparison="<=",
        limit=0.0,
        reason=reason if odd else "",
        worst_samples=tuple(samples) if odd else (),
    )


def rule_gate(
    rule: Rule, measured: float, *, subject: str, fact: str, samples: Sequence[int] = (), lists: bool = False
) -> GateResult:
    """Return the gate of a rule that was measured.

    Args:
        rule: Its limit decides.
        measured: The number.
        subject: What the gate is called by.
        fact: What was found, for the reason if it fails; the limit is added.
        samples: The golden samples to look at, the worst first.
        lists: Whether the reason names them, or says that none stands out.
    """
    is_met = rule.is_met(measured)
    reason = f"{fact}, {_limit(rule)}" + (f"; {_listed(samples)}" if lists else "")
    return GateResult(
        gate=rule.gate,
        subject=subject,
        outcome=GateOutcome.PASS if is_met else GateOutcome.FAIL,
        measured=measured,
        comparison=rule.comparison,
        limit=rule.limit,
        reason="" if is_met else reason,
        worst_samples=tuple(samples),
    )


def _task_gate(rule: Rule, ranks: RankMetrics, subject: str) -> GateResult:
    assert isinstance(rule.metric, Metric)
    measured = ranks.measured[rule.metric]
    flips = tuple(flip.row for flip in ranks.flips)
    if rule.metric is Metric.ACCURACY_DROP:
        fact = (
            f"accuracy fell from {ranks.reference_accuracy:.4f} to {ranks.accuracy:.4f} "
            f"on {ranks.samples} labelled samples"
        )
    else:
        fact = f"{rule.metric} of {subject} with the reference is {measured:.4f}"
    return rule_gate(rule, measured, subject=subject, fact=fact, samples=flips, lists=True)


def say_measured(measured: float, *, limit: float) -> str:
    """Return a measurement with six digits, or with as many as tell it from its limit."""
    texts = (f"{measured:.{digits}g}" for digits in range(6, 18))
    return next((text for text in texts if float(text) != limit or measured == limit), f"{measured!r}")


def _limit(rule: Rule) -> str:
    return f"the limit is {rule.demand}"


def _listed(samples: Sequence[int]) -> str:
    return f"worst samples {', '.join(str(s) for s in samples)}" if samples else "no sample stands out"


def scope_of(dtypes: Mapping[str, str], name: str) -> Scope:
    """Return whether an output is judged as floating or as integer."""
    return Scope.FLOATING if "float" in dtypes[name] else Scope.INTEGER
