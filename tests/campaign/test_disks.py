"""Full, read-only and closed disks, and the longest names."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelreg_testing.campaign.disks import longest_names, no_permission, run_apart
from modelreg_testing.campaign.homes import Template
from modelreg_testing.campaign.scale import many_versions

pytestmark = pytest.mark.slow


def test_full_and_read_only_disks_keep_what_is_served_and_say_what_is_wrong(memory: Path) -> None:
    (memory / "disks").mkdir()
    found = run_apart(memory / "disks", steps=2, commands=("register", "promote"))
    if isinstance(found, str):
        pytest.skip(f"no small disks can be mounted: {found}")
    for tally in found:
        tally.require_clean()
    assert sum(tally.trials for tally in found) >= 40


def test_a_user_without_permission_is_told_and_can_look(local: Template) -> None:
    no_permission(local).require_clean()


def test_names_may_be_as_long_as_the_file_system_lets_them(memory: Path) -> None:
    longest_names(memory).require_clean()


def test_a_thousand_versions_have_the_right_numbers(local: Template) -> None:
    many_versions(local, versions=1000).require_clean()
