"""Remove what is due, batch by batch: take the marks, look once more who needs what, forget the rows, remove."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial

import sqlalchemy as sa

from modelreg.registry.blobs import record_blob
from modelreg.registry.database import Database
from modelreg.registry.events import append_event
from modelreg.registry.garbage.database_facts import forget_blobs, read_database_facts, refresh_database_facts
from modelreg.registry.garbage.needs import DatabaseFacts, Needs, Thing, judge
from modelreg.registry.garbage.report import CollectionRequest
from modelreg.registry.garbage.store_facts import StoreReader, StoreReading
from modelreg.registry.storage.interface import Storage
from modelreg.registry.storage.marks import Mark, MarkedKind, MarkState, mark_name, parse_mark
from modelreg.registry.storage.notes import MayTake
from modelreg.registry.storage.s3_parallel import run_ahead
from modelreg.registry.words import BlobKind

BATCH = 200
_AT_ONCE_S = 60.0
"""So long after its mark was taken a thing may be removed: later, somebody may have taken us for dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """A thing whose mark says *sweeping*, written by us as `data`. `is_there`: it was, a moment ago."""

    thing: Thing
    mark: Mark
    data: bytes
    at_s: float
    is_there: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweeper:
    """Removes things of one store, of which `may_take` tells what another collector left; `workers` at once."""

    database: Database
    storage: Storage
    reader: StoreReader
    request: CollectionRequest
    actor: str
    may_take: MayTake
    workers: int

    def sweep(self, things: Sequence[Thing], *, named: AbstractSet[str] = frozenset()) -> Iterator[Thing]:
        """
        Remove things and yield each that is gone; one that is needed again, or that somebody else has, is passed over.

        Args:
            things: What is due, releases or blobs.
            named: Blobs that a release names which is still whole: they wait.
        """
        for start in range(0, len(things), BATCH):
            jobs = (partial(self._take, thing) for thing in things[start : start + BATCH])
            taken = [each for each in run_ahead(jobs, workers=self.workers) if each is not None]
            if taken:
                yield from self._sweep_taken(taken, named)

    def _take(self, thing: Thing) -> _Taken | None:
        """Move a mark to *sweeping*, which only one can; None if it was taken back, or another collector has it."""
        note = self.storage.read_note(mark_name(thing.kind, thing.digest))
        if note is None:
            return None
        mark = parse_mark(note)
        if mark.state not in (MarkState.MARKED, MarkState.SWEEPING):
            return None
        if mark.state is MarkState.SWEEPING and not self.may_take(note):
            return None
        mark = replace(mark, state=MarkState.SWEEPING, actor=self.actor)
        data, at_s = mark.to_bytes(), time.monotonic()
        if not self.storage.write_note(mark.name, data, replaces=note):
            return None
        return _Taken(thing=thing, mark=mark, data=data, at_s=at_s, is_there=self._is_there(thing))

    def _is_there(self, thing: Thing) -> bool:
        return thing.kind is MarkedKind.RELEASE or self.storage.has_blob(thing.digest)

    def _sweep_taken(self, taken: Sequence[_Taken], named: AbstractSet[str]) -> Iterator[Thing]:
        with self.database.read() as connection:
            facts = read_database_facts(connection)
        reading = self.reader.read()
        with self.database.write() as connection:
            garbage = self._decide(connection, taken, reading, refresh_database_facts(connection, facts), named)
        for each in taken:
            if each not in garbage:
                self._take_back(each)
        jobs = (partial(self._remove, each) for each in garbage)
        for thing in run_ahead(jobs, workers=self.workers):
            if thing is not None:
                yield thing

    def _decide(
        self,
        connection: sa.Connection,
        taken: Sequence[_Taken],
        reading: StoreReading,
        facts: DatabaseFacts,
        named: AbstractSet[str],
    ) -> list[_Taken]:
        """Return what nothing needs now, and forget its rows; a row that was forgotten too early is written again."""
        needs = judge(reading.facts, facts, keep_versions=self.request.keep_versions)
        garbage = [each for each in taken if not each.is_there or not _is_needed(each.thing, needs, named)]
        forget_blobs(connection, [each.thing.digest for each in garbage if each.thing.kind is MarkedKind.BLOB])
        for each in taken:
            if each not in garbage and _lacks_row(each.thing, facts):
                record_blob(connection, digest=each.thing.digest, size_bytes=each.mark.size_bytes, kind=BlobKind.PLAN)
        if garbage:
            details = {
                "blobs": [each.thing.digest for each in garbage if each.thing.kind is MarkedKind.BLOB],
                "releases": [each.thing.digest for each in garbage if each.thing.kind is MarkedKind.RELEASE],
                "size_bytes": sum(each.mark.size_bytes for each in garbage),
                "keep": self.request.keep,
            }
            append_event(connection, kind="gc.swept", subject="store", details=details, actor=self.actor)
        return garbage

    def _take_back(self, taken: _Taken) -> None:
        """Give something back that is needed after all, unless somebody did that already."""
        note = self.storage.read_note(taken.mark.name)
        if note is not None and note.data == taken.data:
            kept = replace(taken.mark, state=MarkState.KEPT)
            self.storage.write_note(kept.name, kept.to_bytes(), replaces=note)

    def _remove(self, taken: _Taken) -> Thing | None:
        if time.monotonic() - taken.at_s > _AT_ONCE_S:
            return None  # we were stopped, or something was slow: the next run does it
        digest = taken.thing.digest
        if taken.thing.kind is MarkedKind.BLOB:
            self.storage.delete_blob(digest)
            self.storage.remove_note(taken.mark.name)
            return taken.thing
        self.storage.delete_release(digest)
        note = self.storage.read_note(taken.mark.name)
        if note is not None and note.data == taken.data:
            swept = replace(taken.mark, state=MarkState.SWEPT)
            self.storage.write_note(swept.name, swept.to_bytes(), replaces=note)
        return taken.thing


def _is_needed(thing: Thing, needs: Needs, named: AbstractSet[str]) -> bool:
    return needs.find(thing) is not None or (thing.kind is MarkedKind.BLOB and thing.digest in named)


def _lacks_row(thing: Thing, facts: DatabaseFacts) -> bool:
    """Return whether a blob is of an engine that the database takes for swept: a collector died after it forgot it."""
    if thing.kind is MarkedKind.RELEASE or thing.digest in facts.blobs:
        return False
    return any(file.digest == thing.digest for engine in facts.engines for file in engine.files)
