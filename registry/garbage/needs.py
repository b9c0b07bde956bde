"""What is needed, by whom, and so what is garbage. Pure: facts in, a judgement out.

Sources, golden sets, variants, logs, reports, runs of benchmarks and caches are records of their versions and never
garbage. What can be swept are plans, which `build` makes again, the folders of releases, and blobs that nothing in the
registry names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from modelreg.registry.contents import StoredFile
from modelreg.registry.storage.marks import MarkedKind
from modelreg.registry.words import BlobKind, Word


class Need(Word):
    """Why something is kept, the most telling first."""

    CHANNEL = "channel"
    LEASE = "lease"
    OPERATION = "operation"
    PIN = "pin"
    NEWEST = "newest"
    IMPORTED = "imported"
    RECORD = "record"


class Reason(Word):
    """Why something is garbage."""

    RELEASE = "release"
    PLAN = "plan"
    ORPHAN = "orphan"


EXPLANATIONS: dict[Need | Reason, str] = {
    Need.CHANNEL: "what channels serve, and their last releases",
    Need.LEASE: "held by a serving host",
    Need.OPERATION: "of an operation that is not settled",
    Need.PIN: "of a pinned version",
    Need.NEWEST: "engines of the newest versions",
    Need.IMPORTED: "plans that were built elsewhere",
    Need.RECORD: "sources, golden sets, variants, logs, reports and benchmarks",
    Reason.RELEASE: "releases that no channel goes back to",
    Reason.PLAN: "plans that nothing needs",
    Reason.ORPHAN: "blobs that nothing names",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    """A blob or a release, by its digest."""

    kind: MarkedKind
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFact:
    """What counts of an engine: whose it is, its files, and whether its version's `current_engines` has it."""

    id: int
    model: str
    version: int
    files: tuple[StoredFile, ...]
    is_imported: bool
    cell: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """
    What the store says is needed.

    Attributes:
        releases: Each release that a channel or a live lease needs, with why.
        manifests: The files of each of them.
        pinned: (model, version) of every pin.
    """

    releases: Mapping[str, Need]
    manifests: Mapping[str, tuple[StoredFile, ...]]
    pinned: AbstractSet[tuple[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseFacts:
    """
    What the database says is needed.

    Attributes:
        blobs: Kind by digest of every blob that it names.
        records: Digests that versions, golden sets, variants, engines and validations name beside plans.
        engines: Every engine that was built, oldest first.
        releases: (model, version) by digest of every release.
        operations: Engine ids by release, of those that an unsettled operation is about.
        newest: The highest version number of each model.
        head: The number of the last event.
    """

    blobs: Mapping[str, BlobKind]
    records: AbstractSet[str]
    engines: tuple[EngineFact, ...]
    releases: Mapping[str, tuple[str, int]]
    operations: Mapping[str, tuple[int, ...]]
    newest: Mapping[str, int]
    head: int = 0


@dataclass(slots=True)
class Needs:
    """Why each blob and each release is kept; what is not here is garbage."""

    blobs: dict[str, Need] = field(default_factory=dict)
    releases: dict[str, Need] = field(default_factory=dict)

    def find(self, thing: Thing) -> Need | None:
        """Return why something is kept, or None."""
        return (self.blobs if thing.kind is MarkedKind.BLOB else self.releases).get(thing.digest)

    def keep(self, files: Iterable[StoredFile], need: Need) -> None:
        """Keep files, for a reason that counts only where there was none before."""
        for file in files:
            self.blobs.setdefault(file.digest, need)


def judge(store: StoreFacts, database: DatabaseFacts, *, keep_versions: int) -> Needs:
    """
    Return what is needed, each with the most telling reason.

    Args:
        store: What the store says.
        database: What the database says.
        keep_versions: Of so many newest versions of each model, the engines stay though nothing released them.
    """
    needs = Needs()
    _keep_releases(needs, store, database)
    _keep_engines(needs, store, database, keep_versions=keep_versions)
    for digest, kind in database.blobs.items():
        if kind is not BlobKind.PLAN:
            needs.blobs.setdefault(digest, Need.RECORD)
    for digest in database.records:
        needs.blobs.setdefault(digest, Need.RECORD)
    _complete(needs, database.engines)
    return needs


def _keep_releases(needs: Needs, store: StoreFacts, database: DatabaseFacts) -> None:
    """Keep what channels, leases, unsettled operations and pins need, in this order."""
    for wanted in (Need.CHANNEL, Need.LEASE):
        for release in (release for release, need in store.releases.items() if need is wanted):
            needs.releases.setdefault(release, wanted)
            needs.keep(store.manifests[release], wanted)
    by_id = {engine.id: engine for engine in database.engines}
    for release, engine_ids in database.operations.items():
        needs.releases.setdefault(release, Need.OPERATION)
        for engine in (by_id[engine_id] for engine_id in engine_ids if engine_id in by_id):
            needs.keep(engine.files, Need.OPERATION)
    for release, version in database.releases.items():
        if version in store.pinned:
            needs.releases.setdefault(release, Need.PIN)


def _keep_engines(needs: Needs, store: StoreFacts, database: DatabaseFacts, *, keep_versions: int) -> None:
    """Keep engines of pinned versions, those that count of the newest versions, and those that nobody here can make."""
    for engine in database.engines:
        if (engine.model, engine.version) in store.pinned:
            needs.keep(engine.files, Need.PIN)
    current = _current(database.engines)
    for engine in database.engines:
        is_new = engine.version > database.newest.get(engine.model, 0) - keep_versions
        if is_new and engine.id in current:
            needs.keep(engine.files, Need.NEWEST)
        elif engine.is_imported:
            needs.keep(engine.files, Need.IMPORTED)


def _current(engines: Iterable[EngineFact]) -> set[int]:
    """Return the newest engine of each recipe in each cell, as `engines.current_engines` does."""
    newest = {(engine.model, engine.version, engine.cell): engine.id for engine in engines}
    return set(newest.values())


def _complete(needs: Needs, engines: Iterable[EngineFact]) -> None:
    """Keep an engine whole: where its plan stays, since another engine has the same bytes, its other files stay too."""
    by_plan: dict[str, list[EngineFact]] = defaultdict(list)
    for engine in engines:
        if engine.files:
            by_plan[engine.files[0].digest].append(engine)
    for plan, sharing in by_plan.items():
        if (need := needs.blobs.get(plan)) is not None:
            for engine in sharing:
                needs.keep(engine.files, need)


def explain_garbage(thing: Thing, database: DatabaseFacts) -> Reason:
    """Return why something that nothing needs is garbage."""
    if thing.kind is MarkedKind.RELEASE:
        return Reason.RELEASE
    return Reason.PLAN if thing.digest in database.blobs else Reason.ORPHAN
