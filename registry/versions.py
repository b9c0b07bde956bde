"""Models, their versions and golden sets."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NoReturn

import sqlalchemy as sa

from modelreg.registry.blobs import record_blob
from modelreg.registry.clock import utc_now
from modelreg.registry.contents import list_files
from modelreg.registry.database import insert_row
from modelreg.registry.digests import sha256_hex
from modelreg.registry.errors import IntegrityError, NotFoundError
from modelreg.registry.events import append_event
from modelreg.registry.records import SourceInfo, VersionRecord
from modelreg.registry.references import ModelReference, check_name
from modelreg.registry.rows import decoding
from modelreg.registry.schema import activation, channel, model, release, version, version_file
from modelreg.registry.suggestions import say_close
from modelreg.registry.version_rows import (
    find_active,
    find_by_number,
    find_by_source,
    find_by_source_start,
    read_page,
)
from modelreg.registry.words import BlobKind, Json

_FIND_MODEL = sa.select(model.c.id).where(model.c.name == sa.bindparam("model"))
_INSERT_MODEL = sa.insert(model)
_TAKE_NUMBER = (
    sa.update(model)
    .where(model.c.id == sa.bindparam("model_id"))
    .values(next_version=model.c.next_version + 1)
    .returning(model.c.next_version)
)
_PASS_NUMBER = (
    sa.update(model)
    .where(model.c.id == sa.bindparam("model_id"), model.c.next_version < sa.bindparam("beyond"))
    .values(next_version=sa.bindparam("beyond"))
)
_INSERT_VERSION = sa.insert(version)
_INSERT_FILES = sa.insert(version_file)

_FIND_CHANNEL = (
    sa.select(channel.c.id)
    .join_from(channel, model)
    .where(model.c.name == sa.bindparam("model"), channel.c.name == sa.bindparam("channel"))
)

_MODEL_NAMES = sa.select(model.c.name).order_by(model.c.name)
_CHANNEL_NAMES = (
    sa.select(channel.c.name)
    .join_from(channel, model)
    .where(model.c.name == sa.bindparam("model"))
    .order_by(channel.c.name)
)
_SUMMARIES = sa.select(model.c.id, model.c.name, model.c.next_version).order_by(model.c.name)
# Numbers that came from elsewhere leave gaps, so the counter is no count; the unique index answers this one.
_COUNTS = sa.select(version.c.model_id, sa.func.count().label("versions")).group_by(version.c.model_id)
_NEWEST_GENERATION = (
    sa.select(sa.func.max(activation.c.generation))
    .where(activation.c.channel_id == channel.c.id)
    .correlate(channel)
    .scalar_subquery()
)
# Outer joins keep SQLite from starting at the activations, of which there may be very many.
_ACTIVE_VERSIONS = (
    sa.select(channel.c.model_id, channel.c.name, version.c.number, activation.c.generation)
    .select_from(channel)
    .outerjoin(
        activation,
        (activation.c.channel_id == channel.c.id) & (activation.c.generation == _NEWEST_GENERATION),
    )
    .outerjoin(release, release.c.id == activation.c.release_id)
    .outerjoin(version, version.c.id == release.c.version_id)
    .order_by(channel.c.name)
)

_LARGEST = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSummary:
    """One line of `list`: how many versions a model has, the newest, and (version, generation) by channel."""

    name: str
    versions: int
    newest: int
    channels: dict[str, tuple[int, int]]


def register_version(
    connection: sa.Connection, *, model: str, source: SourceInfo, message: str, tags: dict[str, str], actor: str
) -> tuple[VersionRecord, bool]:
    """
    Return the version of `model` with this source, made if there is none, and whether it was made.

    The model is made with its first version. Numbers come from the model's counter, in this transaction: no gap,
    no repeat. An existing version keeps its message and tags.

    Raises:
        InvalidReferenceError: The model's name is not allowed.
    """
    check_name(model)
    known = find_by_source(connection, model=model, digest=source.digest)
    if known is not None:
        return known, False
    model_id = connection.execute(_FIND_MODEL, {"model": model}).scalar()
    if model_id is None:
        made = {"name": model, "next_version": 1, "created_at": utc_now(), "created_by": actor}
        model_id = insert_row(connection, _INSERT_MODEL, made)
    number = connection.execute(_TAKE_NUMBER, {"model_id": model_id}).scalar_one() - 1
    record = _insert(connection, model_id, model, number, source, message=message, tags=tags, actor=actor)
    details: Json = {"source": source.digest, "message": message, "tags": tags}
    append_event(connection, kind="version.registered", subject=record.reference, details=details, actor=actor)
    return record, True


def readopt_version(
    connection: sa.Connection, *, model: str, number: int, source: SourceInfo, actor: str
) -> VersionRecord:
    """
    Take a version back that this database has lost, under the number that it was released with.

    The model's counter goes beyond it, so that the number is not given a second time.

    Raises:
        IntegrityError: The number, or the source, is taken by another version.
    """
    check_name(model)
    by_number = find_by_number(connection, model=model, number=number)
    taken = by_number or find_by_source(connection, model=model, digest=source.digest)
    if taken is not None:
        raise IntegrityError(
            f"{model}:{number} of source {source.digest[:12]} cannot be taken back: this database has"
            f" {taken.reference} of source {taken.source.digest[:12]}",
            hint="Something else was registered after an older database was restored: a person decides.",
        )
    model_id = connection.execute(_FIND_MODEL, {"model": model}).scalar()
    if model_id is None:
        made = {"name": model, "next_version": 1, "created_at": utc_now(), "created_by": actor}
        model_id = insert_row(connection, _INSERT_MODEL, made)
    connection.execute(_PASS_NUMBER, {"model_id": model_id, "beyond": number + 1})
    message = "read back from the store"
    record = _insert(connection, model_id, model, number, source, message=message, tags={}, actor=actor)
    details: Json = {"source": source.digest}
    append_event(connection, kind="version.recovered", subject=record.reference, details=details, actor=actor)
    return record


def adopt_version(connection: sa.Connection, offered: VersionRecord, *, actor: str) -> VersionRecord:
    """
    Add a version of another registry, whose source this one does not have; the caller adds the event.

    It keeps its number if that is free, else it gets the next one, and it keeps who made it and when.

    Args:
        connection: In a writing transaction.
        offered: As the other registry has it.
        actor: Who takes it in, and so makes the model if there is none.
    """
    name = check_name(offered.model)
    model_id = connection.execute(_FIND_MODEL, {"model": name}).scalar()
    if model_id is None:
        made = {"name": name, "next_version": 1, "created_at": utc_now(), "created_by": actor}
        model_id = insert_row(connection, _INSERT_MODEL, made)
    if find_by_number(connection, model=name, number=offered.number) is None:
        number = offered.number
        connection.execute(_PASS_NUMBER, {"model_id": model_id, "beyond": number + 1})
    else:
        number = connection.execute(_TAKE_NUMBER, {"model_id": model_id}).scalar_one() - 1
    return _insert(
        connection,
        model_id,
        name,
        number,
        offered.source,
        message=offered.message,
        tags=offered.tags,
        actor=offered.created_by,
        created_at=offered.created_at,
    )


def _insert(
    connection: sa.Connection,
    model_id: int,
    model: str,
    number: int,
    source: SourceInfo,
    *,
    message: str,
    tags: dict[str, str],
    actor: str,
    created_at: datetime | None = None,
) -> VersionRecord:
    row = _source_row(source) | {
        "message": message,
        "tags": tags,
        "created_at": created_at or utc_now(),
        "created_by": actor,
    }
    version_id = insert_row(connection, _INSERT_VERSION, {**row, "model_id": model_id, "number": number})
    _record_files(connection, version_id, source)
    return VersionRecord(
        id=version_id,
        model=model,
        number=number,
        source=source,
        message=message,
        created_at=row["created_at"],
        created_by=actor,
        tags=dict(tags),
    )


def get_version(connection: sa.Connection, reference: ModelReference) -> VersionRecord:
    """
    Return the version that a reference means; a bare model means its newest version.

    Raises:
        NotFoundError: There is no such model, version, channel or source, or the channel serves nothing yet.
    """
    name = reference.model
    if reference.version is not None:
        found = find_by_number(connection, model=name, number=reference.version)
    elif reference.digest is not None:
        found = _find_by_digest(connection, name, reference.digest)
    elif reference.channel is not None:
        channel_id = connection.execute(_FIND_CHANNEL, {"model": name, "channel": reference.channel}).scalar()
        found = None if channel_id is None else find_active(connection, channel_id=channel_id)
    else:
        newest = list_versions(connection, model=name, limit=1)
        found = newest[0] if newest else None
    if found is None:
        _not_found(connection, reference)
    return found


def _find_by_digest(connection: sa.Connection, model: str, digest: str) -> VersionRecord | None:
    found = find_by_source_start(connection, model=model, start=digest)
    if len(found) > 1:
        raise NotFoundError(
            f"{model}@sha256:{digest} means several versions: {found[0].reference}, {found[1].reference}",
            hint="Give more digits, or the version's number.",
        )
    return found[0] if found else None


@decoding("model")
def list_models(connection: sa.Connection) -> list[ModelSummary]:
    """Return all models by name; of versions it costs a count in an index, of generations nothing."""
    channels: dict[int, dict[str, tuple[int, int]]] = {}
    for row in connection.execute(_ACTIVE_VERSIONS):
        if row.generation is not None:
            channels.setdefault(row.model_id, {})[row.name] = (row.number, row.generation)
    counts = {row.model_id: row.versions for row in connection.execute(_COUNTS)}
    return [
        ModelSummary(
            name=row.name,
            versions=counts.get(row.id, 0),
            newest=row.next_version - 1,
            channels=channels.get(row.id, {}),
        )
        for row in connection.execute(_SUMMARIES)
    ]


def list_versions(
    connection: sa.Connection, *, model: str, limit: int = 100, before: int | None = None
) -> list[VersionRecord]:
    """
    Return at most `limit` versions, newest first, of those numbered below `before`.

    Raises:
        NotFoundError: There is no such model.
    """
    model_id = connection.execute(_FIND_MODEL, {"model": model}).scalar()
    if model_id is None:
        _not_found(connection, ModelReference(model=model))
    up_to = _LARGEST if before is None else before - 1
    return read_page(connection, model_id=model_id, up_to=up_to, limit=limit)


def _record_files(connection: sa.Connection, version_id: int, source: SourceInfo) -> None:
    rows = []
    listing = list_files(source.files)
    if sha256_hex(listing) == source.digest:  # of several files: their list is a blob as well
        record_blob(connection, digest=source.digest, size_bytes=len(listing), kind=BlobKind.MANIFEST)
    for position, file in enumerate(source.files):
        kind = BlobKind.EXTERNAL_DATA if position else BlobKind.SOURCE
        record_blob(connection, digest=file.digest, size_bytes=file.size_bytes, kind=kind)
        row = {"version_id": version_id, "position": position, "path": file.path, "blob_digest": file.digest}
        rows.append(row)
    connection.execute(_INSERT_FILES, rows)


def _source_row(source: SourceInfo) -> Json:
    return {
        "source_digest": source.digest,
        "signature": source.signature.to_json(),
        "opsets": source.opsets,
        "ir_version": source.ir_version,
        "producer": source.producer,
        "node_counts": source.node_counts,
        "parameter_bytes": source.parameter_bytes,
        "unbuildable": list(source.unbuildable),
        "warnings": list(source.warnings),
    }


def _not_found(connection: sa.Connection, reference: ModelReference) -> NoReturn:
    name = reference.model
    if connection.execute(_FIND_MODEL, {"model": name}).scalar() is None:
        names = connection.execute(_MODEL_NAMES).scalars()
        raise NotFoundError(f"there is no model {name!r}", hint=say_close(name, names) or "Run `modelreg list`.")
    if reference.channel is not None:
        names = connection.execute(_CHANNEL_NAMES, {"model": name}).scalars()
        hint = say_close(reference.channel, names)
        raise NotFoundError(
            f"{reference} serves nothing",
            hint=hint or f"Run `modelreg promote {name}:VERSION --to {reference.channel}`.",
        )
    raise NotFoundError(f"there is no {reference}", hint=f"Run `modelreg list {name}` to see its versions.")
