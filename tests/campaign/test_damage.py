"""Damaged files of every kind are found before use, and never served."""

from __future__ import annotations

import pytest

from modelreg_testing.campaign.damage import damage_everything
from modelreg_testing.campaign.homes import Template

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("store", ["local", "remote"])
def test_a_bit_turned_over_or_a_file_cut_short_is_found(store: str, request: pytest.FixtureRequest) -> None:
    template: Template = request.getfixturevalue(store)
    tallies = damage_everything(template, flips=3, seed=20261130, limit_files=2)
    for tally in tallies:
        tally.require_clean()
    assert len(tallies) == (7 if store == "local" else 4)
