"""What the database says is needed: versions and their records, engines, releases, operations that are open."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from modelreg.registry.contents import StoredFile
from modelreg.registry.garbage.needs import DatabaseFacts, EngineFact
from modelreg.registry.imported_plans import read_import
from modelreg.registry.rows import decoding
from modelreg.registry.schema import (
    OPEN_OPERATION,
    benchmark,
    blob,
    engine,
    event,
    golden_set,
    model,
    operation,
    release,
    release_engine,
    target,
    toolchain,
    validation,
    variant,
    version,
    version_file,
)
from modelreg.registry.words import BlobKind, EngineStatus

_ENGINES = (
    sa.select(
        engine.c.id,
        model.c.name.label("model"),
        version.c.number,
        engine.c.files,
        engine.c.recipe,
        engine.c.recipe_digest,
        engine.c.precision,
        target.c.name.label("target"),
        toolchain.c.backend,
        toolchain.c.version,
    )
    .select_from(engine)
    .join(version, version.c.id == engine.c.version_id)
    .join(model, model.c.id == version.c.model_id)
    .join(target, target.c.id == engine.c.target_id)
    .join(toolchain, toolchain.c.id == engine.c.toolchain_id)
    .where(engine.c.status == EngineStatus.BUILT.value)
    .order_by(engine.c.id)
)
_RELEASES = (
    sa.select(release.c.manifest_digest, model.c.name, version.c.number)
    .join_from(release, version, version.c.id == release.c.version_id)
    .join(model, model.c.id == version.c.model_id)
)
_OPERATIONS = (
    sa.select(release.c.manifest_digest, release_engine.c.engine_id)
    .select_from(operation)
    .join(release, release.c.id == operation.c.release_id)
    .outerjoin(release_engine, release_engine.c.release_id == release.c.id)
    .where(OPEN_OPERATION)
)
_RECORDS = (
    sa.select(version.c.source_digest),  # the list of a source of several files, which older registries did not note
    sa.select(version_file.c.blob_digest),
    sa.select(golden_set.c.blob_digest),
    sa.select(engine.c.log_digest).where(engine.c.log_digest != ""),
    sa.select(validation.c.report_digest),
    sa.select(benchmark.c.samples_digest),
)
_NEWEST = sa.select(model.c.name, model.c.next_version)
_HEAD = sa.select(sa.func.max(event.c.sequence))
_FORGET = sa.delete(blob).where(blob.c.digest == sa.bindparam("of_digest"))


@decoding("engine")
def read_database_facts(connection: sa.Connection) -> DatabaseFacts:
    """Return what is needed, as of this transaction."""
    return DatabaseFacts(
        blobs={row.digest: BlobKind(row.kind) for row in connection.execute(sa.select(blob.c.digest, blob.c.kind))},
        records=_read_records(connection),
        engines=tuple(_engine(row) for row in connection.execute(_ENGINES)),
        releases=_read_releases(connection),
        operations=_read_operations(connection),
        newest={row.name: row.next_version - 1 for row in connection.execute(_NEWEST)},
        head=read_head(connection),
    )


def refresh_database_facts(connection: sa.Connection, facts: DatabaseFacts) -> DatabaseFacts:
    """
    Return what is needed as of this transaction, where `facts` were read a moment ago.

    Whatever makes something needed is an event, but for intents: if there is no new event they alone are read again,
    so that the transaction, in which nobody else can write, is short.
    """
    if read_head(connection) != facts.head:
        return read_database_facts(connection)
    return replace(facts, operations=_read_operations(connection), releases=_read_releases(connection))


def read_head(connection: sa.Connection) -> int:
    """Return the number of the last event."""
    return connection.execute(_HEAD).scalar() or 0


def _read_releases(connection: sa.Connection) -> dict[str, tuple[str, int]]:
    return {row.manifest_digest: (row.name, row.number) for row in connection.execute(_RELEASES)}


def _read_records(connection: sa.Connection) -> set[str]:
    found = {digest for statement in _RECORDS for digest in connection.execute(statement).scalars()}
    for files in connection.execute(sa.select(variant.c.files)).scalars():
        found.update(file.digest for file in _stored(files))
    for realised in connection.execute(sa.select(engine.c.realised)).scalars():
        if cache := realised.get("timing_cache"):
            found.add(cache)
    return found


def _read_operations(connection: sa.Connection) -> dict[str, tuple[int, ...]]:
    found: dict[str, list[int]] = defaultdict(list)
    for digest, engine_id in connection.execute(_OPERATIONS):
        found[digest] += [] if engine_id is None else [engine_id]
    return {digest: tuple(ids) for digest, ids in found.items()}


def _engine(row: Any) -> EngineFact:
    return EngineFact(
        id=row.id,
        model=row.model,
        version=row.number,
        files=_stored(row.files),
        is_imported=read_import(row.recipe) is not None,
        cell=(row.target, row.precision, row.backend, row.version, row.recipe_digest),
    )


def _stored(files: Sequence[Any]) -> tuple[StoredFile, ...]:
    return tuple(StoredFile.from_json(file) for file in files)


def forget_blobs(connection: sa.Connection, digests: Iterable[str]) -> None:
    """Note that blobs are no longer in the store: an engine whose plan is not noted was swept."""
    rows = [{"of_digest": digest} for digest in digests]
    if rows:
        connection.execute(_FORGET, rows)
