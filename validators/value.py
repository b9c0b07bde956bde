"""What a lower precision is worth beside its FP16 sibling: it must be smaller or faster, or it is retired. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from modelreg.config.policy import Policy, Rule, Scope
from modelreg.registry.records import GateResult
from modelreg.registry.words import GateOutcome, Json, Precision
from modelreg.validators.gates import rule_gate, skipped_gate
from modelreg.validators.pairing import PairedLatency, Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """
    An engine beside its sibling.

    Attributes:
        sibling: What the sibling is called.
        size_ratio: Bytes of its files as a part of the sibling's.
        latency: Paired; None where it was not timed, which `not_timed` explains.
    """

    sibling: str
    size_ratio: float
    latency: PairedLatency | None
    not_timed: str = ""

    def to_json(self) -> Json:
        """Return it as JSON."""
        return {
            "sibling": self.sibling,
            "size_ratio": self.size_ratio,
            "latency": None if self.latency is None else self.latency.to_json(),
            "not_timed": self.not_timed,
        }


def value_gates(worth: Worth | None, *, policy: Policy, precision: Precision, why_not: str = "") -> list[GateResult]:
    """Return the gates of value; skipped without a sibling, or where `why_not` says why none can be compared."""
    reason = why_not or f"there is no fp16 sibling of this {precision} engine to beat"
    return [
        skipped_gate(rule.gate, "value", reason) if worth is None else _gate(rule, worth, precision)
        for rule in policy.rules_for(Scope.VALUE)
    ]


def _gate(rule: Rule, worth: Worth, precision: Precision) -> GateResult:
    """Judge the gain: in size it is certain, and where it is too little, in latency it must be certain enough."""
    fact = f"{worth.size_ratio:.3g} times the size"
    if worth.latency is not None:
        fact += f" and {worth.latency}"
    fact += f" of {worth.sibling}"
    in_size = rule_gate(rule, 1 - worth.size_ratio, subject="value", fact=fact)
    if rule.is_met(1 - worth.size_ratio):
        return in_size
    gate = in_size if worth.latency is None else rule_gate(rule, 1 - worth.latency.ratio, subject="value", fact=fact)
    if worth.latency is None:
        reason = f"{fact}; not timed: {worth.not_timed}"
        return replace(gate, outcome=GateOutcome.INCONCLUSIVE, reason=reason)
    standing = worth.latency.standing(at_most=1 - rule.limit)
    if standing is Standing.BETTER:
        return gate
    if standing is Standing.INCONCLUSIVE:
        return replace(gate, outcome=GateOutcome.INCONCLUSIVE, reason=f"{fact}: too close to call")
    retired = f"{fact}: {precision} is worth nothing here, retire it and serve fp16"
    return replace(gate, outcome=GateOutcome.FAIL, reason=retired)
