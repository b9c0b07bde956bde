"""Drift over the nights: steps, creeps, outliers, noise, and too few nights."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from modelreg.validators.drift import FEWEST, WINDOW, Rule, Trend, judge_series, sign_chance

ACCURACY = Rule(higher_is_better=True, absolute=0.01)
LATENCY = Rule(higher_is_better=False, relative=0.1, confirmed_by=3)


def quiet(random_source: random.Random) -> float:
    return random_source.gauss(1.0, 0.03)


def busy(random_source: random.Random) -> float:
    """Return a latency of a host that is busy in one night of ten."""
    return quiet(random_source) + (random_source.uniform(0.1, 0.6) if random_source.random() < 0.1 else 0.0)


@pytest.mark.parametrize("nights", range(FEWEST))
def test_too_few_nights_decide_nothing_however_bad_tonight_is(nights: int) -> None:
    found = judge_series([0.9] * nights, 0.1, ACCURACY)
    assert found.trend is Trend.INCONCLUSIVE
    assert found.reason == f"{nights} of the 7 nights that are needed"


def test_one_night_is_enough_for_what_has_no_noise() -> None:
    found = judge_series([0.9] * FEWEST, 0.88, ACCURACY)
    assert found.trend is Trend.DRIFT
    assert "0.88 after a median of 0.9" in found.reason


def test_a_change_that_nobody_would_care_about_is_none() -> None:
    assert judge_series([0.9] * 30, 0.895, ACCURACY).trend is Trend.STEADY


def test_what_got_better_is_no_drift() -> None:
    assert judge_series([0.9] * 30, 0.95, ACCURACY).trend is Trend.BETTER
    assert judge_series([1.0] * 30, 0.5, LATENCY).trend is Trend.BETTER


def test_noise_widens_what_is_tolerated() -> None:
    noisy = [0.9 + 0.02 * (-1) ** night for night in range(30)]
    assert judge_series(noisy, 0.87, ACCURACY).trend is Trend.STEADY
    assert judge_series([0.9] * 30, 0.87, ACCURACY).trend is Trend.DRIFT


@pytest.mark.parametrize(
    ("history", "trend"),
    [
        ([1.0] * 20, Trend.OUTLIER),
        ([1.0] * 19 + [2.0], Trend.OUTLIER),
        ([1.0] * 18 + [2.0, 2.0], Trend.DRIFT),
        ([1.0] * 17 + [2.0, 1.0, 2.0], Trend.OUTLIER),
    ],
)
def test_a_slow_night_is_an_outlier_and_three_in_a_row_are_drift(history: list[float], trend: Trend) -> None:
    assert judge_series(history, 2.0, LATENCY).trend is trend


def test_what_gets_worse_little_by_little_is_found_though_no_night_stands_out() -> None:
    creeping = [1.0 + 0.01 * night for night in range(31)]
    found = judge_series(creeping[:-1], creeping[-1], LATENCY)
    assert found.trend is Trend.DRIFT
    assert "it creeps: 15 of 15 pairs of nights are worse" in found.reason


def test_a_creep_below_the_floor_is_none() -> None:
    creeping = [1.0 + 0.001 * night for night in range(31)]
    assert judge_series(creeping[:-1], creeping[-1], LATENCY).trend is Trend.STEADY


def test_nights_before_the_window_are_forgotten() -> None:
    history = [0.5] * 100 + [0.9] * WINDOW
    found = judge_series(history, 0.8, ACCURACY)
    assert (found.trend, found.nights) == (Trend.DRIFT, WINDOW)


@pytest.mark.parametrize(
    ("worse", "better", "chance"), [(7, 0, 1 / 128), (0, 0, 1.0), (1, 1, 0.75), (14, 1, 16 / 32768)]
)
def test_the_sign_test_is_exact(worse: int, better: int, chance: float) -> None:
    assert sign_chance(worse, better) == pytest.approx(chance)


@pytest.mark.parametrize("draw", [quiet, busy])
def test_noise_alone_is_hardly_ever_drift(draw: Callable[[random.Random], float]) -> None:
    source = random.Random(1)
    judged = [judge_series([draw(source) for _ in range(30)], draw(source), LATENCY).trend for _ in range(1000)]
    assert judged.count(Trend.DRIFT) <= 5


def test_a_quarter_slower_on_a_busy_host_is_mostly_found_within_five_nights() -> None:
    source, caught = random.Random(2), 0
    for _ in range(200):
        history = [busy(source) for _ in range(30)]
        trends = []
        for _ in range(5):
            tonight = 1.25 * busy(source)
            trends.append(judge_series(history, tonight, LATENCY).trend)
            history.append(tonight)
        caught += Trend.DRIFT in trends
    assert caught >= 160
