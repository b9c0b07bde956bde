"""Gates of what happens between an engine's nodes: overflows of FP16, and how INT8 uses its ranges. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from modelreg.config.policy import Metric, Policy, Rule, Scope
from modelreg.registry.records import GateResult
from modelreg.validators.gates import rule_gate, skipped_gate
from modelreg.validators.interface import RangeUse

_SHOWN = 3


def inside_gates(
    overflows: Mapping[str, int] | None, ranges: Sequence[RangeUse] | None, *, policy: Policy, subject: str
) -> list[GateResult]:
    """Return the gates of what happens between nodes; skipped where no pass could see it.

    Args:
        overflows: How many finite values became infinite, by node in order of execution.
        ranges: How quantised values used their ranges, in order of execution.
        policy: Its rules of the scope `inside` are applied.
        subject: What the gates call the inside of the engine.
    """
    return [_gate(rule, overflows, ranges, subject) for rule in policy.rules_for(Scope.INSIDE)]


def _gate(
    rule: Rule, overflows: Mapping[str, int] | None, ranges: Sequence[RangeUse] | None, subject: str
) -> GateResult:
    if rule.metric is Metric.OVERFLOWS:
        if overflows is None:
            return skipped_gate(rule.gate, subject, "the values between nodes cannot be seen")
        return _overflow_gate(rule, overflows, subject)
    if not ranges:
        return skipped_gate(rule.gate, subject, "no quantised value between nodes can be seen")
    return (_saturation_gate if rule.metric is Metric.SATURATION else _use_gate)(rule, ranges, subject)


def _overflow_gate(rule: Rule, overflows: Mapping[str, int], subject: str) -> GateResult:
    bad = {node: count for node, count in overflows.items() if count}
    total = sum(bad.values())
    shown = ", ".join(f"{node} ({count})" for node, count in [*bad.items()][:_SHOWN]) + (", …" if len(bad) > 3 else "")
    gate = rule_gate(rule, float(total), subject=subject, fact="")
    return _because(gate, f"{total} finite values became infinite, first in {shown}")


def _saturation_gate(rule: Rule, ranges: Sequence[RangeUse], subject: str) -> GateResult:
    bad = [each for each in ranges if not rule.is_met(each.saturation)]
    shown = ", ".join(f"{each.node} ({each.saturation:.2%})" for each in bad[:_SHOWN]) + (", …" if len(bad) > 3 else "")
    gate = rule_gate(rule, max(each.saturation for each in ranges), subject=subject, fact="")
    return _because(gate, f"values beyond their calibrated range are cut off, first in {shown}")


def _use_gate(rule: Rule, ranges: Sequence[RangeUse], subject: str) -> GateResult:
    bad = [each for each in ranges if not rule.is_met(each.use)]
    shown = ", ".join(f"{each.node} ({each.use:.2%})" for each in bad[:_SHOWN]) + (", …" if len(bad) > 3 else "")
    gate = rule_gate(rule, min(each.use for each in ranges), subject=subject, fact="")
    return _because(gate, f"little of the calibrated range is used, first in {shown}")


def _because(gate: GateResult, reason: str) -> GateResult:
    return replace(gate, reason=reason if gate.reason else "")
