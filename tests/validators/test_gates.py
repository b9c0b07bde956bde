from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from modelreg.config.policy import Metric, Policy, Rule, Scope
from modelreg.registry.records import GateResult
from modelreg.registry.words import GateOutcome, Precision, Verdict
from modelreg.validators.gates import judge, output_gates, realised_gate, say_measured, task_gates
from modelreg.validators.metrics import MetricAccumulator, OutputMetrics
from modelreg.validators.ranking import RankAccumulator
from modelreg_testing.golden import engine_of

POLICY = Policy(
    precision=Precision.FP16,
    rules=(
        Rule(metric=Metric.COSINE, applies_to=Scope.FLOATING, limit=0.99),
        Rule(metric=Metric.MAX_ABS, applies_to=Scope.FLOATING, limit=0.5),
        Rule(metric=Metric.MISMATCH_RATE, applies_to=Scope.INTEGER, limit=0.1),
        Rule(metric=Metric.TOP5_AGREEMENT, applies_to=Scope.TASK, limit=0.9),
        Rule(metric=Metric.ACCURACY_DROP, applies_to=Scope.TASK, limit=0.1),
    ),
)


def gate(outcome: GateOutcome, name: str = "cosine") -> GateResult:
    return GateResult(gate=name, subject="y", outcome=outcome)


def measured(reference: Any, candidate: Any) -> OutputMetrics:
    accumulator = MetricAccumulator(scale=1.0)
    accumulator.update(np.asarray(reference), np.asarray(candidate))
    return accumulator.result()


def gates_of(metrics: OutputMetrics, scope: Scope = Scope.FLOATING) -> dict[str, GateResult]:
    samples = [worst.row for worst in metrics.worst]
    return {g.gate: g for g in output_gates(metrics, policy=POLICY, scope=scope, subject="y", samples=samples)}


@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_a_verdict_passes_only_by_evidence_and_without_failure_or_error(length: int) -> None:
    for outcomes in itertools.product(GateOutcome, repeat=length):
        verdict = judge([gate(outcome) for outcome in outcomes])
        bad = {GateOutcome.FAIL, GateOutcome.ERROR} & set(outcomes)
        assert (verdict is Verdict.PASS) == (GateOutcome.PASS in outcomes and not bad)
        if GateOutcome.FAIL not in outcomes and GateOutcome.ERROR in outcomes:
            assert verdict is Verdict.ERROR


def test_a_set_of_skipped_gates_fails_and_so_does_an_empty_one() -> None:
    assert judge([]) is Verdict.FAIL
    assert judge([gate(GateOutcome.SKIPPED)] * 5) is Verdict.FAIL
    assert judge([gate(GateOutcome.INCONCLUSIVE)]) is Verdict.FAIL


@pytest.mark.parametrize("name", ["finite", "realised_precision", "run"])
def test_gates_that_compare_nothing_are_no_evidence(name: str) -> None:
    assert judge([gate(GateOutcome.PASS, name)]) is Verdict.FAIL
    assert judge([gate(GateOutcome.PASS, name), gate(GateOutcome.PASS)]) is Verdict.PASS


def test_every_rule_of_the_scope_is_a_gate_with_measured_and_limit() -> None:
    found = gates_of(measured([[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [3.0, 4.75]]))
    assert list(found) == ["finite", "cosine", "max_abs"]
    assert found["cosine"].outcome is GateOutcome.PASS
    assert (found["max_abs"].measured, found["max_abs"].limit, found["max_abs"].comparison) == (0.75, 0.5, "<=")
    assert found["max_abs"].outcome is GateOutcome.FAIL
    assert found["max_abs"].reason == "max_abs of y is 0.75, the limit is <= 0.5; worst samples 1"
    assert found["max_abs"].worst_samples == (1,)
    integers = gates_of(measured([1, 2], [1, 2]), Scope.INTEGER)
    assert list(integers) == ["finite", "mismatch_rate"]


def test_a_value_on_the_limit_passes() -> None:
    assert gates_of(measured([0.0], [0.5]))["max_abs"].outcome is GateOutcome.PASS


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_one_value_that_is_not_finite_fails_although_every_other_gate_passes(value: float) -> None:
    reference = np.ones((1000, 3))
    candidate = reference.copy()
    candidate[7, 1] = value
    found = gates_of(measured(reference, candidate))
    assert found["cosine"].measured == pytest.approx(1.0)
    assert found["cosine"].outcome is GateOutcome.PASS
    assert found["finite"].outcome is GateOutcome.FAIL
    assert found["finite"].worst_samples == (7,)
    assert judge(list(found.values())) is Verdict.FAIL


def test_an_output_with_no_finite_pair_cannot_be_measured_and_fails() -> None:
    found = gates_of(measured([1.0, 2.0], [math.nan, math.nan]))
    assert found["finite"].outcome is GateOutcome.FAIL
    assert found["cosine"].outcome is GateOutcome.SKIPPED


def test_an_empty_output_is_skipped_with_the_reason() -> None:
    found = gates_of(measured(np.zeros((5, 0)), np.zeros((5, 0))))
    assert {g.outcome for g in found.values()} == {GateOutcome.SKIPPED}
    assert "no evidence" in found["cosine"].reason
    no_rules = Policy(precision=Precision.FP16, rules=())
    alone = output_gates(
        measured(np.zeros(0), np.zeros(0)), policy=no_rules, scope=Scope.FLOATING, subject="y", samples=[]
    )
    assert [g.outcome for g in alone] == [GateOutcome.SKIPPED]


def test_the_task_is_skipped_without_labels_and_judged_with_them() -> None:
    without = task_gates(None, policy=POLICY, subject="y")
    assert [(g.gate, g.outcome) for g in without] == [
        ("top5_agreement", GateOutcome.SKIPPED),
        ("accuracy_drop", GateOutcome.SKIPPED),
    ]
    ranks = RankAccumulator()
    reference = np.eye(3).repeat(4, axis=0)
    candidate = reference.copy()
    candidate[[2, 5]] = candidate[[2, 5]][:, [1, 2, 0]]
    ranks.update(reference, candidate, reference.argmax(1))
    top5, drop = task_gates(ranks.result(), policy=POLICY, subject="y")
    assert (top5.outcome, top5.reason) == (GateOutcome.SKIPPED, "the output has too few classes")
    assert drop.outcome is GateOutcome.FAIL
    assert drop.measured == pytest.approx(2 / 12)
    assert drop.worst_samples == (2, 5)
    assert "accuracy fell from 1.0000 to 0.8333 on 12 labelled samples" in drop.reason


def test_agreement_below_its_limit_says_so() -> None:
    ranks = RankAccumulator()
    ranks.update(np.eye(8), np.roll(np.eye(8), 5, axis=1), np.arange(8))
    top5, _ = task_gates(ranks.result(), policy=POLICY, subject="y")
    assert top5.outcome is GateOutcome.FAIL
    assert "top5_agreement of y with the reference" in top5.reason


def test_the_realised_precision_of_a_plan_built_elsewhere_is_skipped_and_is_no_evidence() -> None:
    gate = realised_gate(engine_of(Precision.FP16, {"unknown": "until validated"}))
    assert (gate.outcome, gate.measured) == (GateOutcome.SKIPPED, None)
    assert "built elsewhere" in gate.reason
    assert judge([gate]) is Verdict.FAIL


def test_the_realised_precision_is_a_gate() -> None:
    assert realised_gate(engine_of(Precision.FP16)).outcome is GateOutcome.PASS
    assert realised_gate(engine_of(Precision.FP32, {"stayed": []})).outcome is GateOutcome.PASS
    stayed = realised_gate(engine_of(Precision.INT8, {"stayed": ["conv1", "conv2"], "converted": 5}))
    assert (stayed.outcome, stayed.measured) == (GateOutcome.FAIL, 2.0)
    assert stayed.reason == "2 nodes did not become int8: conv1, conv2"
    silent = realised_gate(engine_of(Precision.FP16, {"stayed": [], "converted": 0}))
    assert (silent.outcome, silent.reason) == (GateOutcome.FAIL, "no node became fp16")
    many = realised_gate(engine_of(Precision.INT8, {"stayed": list("abcdefg"), "converted": 5}))
    assert many.reason.endswith("a, b, c, d, e, …")


@pytest.mark.parametrize(
    ("measured", "limit", "text"),
    [
        (0.973282, 0.99, "0.973282"),
        (0.99999996, 1.0, "0.99999996"),
        (0.9899999999, 0.99, "0.9899999999"),
        (0.99, 0.99, "0.99"),
        (float("inf"), 1.0, "inf"),
        (float("nan"), 1.0, "nan"),
    ],
)
def test_a_measurement_that_missed_its_limit_never_reads_like_it(measured: float, limit: float, text: str) -> None:
    assert say_measured(measured, limit=limit) == text
