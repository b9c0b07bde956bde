"""Channels, releases, and the two transactions around a swap: the intent before it, the outcome after.

The store's pointer says what is served; these rows say what was meant and what became of it. So an outcome is
recorded whatever state its intent is in: the pointer has moved, and history must say so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from modelreg.registry.clock import utc_now
from modelreg.registry.database import insert_row
from modelreg.registry.digests import canonical_json
from modelreg.registry.errors import BusyError, IntegrityError, NotFoundError
from modelreg.registry.events import append_event
from modelreg.registry.pointers import Pointer, parse_pointer
from modelreg.registry.records import ActivationRecord, OperationRecord, VersionRecord
from modelreg.registry.references import check_name
from modelreg.registry.rows import decoding
from modelreg.registry.schema import (
    OPEN_OPERATION,
    activation,
    channel,
    model,
    operation,
    release,
    release_engine,
    version,
)
from modelreg.registry.words import ActivationKind, Json, OperationState

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
_FIND_RELEASE = sa.select(release.c.id).where(release.c.manifest_digest == sa.bindparam("digest"))
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
_INSERT_ACTIVATION = sa.insert(activation)
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

_INSERT_OPERATION = sa.insert(operation)
_COMMIT_OPERATION = (
    sa.update(operation)
    .where(operation.c.id == sa.bindparam("operation_id"), operation.c.state != OperationState.COMMITTED.value)
    .values(state=OperationState.COMMITTED.value, updated_at=sa.bindparam("now"), error="")
    .returning(operation.c.release_id)
)
_CLOSE_OPERATION = (
    sa.update(operation)
    .where(operation.c.id == sa.bindparam("operation_id"), OPEN_OPERATION)
    .values(state=sa.bindparam("new_state"), error=sa.bindparam("why"), updated_at=sa.bindparam("now"))
)
_OPEN = (
    sa.select(
        operation,
        model.c.name.label("model"),
        channel.c.name.label("channel"),
        release.c.manifest_digest,
    )
    .select_from(operation)
    .join(channel, channel.c.id == operation.c.channel_id)
    .join(model, model.c.id == channel.c.model_id)
    .join(release, release.c.id == operation.c.release_id)
    .where(OPEN_OPERATION)
    .order_by(operation.c.channel_id)  # the order of the partial index, which holds the open ones alone
)
_OPEN_OF_CHANNEL = _OPEN.where(operation.c.channel_id == sa.bindparam("of_channel"))
_POINTER = sa.select(operation.c.pointer).where(operation.c.id == sa.bindparam("operation_id"))
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
    release_id: int | None = connection.execute(_FIND_RELEASE, {"digest": manifest_digest}).scalar()
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


def begin_operation(
    connection: sa.Connection, *, channel_id: int, release_id: int, pointer: Pointer, owner: Json, actor: str
) -> OperationRecord:
    """
    Record the intent to move a channel to `pointer`. The row itself is the record: no event until the outcome.

    Args:
        connection: In a writing transaction.
        channel_id: The channel of `pointer`.
        release_id: The release of `pointer`.
        pointer: The document that the store will be asked to swap in, kept whole for whoever has to settle it.
        owner: Who works on it (host, process), to judge later whether it still does.
        actor: Who asks.

    Raises:
        BusyError: The channel has an unfinished operation.
    """
    now = utc_now()
    row = {
        "txn": pointer.txn,
        "kind": str(pointer.kind),
        "channel_id": channel_id,
        "release_id": release_id,
        "expected_generation": pointer.generation - 1,
        "pointer": json.loads(pointer.to_bytes()),
        "state": OperationState.PREPARED.value,
        "owner": owner,
        "error": "",
        "updated_at": now,
        "created_at": now,
        "created_by": actor,
    }
    try:
        operation_id = insert_row(connection, _INSERT_OPERATION, row)
    except sa.exc.IntegrityError as error:
        if not _is_open_clash(error):
            raise
        raise BusyError(f"channel {pointer.model}@{pointer.channel} is being moved by another command") from None
    return OperationRecord(
        id=operation_id,
        txn=pointer.txn,
        kind=pointer.kind,
        channel_id=channel_id,
        model=pointer.model,
        channel=pointer.channel,
        expected_generation=pointer.generation - 1,
        release_digest=pointer.release,
        state=OperationState.PREPARED,
        owner=owner,
        error="",
        created_at=now,
    )


@decoding("operation")
def open_operations(connection: sa.Connection, *, channel_id: int | None = None) -> list[OperationRecord]:
    """Return the unfinished operation of a channel in a list, or those of all channels; a channel has one at most."""
    if channel_id is None:
        rows = connection.execute(_OPEN)
    else:
        rows = connection.execute(_OPEN_OF_CHANNEL, {"of_channel": channel_id})
    return [_operation(row) for row in rows]


@decoding("operation")
def operation_pointer(connection: sa.Connection, *, operation_id: int) -> Pointer:
    """
    Return the pointer that an operation meant to swap in.

    Raises:
        IntegrityError: The stored document was changed.
        NotFoundError: There is no such operation.
    """
    body = connection.execute(_POINTER, {"operation_id": operation_id}).scalar()
    if body is None:
        raise NotFoundError(f"there is no operation {operation_id}")
    return parse_pointer(canonical_json(body), where=f"of operation {operation_id}")


def commit_operation(
    connection: sa.Connection, *, operation: OperationRecord, pointer: Pointer, actor: str
) -> ActivationRecord:
    """
    Record that the pointer has moved: the operation, the activation and the event, in one transaction.

    Doing it again changes nothing. An operation that was aborted meanwhile is committed all the same: the pointer
    is the truth, and it has moved. The activation carries the pointer's own actor and time.

    Raises:
        ValueError: The pointer is of another transaction.
        IntegrityError: That generation of the channel is recorded with another transaction.
    """
    if pointer.txn != operation.txn:
        raise ValueError(f"pointer {pointer.txn} does not settle operation {operation.txn}")
    release_id = connection.execute(_COMMIT_OPERATION, {"operation_id": operation.id, "now": utc_now()}).scalar()
    if release_id is None:
        with decoding("activation"):
            return _activation(connection.execute(_BY_TXN, {"of_txn": pointer.txn}).one())
    return record_activation(
        connection, channel_id=operation.channel_id, release_id=release_id, pointer=pointer, actor=actor
    )


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
        connection.execute(_INSERT_ACTIVATION, row)
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


def abort_operation(connection: sa.Connection, *, operation: OperationRecord, error: str, actor: str) -> None:
    """Record that an operation did not move the pointer; one that is settled already stays as it is."""
    _close(connection, operation, state=OperationState.ABORTED, error=error, actor=actor)


def mark_unknown(connection: sa.Connection, *, operation: OperationRecord, error: str, actor: str) -> None:
    """Record that nobody knows yet whether the pointer moved; the operation stays open until it is settled."""
    _close(connection, operation, state=OperationState.UNKNOWN, error=error, actor=actor)


def _close(
    connection: sa.Connection, operation: OperationRecord, *, state: OperationState, error: str, actor: str
) -> None:
    parameters = {"operation_id": operation.id, "new_state": state.value, "why": error, "now": utc_now()}
    if connection.execute(_CLOSE_OPERATION, parameters).rowcount:
        details = {"txn": operation.txn, "release": operation.release_digest, "error": error}
        subject = f"{operation.model}@{operation.channel}"
        append_event(connection, kind=f"operation.{state}", subject=subject, details=details, actor=actor)


def _is_open_clash(error: sa.exc.IntegrityError) -> bool:
    text = str(error.orig)  # SQLite names the column, PostgreSQL the index
    return "operation.channel_id" in text or "ix_operation_open" in text


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


def _operation(row: sa.Row[Any]) -> OperationRecord:
    return OperationRecord(
        id=row.id,
        txn=row.txn,
        kind=ActivationKind(row.kind),
        channel_id=row.channel_id,
        model=row.model,
        channel=row.channel,
        expected_generation=row.expected_generation,
        release_digest=row.manifest_digest,
        state=OperationState(row.state),
        owner=row.owner,
        error=row.error,
        created_at=row.created_at,
    )
