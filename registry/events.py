"""The event log: every change, in order, each row bound to the one before it by a hash.

The chain shows that history was edited. It cannot show that its tail was cut off, nor that somebody rewrote all of
it from one row on, hashes included: keep `ChainReport.head` elsewhere and give it as `anchor` to see those too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from modelreg.registry.clock import utc_now
from modelreg.registry.digests import canonical_json, json_digest
from modelreg.registry.schema import event, to_microseconds
from modelreg.registry.statements import Statement
from modelreg.registry.words import Json

_FIRST_HASH = "0" * 64
_PAGE = 1000
_ID_CHARACTERS = 16

_LAST = Statement(sa.select(event.c.sequence, event.c.hash).order_by(event.c.sequence.desc()).limit(1))
_FIRST = Statement(sa.select(event.c.hash).where(event.c.sequence == 1))
_INSERT = Statement(sa.insert(event))
# Times as the integers that were hashed: a converted one could hide a change.
_RAW = (
    event.c.sequence,
    sa.type_coerce(event.c.at, sa.BigInteger).label("at"),
    event.c.actor,
    event.c.kind,
    event.c.subject,
    event.c.details,
    event.c.previous_hash,
    event.c.hash,
)
_HASH_OF = sa.select(event.c.hash).where(event.c.sequence == sa.bindparam("wanted"))
_AFTER = (
    sa.select(event.c.at, event.c.actor, event.c.kind, event.c.subject)
    .where(event.c.sequence > sa.bindparam("after"))
    .order_by(event.c.sequence)
)
_NEXT_PAGE = sa.select(*_RAW).where(event.c.sequence > sa.bindparam("after")).order_by(event.c.sequence).limit(_PAGE)
_FIRST_PAGE = sa.select(*_RAW).order_by(event.c.sequence).limit(_PAGE)


CHAIN_HINT = "Somebody changed the history, or the file is damaged; compare it with a backup."
"""What to do about a broken chain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainAnchor:
    """A point of the chain remembered outside the database."""

    sequence: int
    hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NewerEvent:
    """What happened, without the particulars."""

    at: datetime
    actor: str
    kind: str
    subject: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainReport:
    """What reading the chain found: `broken_at` is the sequence of the first bad row, None for a whole chain.

    `events` counts the good rows before it; `head` is the last of them, None for an empty log.
    """

    events: int
    broken_at: int | None
    reason: str
    head: ChainAnchor | None


def registry_id(connection: sa.Connection) -> str:
    """
    Return what tells this registry from others, empty before its first event.

    It is taken from the first event, which has a time and an actor in it: no two registries share it, and a database
    shares it with its backups.
    """
    first: str | None = _FIRST.scalar(connection)
    return "" if first is None else first[:_ID_CHARACTERS]


def read_head(connection: sa.Connection) -> ChainAnchor | None:
    """Return the newest event's place in the chain, None for an empty log."""
    last = _LAST.first(connection)
    return None if last is None else ChainAnchor(sequence=last.sequence, hash=last.hash)


def has_anchor(connection: sa.Connection, anchor: ChainAnchor) -> bool:
    """Return whether the chain goes through a point: it has that event, with that hash."""
    found = connection.execute(_HASH_OF, {"wanted": anchor.sequence}).scalar()
    return bool(found == anchor.hash)


def events_after(connection: sa.Connection, sequence: int) -> Iterator[NewerEvent]:
    """Yield the events that came after one, in order."""
    for row in connection.execute(_AFTER, {"after": sequence}):
        yield NewerEvent(at=row.at, actor=row.actor, kind=row.kind, subject=row.subject)


def append_event(connection: sa.Connection, *, kind: str, subject: str, details: Json, actor: str) -> None:
    """Add one event at the end of the chain, in the caller's writing transaction."""
    last = _LAST.first(connection)
    sequence, previous = (1, _FIRST_HASH) if last is None else (last.sequence + 1, last.hash)
    at = utc_now()
    text = canonical_json(details).decode()
    body: Json = {"actor": actor, "kind": kind, "subject": subject, "details": text, "previous_hash": previous}
    digest = json_digest({**body, "sequence": sequence, "at": to_microseconds(at)})
    _INSERT.execute(connection, **body, sequence=sequence, at=at, hash=digest)


def verify_chain(connection: sa.Connection, *, anchor: ChainAnchor | None = None) -> ChainReport:
    """
    Read every event and check the chain, in constant memory.

    Finds any row that was changed, removed, inserted or moved. A log whose newest rows were removed is a shorter
    whole chain: only an `anchor` remembered elsewhere (an earlier report's `head`) tells.

    Args:
        connection: In one reading transaction, so that a writer at work is no damage.
        anchor: A row that must be there, with that hash.
    """
    head: ChainAnchor | None = None
    events = 0
    for row in _rows(connection):
        reason = _fault(row, head=head, anchor=anchor)
        if reason:
            return ChainReport(events=events, broken_at=row.sequence, reason=reason, head=head)
        head = ChainAnchor(sequence=row.sequence, hash=row.hash)
        events += 1
    if anchor is not None and anchor.sequence > events:
        reason = f"the log ends at event {events}, event {anchor.sequence} was seen earlier"
        return ChainReport(events=events, broken_at=events + 1, reason=reason, head=head)
    return ChainReport(events=events, broken_at=None, reason="", head=head)


def _rows(connection: sa.Connection) -> Iterator[sa.Row[Any]]:
    page = connection.execute(_FIRST_PAGE).all()
    while page:
        yield from page
        page = connection.execute(_NEXT_PAGE, {"after": page[-1].sequence}).all()


def _fault(row: sa.Row[Any], *, head: ChainAnchor | None, anchor: ChainAnchor | None) -> str:
    expected = 1 if head is None else head.sequence + 1
    if row.sequence != expected:
        return f"event {expected} is missing"
    if row.previous_hash != (_FIRST_HASH if head is None else head.hash):
        return f"event {row.sequence} does not follow the one before it"
    body = {key: value for key, value in row._mapping.items() if key != "hash"}
    try:
        digest = json_digest(body)
    except (TypeError, ValueError):  # bytes, NaN: nothing we ever wrote
        digest = ""
    if digest != row.hash:
        return f"event {row.sequence} was changed"
    if anchor is not None and anchor.sequence == row.sequence and anchor.hash != row.hash:
        return f"event {row.sequence} is not the one that was seen earlier"
    return ""
