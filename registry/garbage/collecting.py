"""Collect garbage in two phases: mark what nothing needs, and sweep what has stayed so for the grace period.

What is needed is found out anew just before each batch is removed, the database's part in the very transaction that
forgets the blobs: a promotion has written its intent before that, and keeps its engines, or comes after it, and finds
them swept. Writers that store something again take its mark back (`storage.marks`).

A collector may die anywhere. What it was at is marked *sweeping* then, and the next one finishes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from modelreg.registry.database import Database
from modelreg.registry.errors import IntegrityError
from modelreg.registry.garbage.finding import Findings, find, report
from modelreg.registry.garbage.forgetting import LostPlans
from modelreg.registry.garbage.needs import EXPLANATIONS, Thing
from modelreg.registry.garbage.report import Collection, CollectionRequest, Garbage, OnProgress, not_told
from modelreg.registry.garbage.store_facts import StoreReader
from modelreg.registry.garbage.sweeping import Sweeper
from modelreg.registry.garbage.trust import write_witness
from modelreg.registry.leases import parse_lease
from modelreg.registry.storage.interface import Storage
from modelreg.registry.storage.marks import Mark, MarkedKind, MarkState
from modelreg.registry.storage.notes import MayTake
from modelreg.registry.storage.s3_parallel import run_ahead

WORKERS = 8
"""So many requests are under way at once, where there are requests."""
_Job = Callable[[], bool]


class Collector:
    """Collects the garbage of one registry's store."""

    def __init__(
        self,
        *,
        database: Database,
        storage: Storage,
        actor: str,
        request: CollectionRequest,
        lock_timeout_s: float = 30.0,
        progress: OnProgress = not_told,
        workers: int = WORKERS,
    ) -> None:
        self._database = database
        self._storage = storage
        self._actor = actor
        self._request = request
        self._lock_timeout_s = lock_timeout_s
        self._progress = progress
        self._workers = workers
        self._reader = StoreReader(storage, keep=request.keep)

    def preview(self) -> Collection:
        """Return what is needed and what is garbage, and do nothing. Raises as `collect`."""
        found = find(self._database, self._storage, self._reader, self._request, workers=self._workers)
        collection = report(found, self._request, dry_run=True)
        collection.forgotten = len(self._lost_plans(found).find())
        collection.leftovers = self._storage.count_leftovers()
        return collection

    def collect(self) -> Collection:
        """
        Mark what is garbage, sweep what was for the grace period, remove leftovers and leases that are over.

        Raises:
            CollectionRefusedError: The database is older than the store, or another's; nothing was done.
            IntegrityError: Something that says what is needed cannot be read; nothing was done.
            BusyError: Another collector is at work, or the database is busy.
            StorageError: The store cannot be written, or is away; the next run goes on.
        """
        with self._storage.collecting(timeout_s=self._lock_timeout_s) as may_take:
            found = find(self._database, self._storage, self._reader, self._request, workers=self._workers)
            collection = report(found, self._request, dry_run=False)
            write_witness(self._database, self._storage)
            self._unmark(found, collection)
            self._mark(found, collection)
            self._sweep(found, collection, may_take)
            collection.forgotten = self._lost_plans(found).forget(
                self._database, self._storage, actor=self._actor, workers=self._workers
            )
            self._tidy(found, collection)
        return collection

    # -- marking -------------------------------------------------------------------------------------------
    def _unmark(self, found: Findings, collection: Collection) -> None:
        """Take marks from what is needed again, and from what is gone; what is being swept is the sweeper's."""
        for thing, marked in found.marks.items():
            if thing in found.sizes and found.needs.find(thing) is None:
                continue
            if marked.mark.state is MarkState.MARKED:
                # Not removed at once: another host's collector may be moving it on, and then must lose.
                kept = replace(marked.mark, state=MarkState.KEPT)
                collection.revived += self._storage.write_note(kept.name, kept.to_bytes(), replaces=marked.note)
            elif marked.mark.state is MarkState.KEPT:
                self._storage.remove_note(marked.note.name)

    def _mark(self, found: Findings, collection: Collection) -> None:
        unmarked = [each for each in collection.garbage if each.marked_at is None]
        jobs: Iterator[_Job] = (partial(self._mark_one, found, each) for each in unmarked)
        for done, (each, is_marked) in enumerate(zip(unmarked, run_ahead(jobs, workers=self._workers), strict=True), 1):
            if is_marked:
                collection.marked.add(each.size_bytes)
            self._progress("marking", done, len(unmarked))

    def _mark_one(self, found: Findings, garbage: Garbage) -> bool:
        mark = Mark(
            kind=garbage.thing.kind,
            digest=garbage.thing.digest,
            state=MarkState.MARKED,
            at=found.now,
            reason=EXPLANATIONS[garbage.reason],
            size_bytes=garbage.size_bytes,
            actor=self._actor,
        )
        before = found.marks.get(garbage.thing)
        return self._storage.write_note(mark.name, mark.to_bytes(), replaces=None if before is None else before.note)

    # -- sweeping ------------------------------------------------------------------------------------------
    def _sweep(self, found: Findings, collection: Collection, may_take: MayTake) -> None:
        """Sweep what is due, releases first: then a blob never goes before a release that names it."""
        sweeper = Sweeper(
            database=self._database,
            storage=self._storage,
            reader=self._reader,
            request=self._request,
            actor=self._actor,
            may_take=may_take,
            workers=self._workers,
        )
        due = {each.thing: each.size_bytes for each in collection.garbage if each.is_due}
        # What somebody died at is finished whatever its age, or taken back if it is needed.
        due |= {thing: found.sizes.get(thing, 0) for thing in found.marks if found.state(thing) is MarkState.SWEEPING}
        releases = [thing for thing in due if thing.kind is MarkedKind.RELEASE]
        blobs = [thing for thing in due if thing.kind is MarkedKind.BLOB]
        swept: set[Thing] = set()
        for thing in sweeper.sweep(releases):
            swept.add(thing)
            self._count_swept(collection, due[thing], total=len(due))
        whole = [thing for thing in found.unneeded() if thing.kind is MarkedKind.RELEASE and thing not in swept]
        named = {file.digest for release in whole for file in self._reader.files_of(release.digest)}
        for thing in sweeper.sweep(blobs, named=named):
            swept.add(thing)
            self._count_swept(collection, due[thing], total=len(due))
        collection.passed_over = len(due) - len(swept)

    def _count_swept(self, collection: Collection, size_bytes: int, *, total: int) -> None:
        collection.swept.add(size_bytes)
        self._progress("sweeping", collection.swept.things, total)

    def _lost_plans(self, found: Findings) -> LostPlans:
        # Whoever says that a restored database counts takes its newest versions for no proof that plans are there.
        keep_versions = 0 if self._request.accept_database else self._request.keep_versions
        return LostPlans(found=found, keep_versions=keep_versions)

    def _tidy(self, found: Findings, collection: Collection) -> None:
        collection.leftovers = self._storage.sweep_leftovers()
        for lease in found.reading.leases.expired:
            note = self._storage.read_note(lease.name)
            if note is None:
                continue
            try:
                is_over = not parse_lease(note).is_live(found.now)
            except IntegrityError:
                continue
            if is_over:  # and was not renewed since
                self._storage.remove_note(note.name)
