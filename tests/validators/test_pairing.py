from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from modelreg.config.policy import Scope, load_policy
from modelreg.registry.records import GateResult
from modelreg.registry.words import GateOutcome, Precision
from modelreg.validators.pairing import PairedLatency, Standing, compare_pairs, time_in_turns
from modelreg.validators.value import Worth, value_gates


class Paced:
    """Something that says how long it took."""

    def __init__(self, log: list[str], name: str, times: Any) -> None:
        self._log, self._name, self._times = log, name, iter(times)

    def time_block(self, inputs: Mapping[str, Any]) -> float:
        assert list(inputs) == ["x"]
        self._log.append(self._name)
        return float(next(self._times))


def pairs(first: float, second: float, *, noise: float, rounds: int = 24, seed: int = 0) -> PairedLatency:
    rng = np.random.default_rng(seed)
    host = np.exp(rng.normal(scale=0.5, size=rounds))  # shared: another process comes and goes
    own = np.exp(rng.normal(scale=noise, size=(rounds, 2)))
    return compare_pairs(np.array([first, second]) * own * host[:, None], samples=8)


def test_what_both_sides_share_does_not_matter() -> None:
    found = pairs(9.0, 10.0, noise=0.01)
    assert found.low < found.ratio < found.high
    assert found.ratio == pytest.approx(0.9, rel=0.02)
    assert found.high - found.low < 0.03
    assert found.standing() is Standing.BETTER
    assert pairs(10.0, 9.0, noise=0.01).standing() is Standing.WORSE
    assert pairs(9.0, 10.0, noise=0.01).standing(at_most=0.9) is not Standing.BETTER


def test_noise_makes_it_inconclusive_and_equal_times_rarely_make_a_difference() -> None:
    assert pairs(9.9, 10.0, noise=0.2).standing() is Standing.INCONCLUSIVE
    wrong = [pairs(10.0, 10.0, noise=0.05, seed=seed).standing() for seed in range(200)]
    assert sum(each is not Standing.INCONCLUSIVE for each in wrong) < 200 * 0.12


def test_equal_times_give_equal_intervals() -> None:
    assert pairs(9.0, 10.0, noise=0.1) == pairs(9.0, 10.0, noise=0.1)


def test_the_engines_take_turns_and_change_their_order() -> None:
    log: list[str] = []
    found = time_in_turns(Paced(log, "a", [9.0] * 99), Paced(log, "b", [10.0] * 99), {"x": np.zeros(1)}, samples=1)
    assert log[:6] == ["a", "b", "a", "b", "b", "a"]
    assert found.rounds == 24
    assert (found.first_ms, found.second_ms, found.samples) == (9.0, 10.0, 1)
    assert found.to_json()["standing"] == "better"
    assert str(found) == "0.9 times the latency (0.9 to 0.9)"


def gain(size_ratio: float, latency: PairedLatency | None, not_timed: str = "") -> GateResult:
    worth = Worth(sibling="engine 2 (fp16)", size_ratio=size_ratio, latency=latency, not_timed=not_timed)
    (gate,) = value_gates(worth, policy=load_policy(Precision.INT8), precision=Precision.INT8)
    return gate


FASTER, SLOWER, SAME = (pairs(9.0, 10.0, noise=0.01), pairs(11.0, 10.0, noise=0.01), pairs(9.8, 10.0, noise=0.1))


def test_smaller_or_surely_faster_is_worth_it() -> None:
    assert gain(0.5, SLOWER).outcome is GateOutcome.PASS
    assert gain(0.5, None, "it cannot be timed").outcome is GateOutcome.PASS
    assert gain(1.1, FASTER).outcome is GateOutcome.PASS


def test_surely_neither_is_retired_with_the_reason() -> None:
    gate = gain(1.1, SLOWER)
    assert gate.outcome is GateOutcome.FAIL
    assert gate.reason.startswith("1.1 times the size and 1.1 times the latency (")
    assert gate.reason.endswith("of engine 2 (fp16): int8 is worth nothing here, retire it and serve fp16")


def test_too_close_and_not_timed_are_inconclusive() -> None:
    assert gain(1.0, SAME).outcome is GateOutcome.INCONCLUSIVE
    assert "too close to call" in gain(1.0, SAME).reason
    gate = gain(1.0, None, "it cannot be timed")
    assert gate.outcome is GateOutcome.INCONCLUSIVE
    assert "not timed: it cannot be timed" in gate.reason


def test_without_a_sibling_the_value_is_skipped_and_fp16_has_none_to_beat() -> None:
    (gate,) = value_gates(None, policy=load_policy(Precision.INT8), precision=Precision.INT8)
    assert gate.outcome is GateOutcome.SKIPPED
    assert gate.reason == "there is no fp16 sibling of this int8 engine to beat"
    assert not load_policy(Precision.FP16).rules_for(Scope.VALUE)
