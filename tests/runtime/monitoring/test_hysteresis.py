from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modelreg.runtime.monitoring.hysteresis import RELEASE, HealthState, Latch, Limit, step, worst

HEALTHY, UNKNOWN, WARNING, CRITICAL = HealthState
LIMIT = Limit(warning=10, critical=20, holds_s=5, clears_s=3)
VALUES = st.floats(0, 30)


def run(limit: Limit, *values: float, every_s: float = 1.0) -> list[HealthState]:
    """Return the state after each measurement."""
    latch, states = Latch(), []
    for number, value in enumerate(values):
        latch = step(latch, value, limit, now_s=number * every_s)
        states.append(latch.state)
    return states


@pytest.mark.parametrize(
    ("values", "states"),
    [
        ([11] * 7, [HEALTHY] * 5 + [WARNING] * 2),  # beyond for 5 s
        ([11, 11, 9, 11, 11, 11, 11], [HEALTHY] * 7),  # not all the time
        ([21] * 7, [HEALTHY] * 5 + [CRITICAL] * 2),
        ([21, 11, 21, 21, 21, 21, 21], [HEALTHY] * 5 + [WARNING] * 2),  # what held all the time is a warning
        ([11] * 6 + [9.8] * 9, [HEALTHY] * 5 + [WARNING] * 10),  # not inside by enough
        ([11] * 6 + [9] * 5, [HEALTHY] * 5 + [WARNING] * 4 + [HEALTHY] * 2),
        ([21] * 6 + [12] * 5, [HEALTHY] * 5 + [CRITICAL] * 4 + [WARNING] * 2),
        ([21] * 6 + [12] + [9] * 7, [HEALTHY] * 5 + [CRITICAL] * 4 + [WARNING] * 4 + [HEALTHY]),
        ([math.nan] * 6, [HEALTHY] * 5 + [CRITICAL]),
    ],
)
def test_a_state_changes_when_a_measurement_lasts(values: list[float], states: list[HealthState]) -> None:
    assert run(LIMIT, *values) == states


def test_a_floor_is_broken_from_above() -> None:
    assert run(Limit(warning=34, is_floor=True), 40, 33, 35, 36) == [HEALTHY, WARNING, WARNING, HEALTHY]


@settings(deadline=None)
@given(st.lists(VALUES, max_size=60))
def test_a_state_is_never_worse_than_the_worst_measurement(values: list[float]) -> None:
    states = run(LIMIT, *values)
    for number, state in enumerate(states):
        if state is not HEALTHY:
            assert max(values[: number + 1]) > LIMIT.of(state)


@settings(deadline=None)
@given(st.lists(st.floats(10 * (1 - RELEASE), 10, exclude_min=True), max_size=60))
def test_a_measurement_between_limit_and_release_changes_nothing(values: list[float]) -> None:
    """Neither from HEALTHY nor from WARNING."""
    assert set(run(LIMIT, *values)) <= {HEALTHY}
    assert set(run(LIMIT, *[11] * 6, *values)[6:]) <= {WARNING}


@settings(deadline=None)
@given(st.lists(VALUES, max_size=200), st.floats(0.5, 10), st.floats(0.5, 10))
def test_a_state_lasts_at_least_as_long_as_it_takes_to_be_believed(
    values: list[float], holds_s: float, clears_s: float
) -> None:
    limit = Limit(warning=10, critical=20, holds_s=holds_s, clears_s=clears_s)
    states = run(limit, *values)
    changes = [number for number in range(1, len(states)) if states[number] is not states[number - 1]]
    for before, after in itertools.pairwise(changes):
        assert after - before >= min(holds_s, clears_s)


@settings(deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=30), st.floats(20.1, 1e9))
def test_what_stays_beyond_is_found_and_what_stays_inside_is_over(values: list[float], bad: float) -> None:
    assert run(LIMIT, *values, *[bad] * 13)[-1] is CRITICAL  # a warning first, if it was on the way to one
    assert run(LIMIT, *values, *[bad] * 13, *[1.0] * 5)[-1] is HEALTHY


def test_without_hysteresis_times_it_is_at_once() -> None:
    assert run(Limit(warning=0.5, critical=0.5), 0, 1, 0) == [HEALTHY, CRITICAL, HEALTHY]


def test_the_worst_counts_and_of_nothing_nothing_is_known() -> None:
    assert worst() is UNKNOWN
    assert worst(HEALTHY, UNKNOWN) is UNKNOWN
    assert worst(WARNING, UNKNOWN, HEALTHY) is WARNING
    assert worst(WARNING, CRITICAL) is CRITICAL
