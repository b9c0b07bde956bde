"""An engine beside the one that a channel serves now: what its users would lose by the change.

The reference says what is right; the active engine says what people have today. Both are run over the same golden
set in step, so that each sample is a pair: a few lost samples among few are chance, and called inconclusive.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np

from modelreg.config.policy import Metric, Policy, Rule, Scope
from modelreg.registry.records import GateResult
from modelreg.registry.tensor_sets import TensorSet
from modelreg.registry.words import GateOutcome, Json
from modelreg.validators.gates import rule_gate, skipped_gate
from modelreg.validators.golden import LABEL, CheckedGolden, class_scores
from modelreg.validators.interface import EvaluationPass
from modelreg.validators.pairing import PairedLatency, Standing
from modelreg.validators.ranking import top1
from modelreg.validators.slicing import SIGNIFICANCE, sign_test

_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """
    How two engines decide the samples of a golden set.

    Attributes:
        lost: Samples that the active engine gets right and the new one does not; `gained` the other way round.
        agreed: Samples of the same top-1.
        lost_samples: The first that were lost.
    """

    samples: int
    lost: int
    gained: int
    agreed: int
    lost_samples: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideActive:
    """An engine beside the active one; what could not be compared is None, with the reason."""

    name: str
    decisions: Decisions | None
    latency: PairedLatency | None
    undecided: str = ""
    not_timed: str = ""

    def to_json(self) -> Json:
        """Return it as JSON."""
        body: Json = {"active": self.name, "undecided": self.undecided, "not_timed": self.not_timed}
        body["latency"] = None if self.latency is None else self.latency.to_json()
        found = self.decisions
        body["decisions"] = (
            None
            if found is None
            else {
                "samples": found.samples,
                "lost": found.lost,
                "gained": found.gained,
                "agreed": found.agreed,
                "lost_samples": list(found.lost_samples),
            }
        )
        return body


def decide_in_step(
    engine: EvaluationPass, active: EvaluationPass, *, golden: TensorSet, checked: CheckedGolden
) -> Decisions:
    """Run both over the golden set, batch by batch, and compare what they decide; there must be labels."""
    name = checked.labelled_output
    if name is None:
        raise ValueError("without labels nobody is right")
    lost = gained = agreed = done = 0
    lost_samples: list[int] = []
    with ExitStack() as stack:
        runners = [stack.enter_context(each.open_runner()) for each in (engine, active)]
        for batch in checked.feed.iterate_batches(golden):
            new, old = (top1(class_scores(np.asarray(runner.run(batch.inputs)[name]))) for runner in runners)
            labels = golden.read(LABEL, batch.start, batch.stop)
            is_lost = (old == labels) & (new != labels)
            lost += int(np.count_nonzero(is_lost))
            gained += int(np.count_nonzero((old != labels) & (new == labels)))
            agreed += int(np.count_nonzero(old == new))
            lost_samples += [batch.start + int(i) for i in np.flatnonzero(is_lost)[: _SHOWN - len(lost_samples)]]
            done = batch.stop
    return Decisions(samples=done, lost=lost, gained=gained, agreed=agreed, lost_samples=tuple(lost_samples))


def active_gates(beside: BesideActive, *, policy: Policy) -> list[GateResult]:
    """Return one gate for each rule of the scope."""
    return [_gate(rule, beside) for rule in policy.rules_for(Scope.ACTIVE)]


def _gate(rule: Rule, beside: BesideActive) -> GateResult:
    if rule.metric is Metric.ACCURACY_DROP:
        if beside.decisions is None:
            return skipped_gate(rule.gate, beside.name, beside.undecided)
        return _decision_gate(rule, beside.name, beside.decisions)
    if beside.latency is None:
        return skipped_gate(rule.gate, beside.name, beside.not_timed)
    return _latency_gate(rule, beside.name, beside.latency)


def _decision_gate(rule: Rule, name: str, found: Decisions) -> GateResult:
    drop = (found.lost - found.gained) / found.samples
    fact = f"{found.lost} samples that {name} gets right are lost, {found.gained} gained, of {found.samples}"
    gate = rule_gate(rule, drop, subject=name, fact=fact, samples=found.lost_samples)
    chance = sign_test(found.lost, found.gained)
    if gate.outcome is GateOutcome.FAIL and chance > SIGNIFICANCE:
        return replace(gate, outcome=GateOutcome.INCONCLUSIVE, reason=f"{gate.reason}; may be chance (p {chance:.2g})")
    return gate


def _latency_gate(rule: Rule, name: str, found: PairedLatency) -> GateResult:
    gate = rule_gate(rule, found.ratio, subject=name, fact=f"{found} of {name}")
    standing = found.standing(at_most=rule.limit)
    if gate.outcome is GateOutcome.FAIL and standing is not Standing.WORSE:
        return replace(gate, outcome=GateOutcome.INCONCLUSIVE, reason=f"{gate.reason}: too close to call")
    return gate
