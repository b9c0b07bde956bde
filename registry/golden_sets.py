"""The golden set that says what is right for a version."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from modelreg.registry.blobs import record_blob
from modelreg.registry.clock import utc_now
from modelreg.registry.database import insert_row
from modelreg.registry.errors import UsageError
from modelreg.registry.events import append_event
from modelreg.registry.records import GoldenSetRecord, VersionRecord
from modelreg.registry.rows import decoding
from modelreg.registry.schema import event, golden_set
from modelreg.registry.statements import Row, Statement
from modelreg.registry.words import BlobKind, Json

_REPLACED = "golden.replaced"

_INSERT_GOLDEN = sa.insert(golden_set)
_NEWEST_GOLDEN = Statement(
    sa.select(golden_set)
    .where(golden_set.c.version_id == sa.bindparam("of_version"))
    .order_by(golden_set.c.id.desc())
    .limit(1)
)

_HAS_EARLIER = Statement(
    sa.select(golden_set.c.id)
    .where(golden_set.c.version_id == sa.bindparam("of_version"), golden_set.c.id < sa.bindparam("before"))
    .limit(1)
)
_REPLACEMENTS = Statement(
    sa.select(event.c.at, event.c.actor, event.c.details)
    .where(event.c.kind == sa.bindparam("replaced"), event.c.subject == sa.bindparam("of_subject"))
    .order_by(event.c.sequence.desc())
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """Which golden set, by digest, gave way to another: when, by whom, and why."""

    replaced: str
    at: datetime
    actor: str
    message: str


def add_golden_set(
    connection: sa.Connection,
    *,
    version: VersionRecord,
    digest: str,
    size_bytes: int,
    samples: int,
    origin: Json,
    actor: str,
    message: str = "",
) -> GoldenSetRecord:
    """
    Make this the golden set of `version`; nothing changes if it is already. Replacing another one is an event.

    Args:
        connection: In a writing transaction.
        version: Whose outputs it holds.
        digest: SHA-256 of its file.
        size_bytes: Bytes of its file.
        samples: How many samples it has.
        origin: Where it comes from.
        actor: Who adds it.
        message: Why it replaces the one before.

    Raises:
        UsageError: It would replace another one without a message.
    """
    before = require_replaceable(connection, version=version, digest=digest, message=message)
    if before is not None and before.digest == digest:
        return before
    record_blob(connection, digest=digest, size_bytes=size_bytes, kind=BlobKind.GOLDEN)
    now = utc_now()
    row = {
        "version_id": version.id,
        "blob_digest": digest,
        "samples": samples,
        "origin": origin,
        "created_at": now,
        "created_by": actor,
    }
    golden_id = insert_row(connection, _INSERT_GOLDEN, row)
    details: Json = {"digest": digest, "samples": samples}
    if before is not None:
        details |= {"replaces": before.digest, "message": message}
    kind = "golden.added" if before is None else _REPLACED
    append_event(connection, kind=kind, subject=version.reference, details=details, actor=actor)
    return GoldenSetRecord(
        id=golden_id, version_id=version.id, digest=digest, samples=samples, origin=origin, created_at=now
    )


def require_replaceable(
    connection: sa.Connection, *, version: VersionRecord, digest: str, message: str
) -> GoldenSetRecord | None:
    """
    Return the golden set that `digest` would replace, or is, or None.

    Raises:
        UsageError: It would replace another one without a message.
    """
    before = newest_golden_set(connection, version_id=version.id)
    if before is not None and before.digest != digest and not message:
        raise UsageError(
            f"{version.reference} has golden set {before.digest[:12]} already, this one is {digest[:12]}",
            hint="To replace it, say why with --message; its engines must be validated again then.",
        )
    return before


@decoding("golden_set")
def newest_golden_set(connection: sa.Connection, *, version_id: int) -> GoldenSetRecord | None:
    """Return the golden set that was added last, or None."""
    row = _NEWEST_GOLDEN.first(connection, of_version=version_id)
    return None if row is None else _golden(row)


@decoding("event")
def find_replacement(
    connection: sa.Connection, *, version: VersionRecord, golden: GoldenSetRecord | None
) -> Replacement | None:
    """Return what a version's golden set has replaced, or None; the events are read only where there was another."""
    if golden is None:
        return None
    if _HAS_EARLIER.first(connection, of_version=version.id, before=golden.id) is None:
        return None
    for row in _REPLACEMENTS.rows(connection, replaced=_REPLACED, of_subject=version.reference):
        details = json.loads(row.details)
        if details["digest"] == golden.digest:
            return Replacement(replaced=details["replaces"], at=row.at, actor=row.actor, message=details["message"])
    return None


def _golden(row: Row) -> GoldenSetRecord:
    return GoldenSetRecord(
        id=row.id,
        version_id=row.version_id,
        digest=row.blob_digest,
        samples=row.samples,
        origin=row.origin,
        created_at=row.created_at,
    )
