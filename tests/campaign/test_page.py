"""The page of the campaign, when only some parts were run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from modelreg_testing.campaign.page import PARTS, write_page
from modelreg_testing.campaign.results import Tally, save

ABOUT: dict[str, Any] = {
    **{"date": "2026-11-30", "machine": "m", "python": "3.11", "sqlite": "3", "strace": "6", "modelreg": "1"},
    **{"commit": "c", "seconds": 2.0, "settings": "the default sizes"},
}


def test_a_part_that_was_not_run_keeps_what_the_page_says_of_it(tmp_path: Path) -> None:
    page = tmp_path / "faults.md"
    crowd = Tally("crowd", "a|b", "s3", trials=1200, outcomes=Counter(won=1200), violations=["lost"])
    save(tmp_path / "one", "crowd", [crowd], ABOUT)
    write_page(page, tmp_path / "one", preface="# Faults\n")
    first = page.read_text()
    assert "In all 1,200 trials (reads of the control among them), 1 violations." in first
    save(tmp_path / "two", "way", [Tally("way", "promote", "s3", trials=4, outcomes=Counter(new=4))], ABOUT)
    write_page(page, tmp_path / "two", preface="# Faults\n")
    second = page.read_text()
    assert "In all 1,204 trials (reads of the control among them), 1 violations." in second
    assert [line for line in second.splitlines() if line.startswith("## ")] == [f"## {t}" for t, _ in PARTS.values()]
    assert "| a\\|b | s3 | 1,200 | 1,200 won | 1 |  |\n\nVIOLATION lost" in second
    assert second.count("Not run.") == len(PARTS) - 2
    write_page(page, tmp_path / "two", preface="# Faults\n")
    assert page.read_text() == second
