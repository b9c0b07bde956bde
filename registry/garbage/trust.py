"""Whether a database may say what is garbage: one that was restored from an older copy, or is another's, may not.

The store is asked: its pointers must not go beyond what the database knows, nor fall behind, and the database must have
the very event that was its last when it collected here before.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

import sqlalchemy as sa

from modelreg.registry import releases
from modelreg.registry.channel_states import compare, read_channel_state
from modelreg.registry.database import Database
from modelreg.registry.errors import IntegrityError, NotFoundError
from modelreg.registry.garbage.store_facts import StoreReading
from modelreg.registry.manifest import parse_manifest
from modelreg.registry.pins import Pin
from modelreg.registry.references import ModelReference
from modelreg.registry.schema import event
from modelreg.registry.settling import require_known_version
from modelreg.registry.storage.interface import Storage
from modelreg.registry.storage.notes import COLLECTION
from modelreg.registry.versions import get_version

WITNESS_NAME = f"{COLLECTION}/database.json"
_HASH_OF = sa.select(event.c.hash).where(event.c.sequence == sa.bindparam("at_sequence"))
_HEAD = sa.select(event.c.sequence, event.c.hash).order_by(event.c.sequence.desc()).limit(1)
_HINT = (
    "Run `modelreg doctor`. Where this database is to count from now on, say so: `modelreg gc --accept-database`."
    " What only another one knew is garbage then."
)


class CollectionRefusedError(IntegrityError):
    """Nobody can say what is garbage: nothing was marked or removed."""

    default_hint = "Run `modelreg doctor`; nothing was marked or removed."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Witness:
    first: str
    sequence: int
    hash: str


def require_trusted(database: Database, storage: Storage, reading: StoreReading, *, accept: bool) -> None:
    """
    Let a database pass that knows all that the store knows of it.

    Args:
        database: What would say which blobs are needed.
        storage: The store.
        reading: What was read from it a moment ago.
        accept: Whether the user says that this database counts, though another one collected here.

    Raises:
        CollectionRefusedError: It is behind the store, ahead of it, or another's.
    """
    if not accept:
        require_continued(database, storage)
        with database.read() as connection:
            for pin in reading.pins:
                require_pinned_version(connection, pin)
    with database.read() as connection:
        _require_agreement(connection, storage, reading)


def _require_agreement(connection: sa.Connection, storage: Storage, reading: StoreReading) -> None:
    for model, channel in sorted({*reading.pointers, *releases.list_channels(connection)}):
        pointer, place = reading.pointers.get((model, channel)), f"{model}@{channel}"
        found = compare(read_channel_state(connection, model=model, channel=channel), pointer)
        if found.ahead:
            raise CollectionRefusedError(
                f"{place}: the database knows generation {found.known}, the store serves {found.served}:"
                " one of the two was restored from an older copy"
            )
        if found.behind:
            raise CollectionRefusedError(
                f"{place}: the store serves generation {found.served}, the database knows {found.known}",
                hint="It may be an old copy, or the channel was moved elsewhere: `modelreg doctor --fix` records that.",
            )
        if pointer is not None:
            manifest = parse_manifest(storage.read_manifest(pointer.release), where=pointer.release[:12])
            require_known_version(connection, pointer, manifest)


def require_pinned_version(connection: sa.Connection, pin: Pin) -> None:
    """
    Let a pin pass whose version this database has.

    Raises:
        CollectionRefusedError: It has none, or another one of that number.
    """
    try:
        found = get_version(connection, ModelReference(model=pin.model, version=pin.version)).source.digest
    except NotFoundError:
        found = ""
    if found != pin.source:
        name = f"{pin.model}:{pin.version}"
        raise CollectionRefusedError(
            f"{name} is pinned, and this database does not have it",
            hint=f"Restore the database that has it, or lift the pin: modelreg unpin {name}",
        )


def require_continued(database: Database, storage: Storage) -> None:
    """
    Let a database pass that has the event which was its last when it collected here before.

    Raises:
        CollectionRefusedError: It does not: it is older, or another one.
    """
    note = storage.read_note(WITNESS_NAME)
    if note is None:
        return
    try:
        body = json.loads(note.data)
        witness = _Witness(first=str(body["first"]), sequence=int(body["sequence"]), hash=str(body["hash"]))
    except (ValueError, KeyError, TypeError):
        raise CollectionRefusedError(f"{WITNESS_NAME} of the store cannot be read", hint=_HINT) from None
    with database.read() as connection:
        first, then = (
            connection.execute(_HASH_OF, {"at_sequence": number}).scalar() for number in (1, witness.sequence)
        )
    if first != witness.first:
        raise CollectionRefusedError("the store was collected with another database than this one", hint=_HINT)
    if then != witness.hash:
        raise CollectionRefusedError(
            f"the store was collected with event {witness.sequence} of the database, which this one does not have:"
            " it was restored from an older copy",
            hint=_HINT,
        )


def write_witness(database: Database, storage: Storage) -> None:
    """Note in the store how far the database is, so that an older copy of it is known as one."""
    with database.read() as connection:
        head = connection.execute(_HEAD).first()
        first = connection.execute(_HASH_OF, {"at_sequence": 1}).scalar()
    if head is None:
        return
    body = {"first": first, "sequence": head.sequence, "hash": head.hash, "nonce": os.urandom(8).hex()}
    note = storage.read_note(WITNESS_NAME)
    storage.write_note(WITNESS_NAME, json.dumps(body).encode(), replaces=note)
