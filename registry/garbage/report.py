"""What a collection found and did, counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from modelreg.registry.garbage.needs import Need, Reason, Thing
from modelreg.registry.storage.marks import MarkedKind
from modelreg.registry.words import Json

OnProgress = Callable[[str, int, int], None]
"""Called with what is done, how many are done, and of how many."""


def not_told(_what: str, _done: int, _total: int) -> None:
    """Ignore progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionRequest:
    """
    What a user asks of a collection.

    Attributes:
        keep: So many of the last releases of each channel stay.
        keep_versions: Of so many of the newest versions of each model the engines stay.
        grace: So long a thing must have been garbage before it is removed.
        accept_database: Whether this database counts, though another one collected here before.
    """

    keep: int
    keep_versions: int
    grace: timedelta
    accept_database: bool = False


@dataclass(slots=True)
class Tally:
    """Things of one kind: how many, and their bytes. A release counts what it takes beside its blobs."""

    things: int = 0
    size_bytes: int = 0

    def add(self, size_bytes: int) -> None:
        """Count one more."""
        self.things += 1
        self.size_bytes += size_bytes

    def to_json(self) -> Json:
        """Return both numbers."""
        return {"things": self.things, "size_bytes": self.size_bytes}


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    """Something that nothing needs: since when it is known (None: it is new), and whether its grace is over."""

    thing: Thing
    reason: Reason
    size_bytes: int
    marked_at: datetime | None
    is_due: bool


@dataclass(slots=True, kw_only=True)
class Collection:
    """
    What came of one run.

    Attributes:
        dry_run: Whether nothing was done.
        kept: Tallies by need, then kind.
        garbage: Everything that nothing needs, as it was found.
        marked: What was marked now.
        swept: What was removed now.
        revived: How many marks were taken away since their things are needed again.
        passed_over: How many things were due and stayed: taken back at the last moment, or another collector has them.
        forgotten: How many plans the database names that are gone and not needed: it forgets them, unless dry.
        leftovers: How many temporary files or unfinished uploads of dead processes there were (removed unless dry).
        leases_expired: How many leases were over (removed unless dry).
    """

    dry_run: bool
    grace: timedelta
    kept: dict[Need, dict[MarkedKind, Tally]] = field(default_factory=dict)
    garbage: list[Garbage] = field(default_factory=list)
    marked: Tally = field(default_factory=Tally)
    swept: Tally = field(default_factory=Tally)
    revived: int = 0
    passed_over: int = 0
    forgotten: int = 0
    leftovers: int = 0
    leases_expired: int = 0

    def count_kept(self, need: Need, kind: MarkedKind, size_bytes: int) -> None:
        """Count something that is kept."""
        self.kept.setdefault(need, {}).setdefault(kind, Tally()).add(size_bytes)

    def tally(self, *, reason: Reason | None = None, kind: MarkedKind | None = None, due: bool | None = None) -> Tally:
        """Return how much of the garbage is of a reason, a kind, and due or not."""
        return tally(
            each
            for each in self.garbage
            if reason in (None, each.reason) and kind in (None, each.thing.kind) and due in (None, each.is_due)
        )


def tally(garbage: Iterable[Garbage]) -> Tally:
    """Return how many, and how many bytes."""
    found = Tally()
    for each in garbage:
        found.add(each.size_bytes)
    return found
