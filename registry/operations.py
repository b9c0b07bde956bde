"""The two transactions around a swap: the intent before it, the outcome after.

An outcome is recorded whatever state its intent is in: the pointer has moved, and history must say so.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from modelreg.registry.clock import utc_now
from modelreg.registry.digests import canonical_json
from modelreg.registry.errors import BusyError
from modelreg.registry.events import append_event
from modelreg.registry.pointers import Pointer, parse_pointer
from modelreg.registry.records import ActivationRecord, OperationRecord
from modelreg.registry.releases import find_activation, record_activation
from modelreg.registry.rows import decoding
from modelreg.registry.schema import (
    OPEN_OPERATION,
    activation,
    channel,
    model,
    operation,
    release,
)
from modelreg.registry.statements import Statement
from modelreg.registry.words import ActivationKind, Json, OperationState

_INSERT_OPERATION = Statement(sa.insert(operation).returning(operation.c.id))
_COMMIT_OPERATION = Statement(
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
_ACTIVATED = (
    sa.select(operation.c.id, operation.c.pointer)
    .join(activation, activation.c.txn == operation.c.txn)
    .join(channel, channel.c.id == activation.c.channel_id)
    .join(model, model.c.id == channel.c.model_id)
    .where(
        model.c.name == sa.bindparam("model"),
        channel.c.name == sa.bindparam("channel"),
        activation.c.generation == sa.bindparam("generation"),
    )
)
_IS_RECORDED = Statement(sa.select(activation.c.generation).where(activation.c.txn == sa.bindparam("of_txn")))


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
        "pointer": pointer.to_json(),
        "state": OperationState.PREPARED.value,
        "owner": owner,
        "error": "",
        "updated_at": now,
        "created_at": now,
        "created_by": actor,
    }
    try:
        operation_id: int = _INSERT_OPERATION.scalar(connection, **row)
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
def find_activated_pointer(connection: sa.Connection, *, model: str, channel: str, generation: int) -> Pointer | None:
    """
    Return the pointer that became a generation of a channel; None for one that was activated without this database.

    Raises:
        IntegrityError: The stored document was changed.
    """
    wanted = {"model": model, "channel": channel, "generation": generation}
    found = connection.execute(_ACTIVATED, wanted).one_or_none()
    return None if found is None else parse_pointer(canonical_json(found.pointer), where=f"of operation {found.id}")


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
    release_id = _COMMIT_OPERATION.scalar(connection, operation_id=operation.id, now=utc_now())
    # Where hosts share no lock, somebody who came by may have recorded it from the store's history already.
    if release_id is None or _IS_RECORDED.scalar(connection, of_txn=pointer.txn) is not None:
        with decoding("activation"):
            return find_activation(connection, txn=pointer.txn)
    return record_activation(
        connection, channel_id=operation.channel_id, release_id=release_id, pointer=pointer, actor=actor
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
