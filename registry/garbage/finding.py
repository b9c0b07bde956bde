"""Find what is garbage: list what is there, then read what is needed, and compare."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from modelreg.registry.clock import utc_now
from modelreg.registry.database import Database
from modelreg.registry.errors import StorageError
from modelreg.registry.garbage.database_facts import read_database_facts
from modelreg.registry.garbage.needs import DatabaseFacts, Needs, Thing, explain_garbage, judge
from modelreg.registry.garbage.report import Collection, CollectionRequest, Garbage
from modelreg.registry.garbage.store_facts import StoreReader, StoreReading
from modelreg.registry.garbage.trust import require_trusted
from modelreg.registry.storage.interface import Storage
from modelreg.registry.storage.marks import MARK_FOLDER, Mark, MarkedKind, MarkState, parse_mark
from modelreg.registry.storage.notes import Note
from modelreg.registry.storage.s3_parallel import run_ahead

_OF_NO_ACCOUNT = (MarkState.KEPT, MarkState.SWEPT)


@dataclass(frozen=True, slots=True)
class Marked:
    """A mark as it lies in the store."""

    mark: Mark
    note: Note


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """
    What there is and what is needed.

    Attributes:
        now: The store's time.
        reading: What the store says.
        database: What the database says.
        needs: What both say together.
        sizes: Bytes of every blob and release that is there.
        marks: The mark of each thing that has one, there or not.
    """

    now: datetime
    reading: StoreReading
    database: DatabaseFacts
    needs: Needs
    sizes: dict[Thing, int]
    marks: dict[Thing, Marked]

    def unneeded(self) -> list[Thing]:
        """Return what is there and not needed; a release that was swept is no more than its manifest."""
        return [
            thing for thing in self.sizes if self.needs.find(thing) is None and self.state(thing) is not MarkState.SWEPT
        ]

    def state(self, thing: Thing) -> MarkState | None:
        """Return how a thing's mark stands, None for one without."""
        return self.marks[thing].mark.state if thing in self.marks else None


def find(
    database: Database, storage: Storage, reader: StoreReader, request: CollectionRequest, *, workers: int
) -> Findings:
    """
    Return what there is and what is needed; nothing is written but, to learn the time, a temporary file.

    Raises:
        CollectionRefusedError: The database is older than the store, or another's.
        IntegrityError: Something that says what is needed cannot be read.
    """
    require_trusted(database, storage, reader.read(), accept=request.accept_database)
    # What is there is listed before what is needed is read: what comes in between is not even looked at.
    sizes = dict(_list_things(storage))
    marks = {Thing(kind=each.mark.kind, digest=each.mark.digest): each for each in _read_marks(storage, workers)}
    reading = reader.read()
    with database.read() as connection:
        facts = read_database_facts(connection)
    return Findings(
        now=_ask_time(storage),
        reading=reading,
        database=facts,
        needs=judge(reading.facts, facts, keep_versions=request.keep_versions),
        sizes=sizes,
        marks=marks,
    )


def _ask_time(storage: Storage) -> datetime:
    try:
        return storage.store_time()
    except StorageError:
        return utc_now()  # it cannot be written, so nothing will be removed either


def _list_things(storage: Storage) -> Iterator[tuple[Thing, int]]:
    for blob in storage.iterate_blobs():
        yield Thing(kind=MarkedKind.BLOB, digest=blob.digest), blob.size_bytes
    for release in storage.iterate_releases():
        yield Thing(kind=MarkedKind.RELEASE, digest=release), storage.measure_release(release)


def _read_marks(storage: Storage, workers: int) -> Iterator[Marked]:
    jobs = (partial(storage.read_note, info.name) for info in storage.list_notes(MARK_FOLDER))
    for note in run_ahead(jobs, workers=workers):
        if note is not None:
            yield Marked(parse_mark(note), note)


def report(found: Findings, request: CollectionRequest, *, dry_run: bool) -> Collection:
    """Return what was found, counted."""
    collection = Collection(dry_run=dry_run, grace=request.grace)
    for thing, size_bytes in found.sizes.items():
        if (need := found.needs.find(thing)) is not None and found.state(thing) is not MarkState.SWEPT:
            collection.count_kept(need, thing.kind, size_bytes)
    collection.garbage = list(_judge_things(found, found.unneeded(), request))
    collection.leases_expired = len(found.reading.leases.expired)
    return collection


def _judge_things(found: Findings, things: Iterable[Thing], request: CollectionRequest) -> Iterator[Garbage]:
    for thing in things:
        is_marked = thing in found.marks and found.state(thing) not in _OF_NO_ACCOUNT
        since = found.marks[thing].mark.at if is_marked else None
        yield Garbage(
            thing=thing,
            reason=explain_garbage(thing, found.database),
            size_bytes=found.sizes[thing],
            marked_at=since,
            is_due=found.now - (since or found.now) >= request.grace,
        )
