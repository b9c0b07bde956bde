"""Many writers on one channel, in a small form, and the control that shows that the reader sees what it looks for."""

from __future__ import annotations

import pytest

from modelreg_testing.campaign.crowd import DATABASES, Crowd, run_control, run_crowd
from modelreg_testing.campaign.homes import Template

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("database", DATABASES)
def test_eight_writers_lose_nothing_and_readers_see_whole_generations(local: Template, database: str) -> None:
    tally = run_crowd(local, Crowd(writers=8, readers=4, seconds=3.0), database=database)
    print(*tally.notes, tally.outcome_text(), sep="; ")  # noqa: T201 - shown with the test's output
    tally.require_clean()
    assert tally.outcomes["won"] >= 2  # how many depends on the machine


@pytest.mark.parametrize("apart", [False, True], ids=["one host", "a lock folder each"])
@pytest.mark.slow
def test_the_same_with_a_store_in_s3(remote: Template, apart: bool) -> None:
    tally = run_crowd(remote, Crowd(writers=6, readers=2, seconds=3.0, apart=apart))
    print(*tally.notes, tally.outcome_text(), sep="; ")  # noqa: T201
    tally.require_clean()
    assert tally.outcomes["won"] >= 1


def test_a_writer_that_copies_in_place_is_caught(local: Template) -> None:
    for seconds in (0.5, 5.0):  # on a busy machine readers seldom get their turn
        tally = run_control(local, seconds=seconds)
        tally.require_clean()
        if tally.outcomes["torn"]:
            return
    pytest.fail("no reader saw a torn pointer")
