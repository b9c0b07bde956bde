"""Power cuts in what `register` stores and `pull` brings; a store's own steps are in tests/registry/storage."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelreg_testing.campaign.cuts import ACTS, Act, cut_everywhere, needed_syncs
from modelreg_testing.campaign.results import spread

pytestmark = pytest.mark.slow

each_act = pytest.mark.parametrize("act", ACTS, ids=lambda act: act.name)


@each_act
def test_a_cut_at_any_step_leaves_old_or_new_and_what_was_acknowledged(act: Act, in_memory: Path) -> None:
    broken, states = cut_everywhere(act, in_memory / act.name)
    assert broken == ""
    assert states >= 20


@each_act
def test_a_sync_that_is_left_out_is_missed(act: Act, in_memory: Path) -> None:
    """Two of them; `make faults` leaves out each."""
    for number, name in spread(needed_syncs(act, in_memory / "syncs"), 2):
        broken, _ = cut_everywhere(act, in_memory / act.name, skip=number)
        assert broken, f"nobody misses {name}, sync {number}"
