from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelreg.runtime.dispatching import choose_instance, next_delay


@pytest.mark.parametrize(
    ("in_flight", "after", "chosen"),
    [
        ([0, 0, 0], -1, 0),
        ([0, 0, 0], 0, 1),
        ([0, 0, 0], 2, 0),
        ([2, 1, 1], 1, 2),
        ([2, 1, 1], 2, 1),
        ([None, 5, None], 1, 1),
        ([None, None], 0, None),
    ],
)
def test_the_least_loaded_instance_takes_a_request(in_flight: list[int | None], after: int, chosen: int | None) -> None:
    assert choose_instance(in_flight, after=after) == chosen


@given(st.lists(st.one_of(st.none(), st.integers(0, 5)), min_size=1, max_size=8), st.integers(0, 7))
def test_no_other_has_fewer_and_none_that_is_out_is_chosen(in_flight: list[int | None], after: int) -> None:
    chosen = choose_instance(in_flight, after=after % len(in_flight))
    there = [load for load in in_flight if load is not None]
    assert (chosen is None) == (not there)
    if chosen is not None:
        assert in_flight[chosen] == min(there)


def test_equals_take_turns() -> None:
    last, seen = -1, []
    for _ in range(6):
        chosen = choose_instance([1, 1, 1], after=last)
        assert chosen is not None
        seen.append(last := chosen)
    assert seen == [0, 1, 2, 0, 1, 2]


def test_a_failed_instance_is_tried_again_after_longer_and_longer() -> None:
    delay: float | None = None
    found = []
    for _ in range(9):
        delay = next_delay(5.0, last_s=delay, lived_s=None)
        found.append(delay)
    assert found == [5, 10, 20, 40, 80, 160, 320, 600, 600]
    assert next_delay(5.0, last_s=600, lived_s=59) == 600
    assert next_delay(5.0, last_s=600, lived_s=61) == 5
