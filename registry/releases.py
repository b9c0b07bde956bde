"""Channels, releases, and what was active when.

The store's pointer says what is served; these rows say what became of each intent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from modelreg.registry.clock import utc_now
from modelreg.registry.database import insert_row
from modelreg.registry.errors import IntegrityError, NotFoundError
from modelreg.registry.events import append_event
from modelreg.registry.pointers import Pointer
from modelreg.registry.records import ActivationRecord, VersionRecord
from modelreg.registry.references import check_name
from modelreg.registry.rows import decoding
from modelreg.registry.schema import (
    activation,
    channel,
    model,
    release,
    release_engine,
    version,
)
from modelreg.registry.statements import Statement
from modelreg.registry.words import ActivationKind, Json

_FIND_MODEL = sa.select(model.c.id).where(model.c.name == sa.bindparam("model"))
_FIND_CHANNEL = (
    sa.select(channel.c.id)
    .join_from(channel, model)
    .where(model.c.name == sa.bindparam("model"), channel.c.name == sa.bindparam("channel"))
)
_CHANNELS = (
    sa.select(model.c.name.label("model"), channel.c.name.label("channel"))
    .join_from(channel, model)
    .order_by(model.c.name, channel.c.name)
)
_INSERT_CHANNEL = sa.insert(channel)
_FIND_RELEASE = Statement(sa.select(release.c.id).where(release.c.manifest_digest == sa.bindparam("digest")))
_INSERT_RELEASE = sa.insert(release)
_INSERT_RELEASE_ENGINES = sa.insert(release_engine)

_ACTIVATIONS = (
    sa.select(activation, release.c.manifest_digest, version.c.number)
    .select_from(activation)
    .join(release, release.c.id == activation.c.release_id)
    .join(version, version.c.id == release.c.version_id)
)
_NEWEST_FIRST = (
    _ACTIVATIONS.where(
        activation.c.channel_id == sa.bindparam("of_channel"), activation.c.generation <= sa.bindparam("up_to")
    )
    .order_by(activation.c.generation.desc())
    .limit(sa.bindparam("rows", type_=sa.Integer))
)
_BY_TXN = _ACTIVATIONS.where(activation.c.txn == sa.bindparam("of_txn"))
_INSERT_ACTIVATION = Statement(sa.insert(activation))
_ACTIVATED_RELEASES = sa.select(release.c.manifest_digest).where(release.c.id.in_(sa.select(activation.c.release_id)))
_ACTIVE_ENGINES = (
    sa.select(release_engine.c.target, release_engine.c.engine_id)
    .join(activation, activation.c.release_id == release_engine.c.release_id)
    .where(activation.c.channel_id == sa.bindparam("of_channel"))
    .where(
        activation.c.generation
        == sa.select(sa.func.max(activation.c.generation))
        .where(activation.c.channel_id == sa.bindparam("of_channel"))
        .scalar_subquery()
    )
)

_LARGEST = 2**31 - 1


def ensure_channel(connection: sa.Connection, *, model: str, name: str, actor: str) -> int:
    """
    Return the id of a model's channel, made if there is none.

    Raises:
        InvalidReferenceError: The channel's name is not allowed.
        NotFoundError: There is no such model.
    """
    check_name(name, what="channel")
    known = find_channel(connection, model=model, name=name)
    if known is not None:
        return known
    model_id = connection.execute(_FIND_MODEL, {"model": model}).scalar()
    if model_id is None:
        raise NotFoundError(f"there is no model {model!r}", hint="Run `modelreg list`.")
    row = {"model_id": model_id, "name": name, "policy": {}, "created_at": utc_now(), "created_by": actor}
    channel_id = insert_row(connection, _INSERT_CHANNEL, row)
    append_event(connection, kind="channel.created", subject=f"{model}@{name}", details={}, actor=actor)
    return channel_id


def find_channel(connection: sa.Connection, *, model: str, name: str) -> int | None:
    """Return the id of a model's channel, or None."""
    channel_id: int | None = connection.execute(_FIND_CHANNEL, {"model": model, "channel": name}).scalar()
    return channel_id


def list_channels(connection: sa.Connection) -> list[tuple[str, str]]:
    """Return (model, channel) of every channel, sorted."""
    return [(row.model, row.channel) for row in connection.execute(_CHANNELS)]


def find_release(connection: sa.Connection, *, manifest_digest: str) -> int | None:
    """Return the id of a release by its manifest, or None."""
    release_id: int | None = _FIND_RELEASE.scalar(connection, digest=manifest_digest)
    return release_id


def list_releases(connection: sa.Connection) -> list[str]:
    """Return the manifest digest of every release that was ever active."""
    return list(connection.execute(_ACTIVATED_RELEASES).scalars())


def ensure_release(
    connection: sa.Connection,
    *,
    version: VersionRecord,
    manifest_digest: str,
    engines: Mapping[str, int],
    actor: str,
) -> int:
    """
    Return the id of the release with this manifest, made if there is none.

    Args:
        connection: In a writing transaction.
        version: What it releases.
        manifest_digest: SHA-256 of the manifest, which is the release's identity.
        engines: Engine id by target name; those that this database knows.
        actor: Who asks.
    """
    known = find_release(connection, manifest_digest=manifest_digest)
    if known is not None:
        return known
    row = {
        "version_id": version.id,
        "manifest_digest": manifest_digest,
        "created_at": utc_now(),
        "created_by": actor,
    }
    release_id = insert_row(connection, _INSERT_RELEASE, row)
    rows = [{"release_id": release_id, "target": name, "engine_id": engine} for name, engine in engines.items()]
    if rows:
        connection.execute(_INSERT_RELEASE_ENGINES, rows)
    details: Json = {"manifest": manifest_digest, "engines": dict(engines)}
    append_event(connection, kind="release.created", subject=version.reference, details=details, actor=actor)
    return release_id


def newest_activation(connection: sa.Connection, *, channel_id: int) -> ActivationRecord | None:
    """Return the newest generation of a channel, or None for one that never served."""
    found = list_activations(connection, channel_id=channel_id, limit=1)
    return found[0] if found else None


@decoding("activation")
def find_activation(connection: sa.Connection, *, txn: str) -> ActivationRecord:
    """Return the activation of a transaction that is recorded."""
    return _activation(connection.execute(_BY_TXN, {"of_txn": txn}).one())


@decoding("activation")
def list_activations(
    connection: sa.Connection, *, channel_id: int, limit: int = 100, before: int | None = None
) -> list[ActivationRecord]:
    """Return at most `limit` generations of a channel, newest first, of those below generation `before`."""
    up_to = _LARGEST if before is None else before - 1
    rows = connection.execute(_NEWEST_FIRST, {"of_channel": channel_id, "up_to": up_to, "rows": limit})
    return [_activation(row) for row in rows]


def active_engines(connection: sa.Connection, *, channel_id: int) -> dict[str, int]:
    """Return engine id by target of what a channel serves, of the engines that this database knows."""
    rows = connection.execute(_ACTIVE_ENGINES, {"of_channel": channel_id})
    return {row.target: row.engine_id for row in rows}


def record_activation(
    connection: sa.Connection, *, channel_id: int, release_id: int, pointer: Pointer, actor: str
) -> ActivationRecord:
    """
    Record one generation as the store's pointer or history has it; `commit_operation` does for one with an intent.

    Raises:
        IntegrityError: That generation, or that transaction, is recorded already, and otherwise.
    """
    row = {
        "channel_id": channel_id,
        "generation": pointer.generation,
        "release_id": release_id,
        "kind": str(pointer.kind),
        "rolls_back_to": pointer.rolls_back_to,
        "message": pointer.message,
        "overridden": list(pointer.overridden),
        "txn": pointer.txn,
        "created_at": pointer.at,
        "created_by": pointer.actor,
    }
    subject = f"{pointer.model}@{pointer.channel}"
    try:
        _INSERT_ACTIVATION.execute(connection, **row)
    except sa.exc.IntegrityError as error:
        if "FOREIGN KEY" in str(error.orig).upper():
            raise
        raise IntegrityError(
            f"generation {pointer.generation} of {subject} is recorded with another transaction",
            hint="Run `modelreg doctor`: the database and the store have different histories.",
        ) from None
    details = {
        "generation": pointer.generation,
        "release": pointer.release,
        "version": pointer.version,
        "txn": pointer.txn,
        "by": pointer.actor,
        "message": pointer.message,
        "overridden": list(pointer.overridden),
    }
    append_event(connection, kind=f"channel.{pointer.kind}", subject=subject, details=details, actor=actor)
    return ActivationRecord(
        channel_id=channel_id,
        generation=pointer.generation,
        release_digest=pointer.release,
        version=pointer.version,
        kind=pointer.kind,
        rolls_back_to=pointer.rolls_back_to,
        actor=pointer.actor,
        message=pointer.message,
        overridden=pointer.overridden,
        txn=pointer.txn,
        created_at=pointer.at,
    )


def _activation(row: sa.Row[Any]) -> ActivationRecord:
    return ActivationRecord(
        channel_id=row.channel_id,
        generation=row.generation,
        release_digest=row.manifest_digest,
        version=row.number,
        kind=ActivationKind(row.kind),
        rolls_back_to=row.rolls_back_to,
        actor=row.created_by,
        message=row.message,
        overridden=tuple(row.overridden),
        txn=row.txn,
        created_at=row.created_at,
    )
