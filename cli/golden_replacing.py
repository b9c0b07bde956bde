"""What a new golden set means for a version that had another: what it lacks, and which verdicts count no more."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modelreg.cli.render import count, print_line, short
from modelreg.cli.versions import say_contents

if TYPE_CHECKING:
    from modelreg.registry.records import GoldenContents, GoldenSetRecord, ValidationRecord
    from modelreg.registry.words import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """The golden set that gave way, and how many engines had their newest verdict against it."""

    before: GoldenSetRecord
    verdicts: int


def find_replaced(
    before: GoldenSetRecord | None, after: GoldenSetRecord, newest: Iterable[ValidationRecord]
) -> Replaced | None:
    """Return what was replaced, or None where there was no other before; `newest` has one verdict for an engine."""
    if before is None or before.digest == after.digest:
        return None
    verdicts = sum(validation.golden_digest == before.digest for validation in newest)
    return Replaced(before=before, verdicts=verdicts)


def lost_contents(before: GoldenContents | None, after: GoldenContents | None) -> list[str]:
    """Return what a golden set had and its successor does not have at all, or has less of, in words."""
    if before is None or after is None:
        return []
    lost = []
    for name in ("labels", "slices", "layers"):
        had, has = getattr(before, name), getattr(after, name)
        if has < had:
            (words,) = say_contents(type(before)(**{name: had}))
            lost.append(f"{words} (now {has})" if has else words)
    return lost


def print_replaced(replaced: Replaced, after: GoldenSetRecord, *, reference: str) -> None:
    """Say what was replaced, what is gone with it, and where the reason is kept."""
    before = replaced.before
    print_line(f"  golden set replaced: {short(before.digest)} -> {short(after.digest)}")
    lost = lost_contents(before.contents, after.contents)
    if lost:
        print_line(f"  the old one had, and this one has not: {', '.join(lost)}")
    if replaced.verdicts:
        verb = "counts" if replaced.verdicts == 1 else "count"
        print_line(f"  {count(replaced.verdicts, 'verdict')} of the old one no longer {verb}")
    print_line(f"  the message is kept in an event, and `modelreg show {reference}` prints it")


def replaced_document(replaced: Replaced | None, after: GoldenSetRecord | None) -> Json | None:
    """Return the same as JSON, or None where nothing was replaced."""
    if replaced is None or after is None:
        return None
    return {
        "sha256": replaced.before.digest,
        "lost": lost_contents(replaced.before.contents, after.contents),
        "verdicts": replaced.verdicts,
    }
