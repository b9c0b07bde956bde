from __future__ import annotations

from dataclasses import replace

from modelreg.runtime.monitoring.tracking import ModelTracker
from modelreg.runtime.serving import SwapMode, SwapReport
from modelreg_testing.monitoring import engine, state


def test_requests_are_those_of_the_last_minute() -> None:
    tracker = ModelTracker("lenet")
    assert tracker.look(state(engine()), requests=5, faults=0, now_s=0.0).recent is None
    for second in range(1, 121):
        facts = tracker.look(state(engine()), requests=5 + 10 * second, faults=second, now_s=float(second))
    assert facts.recent is not None
    assert (facts.recent.seconds, facts.recent.requests, facts.recent.faults) == (60.0, 600, 60)
    assert facts.recent.per_second == 10.0
    ten = tracker.recent(10.0)
    assert ten is not None
    assert (ten.seconds, ten.requests) == (10.0, 100)


def test_looks_further_apart_than_the_window_still_give_a_rate() -> None:
    tracker = ModelTracker("lenet")
    tracker.look(state(engine()), requests=0, faults=0, now_s=0.0)
    facts = tracker.look(state(engine()), requests=300, faults=0, now_s=300.0)
    assert facts.recent is not None
    assert facts.recent.per_second == 1.0


def test_a_model_is_stale_since_the_store_went_ahead() -> None:
    tracker = ModelTracker("lenet")
    looks = [(state(engine(1), stored=1), 0.0), (state(engine(1), stored=2), 10.0), (state(engine(1), stored=3), 25.0)]
    lags = [tracker.look(each, requests=0, faults=0, now_s=now_s).stale_s for each, now_s in looks]
    assert lags == [0.0, 0.0, 15.0]
    assert tracker.look(state(engine(3), stored=3), requests=0, faults=0, now_s=30.0).stale_s == 0.0


def test_a_store_that_was_never_seen_is_not_ahead() -> None:
    tracker = ModelTracker("lenet")
    for now_s in (0.0, 100.0):
        assert tracker.look(state(engine(1), stored=None), requests=0, faults=0, now_s=now_s).stale_s == 0.0
    assert tracker.look(None, requests=0, faults=0, now_s=200.0).stale_s == 0.0


def test_swaps_are_counted_by_mode_and_several_between_two_looks_are_all_there() -> None:
    tracker = ModelTracker("lenet")
    base = state(engine())
    for number, mode in ((1, SwapMode.FIRST), (1, SwapMode.FIRST), (4, SwapMode.OVERLAP), (5, SwapMode.SAME_ENGINE)):
        report = SwapReport(generation=number, mode=mode, load_s=0.1)
        tracker.look(replace(base, swaps=number, last_swap=report), requests=0, faults=0, now_s=float(number))
    assert tracker.swaps == {"first": 1, "overlap": 3, "same-engine": 1}
