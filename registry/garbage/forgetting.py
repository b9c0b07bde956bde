"""Plans that the database names and the store has no more: swept after the copy was made that the database now is.

A database that was restored from a backup knows plans that were removed since. Those that nothing needs it forgets, as
it would have when they were swept; `build` makes them again. What something needs, and is missing, is damage: `doctor`
tells of it, and nothing here touches it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from modelreg.registry.database import Database
from modelreg.registry.events import append_event
from modelreg.registry.garbage.database_facts import forget_blobs, refresh_database_facts
from modelreg.registry.garbage.finding import Findings
from modelreg.registry.garbage.needs import DatabaseFacts, Thing, judge
from modelreg.registry.storage.interface import Storage
from modelreg.registry.storage.marks import MarkedKind, MarkState
from modelreg.registry.storage.s3_parallel import run_ahead
from modelreg.registry.words import BlobKind

_BATCH = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class LostPlans:
    """The lost plans of one registry, as `found` says; `keep_versions` as for `judge`."""

    found: Findings
    keep_versions: int

    def find(self, facts: DatabaseFacts | None = None) -> list[str]:
        """Return the plans that a database names, by default as it was found, and which are not there nor needed."""
        facts = self.found.database if facts is None else facts
        store = self.found.reading.facts
        # A release that was swept cannot become active again: it needs nothing.
        whole = {name: need for name, need in store.releases.items() if not self._is_swept(name)}
        needs = judge(replace(store, releases=whole), facts, keep_versions=self.keep_versions)
        return [
            digest
            for digest, kind in facts.blobs.items()
            if kind is BlobKind.PLAN
            and digest not in needs.blobs
            and Thing(kind=MarkedKind.BLOB, digest=digest) not in self.found.sizes
        ]

    def forget(self, database: Database, storage: Storage, *, actor: str, workers: int) -> int:
        """Note in the database that they are gone, and return how many; each batch is an event."""
        lost = self.find()
        batches = (set(lost[start : start + _BATCH]) for start in range(0, len(lost), _BATCH))
        return sum(self._forget(database, storage, batch, actor, workers) for batch in batches)

    def _forget(self, database: Database, storage: Storage, batch: set[str], actor: str, workers: int) -> int:
        with database.write() as connection:
            facts = refresh_database_facts(connection, self.found.database)
            lost = [digest for digest in self.find(facts) if digest in batch]
            # Looked for once more, in here: who has built one meanwhile has stored it, and names it after this.
            gone = list(_absent(storage, lost, workers))
            if gone:
                forget_blobs(connection, gone)
                append_event(connection, kind="gc.forgotten", subject="store", details={"blobs": gone}, actor=actor)
        return len(gone)

    def _is_swept(self, release: str) -> bool:
        return self.found.state(Thing(kind=MarkedKind.RELEASE, digest=release)) is MarkState.SWEPT


def _absent(storage: Storage, digests: list[str], workers: int) -> Iterator[str]:
    looks = (partial(storage.has_blob, digest) for digest in digests)
    for digest, is_there in zip(digests, run_ahead(looks, workers=workers), strict=True):
        if not is_there:
            yield digest
