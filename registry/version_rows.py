"""Rows of versions: how they are found, and made into records, a hundred thousand if need be."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from modelreg.registry.contents import Signature, StoredFile
from modelreg.registry.records import SourceInfo, VersionRecord
from modelreg.registry.rows import decoding
from modelreg.registry.schema import (
    activation,
    blob,
    from_microseconds,
    model,
    release,
    version,
    version_file,
)
from modelreg.registry.statements import Statement
from modelreg.registry.words import Json

# A version with its first file. Texts and times come as they are stored: versions of a model mostly share the texts,
# which are parsed once and then looked up.
_SELECT = (
    sa.select(
        version.c.id,
        model.c.name,
        version.c.number,
        version.c.source_digest,
        sa.cast(version.c.signature, sa.Text),
        sa.cast(version.c.opsets, sa.Text),
        version.c.ir_version,
        version.c.producer,
        sa.cast(version.c.node_counts, sa.Text),
        version.c.parameter_bytes,
        sa.cast(version.c.unbuildable, sa.Text),
        sa.cast(version.c.warnings, sa.Text),
        version.c.message,
        sa.cast(version.c.tags, sa.Text),
        sa.type_coerce(version.c.created_at, sa.BigInteger).label("created_at"),
        version.c.created_by,
        version_file.c.path,
        version_file.c.blob_digest,
        blob.c.size_bytes,
    )
    .join_from(version, model)
    .outerjoin(version_file, (version_file.c.version_id == version.c.id) & (version_file.c.position == 0))
    .outerjoin(blob, blob.c.digest == version_file.c.blob_digest)
)
_BY_SOURCE = Statement(
    _SELECT.where(model.c.name == sa.bindparam("model_name"), version.c.source_digest == sa.bindparam("digest"))
)
_BY_SOURCE_START = Statement(
    _SELECT.where(
        model.c.name == sa.bindparam("model_name"), version.c.source_digest.startswith(sa.bindparam("start"))
    ).limit(2)
)
_BY_NUMBER = Statement(
    _SELECT.where(model.c.name == sa.bindparam("model_name"), version.c.number == sa.bindparam("wanted"))
)
_NEWEST_FIRST = Statement(
    _SELECT.where(version.c.model_id == sa.bindparam("of_model"), version.c.number <= sa.bindparam("up_to"))
    .order_by(version.c.number.desc())
    .limit(sa.bindparam("rows", type_=sa.Integer))
)
_ACTIVE = Statement(
    _SELECT.join(release, release.c.version_id == version.c.id)
    .join(activation, activation.c.release_id == release.c.id)
    .where(activation.c.channel_id == sa.bindparam("of_channel"))
    .order_by(activation.c.generation.desc())
    .limit(1)
)
_SELECT_MORE_FILES = (
    sa.select(version_file.c.version_id, version_file.c.path, version_file.c.blob_digest, blob.c.size_bytes)
    .join_from(version_file, blob)
    .where(version_file.c.position > 0)
    .order_by(version_file.c.version_id, version_file.c.position)
)
_MORE_FILES = Statement(_SELECT_MORE_FILES.where(version_file.c.version_id == sa.bindparam("of_version")))
_MORE_FILES_OF_PAGE = Statement(
    _SELECT_MORE_FILES.join(version, version.c.id == version_file.c.version_id).where(
        version.c.model_id == sa.bindparam("of_model"),
        version.c.number.between(sa.bindparam("oldest"), sa.bindparam("newest")),
    )
)
_NUMBER = 2  # its place in a row

_Files = Mapping[int, Sequence[StoredFile]]


def find_by_source(connection: sa.Connection, *, model: str, digest: str) -> VersionRecord | None:
    """Return the version of a model with this source, or None."""
    return _one(connection, _BY_SOURCE, model_name=model, digest=digest)


@decoding("version")
def find_by_source_start(connection: sa.Connection, *, model: str, start: str) -> list[VersionRecord]:
    """Return at most two versions of a model whose source's digest starts so: with two, nobody knows which is meant."""
    return [_complete(connection, row) for row in _BY_SOURCE_START.tuples(connection, model_name=model, start=start)]


def find_by_number(connection: sa.Connection, *, model: str, number: int) -> VersionRecord | None:
    """Return one version of a model, or None."""
    return _one(connection, _BY_NUMBER, model_name=model, wanted=number)


def find_active(connection: sa.Connection, *, channel_id: int) -> VersionRecord | None:
    """Return the version that a channel serves, or None."""
    return _one(connection, _ACTIVE, of_channel=channel_id)


@decoding("version")
def read_page(connection: sa.Connection, *, model_id: int, up_to: int, limit: int) -> list[VersionRecord]:
    """Return at most `limit` versions of a model, newest first, of those numbered up to `up_to`."""
    rows = _NEWEST_FIRST.tuples(connection, of_model=model_id, up_to=up_to, rows=limit)
    if not rows:
        return []
    oldest, newest = rows[-1][_NUMBER], rows[0][_NUMBER]
    more = _by_version(_MORE_FILES_OF_PAGE.tuples(connection, of_model=model_id, oldest=oldest, newest=newest))
    with _collector_paused():
        return [_version(row, more) for row in rows]


@contextmanager
def _collector_paused() -> Iterator[None]:
    """
    Let the garbage collector wait while a page of records is made: they have no cycles, and it would walk them again
    and again, a third of the time of a long listing.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@decoding("version")
def _one(connection: sa.Connection, statement: Statement, **parameters: Any) -> VersionRecord | None:
    rows = statement.tuples(connection, **parameters)
    return _complete(connection, rows[0]) if rows else None


def _complete(connection: sa.Connection, row: Sequence[Any]) -> VersionRecord:
    return _version(row, _by_version(_MORE_FILES.tuples(connection, of_version=row[0])))


def _by_version(rows: Sequence[Sequence[Any]]) -> _Files:
    files: dict[int, list[StoredFile]] = {}
    for version_id, path, digest, size_bytes in rows:
        file = StoredFile(path=path, digest=digest, size_bytes=size_bytes)
        files.setdefault(version_id, []).append(file)
    return files


def _version(row: Sequence[Any], more_files: _Files) -> VersionRecord:
    # Unpacked in the order of _SELECT: by name, a hundred rows take half as long again.
    key, name, number, digest, signature, opsets, ir, producer, nodes, parameters, unbuildable, warnings, *rest = row
    message, tags, created_at, created_by, path, file_digest, size_bytes = rest
    files: tuple[StoredFile, ...] = ()
    if path is not None:
        first = StoredFile(path, file_digest, size_bytes)
        files = (first, *more_files.get(key, ()))
    source = SourceInfo(
        digest=digest,
        files=files,
        signature=_signature(signature),
        opsets=dict(_object(opsets)),
        ir_version=ir,
        producer=producer,
        node_counts=dict(_object(nodes)),
        parameter_bytes=parameters,
        unbuildable=_words(unbuildable),
        warnings=_words(warnings),
    )
    return VersionRecord(
        id=key,
        model=name,
        number=number,
        source=source,
        message=message,
        created_at=from_microseconds(created_at),
        created_by=created_by,
        tags=dict(_object(tags)),
    )


@lru_cache(maxsize=64)
def _signature(text: str) -> Signature:
    return Signature.from_json(json.loads(text))


@lru_cache(maxsize=256)
def _object(text: str) -> Json:
    found: Json = json.loads(text)
    return found


@lru_cache(maxsize=128)
def _words(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text))
