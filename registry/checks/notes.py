"""What is noted in a store beside what is kept there, leases, pins and marks: what would keep `gc` from its work."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from modelreg.registry.checks.findings import FIX_HINT, Finding, Level, failure, found
from modelreg.registry.database import Database
from modelreg.registry.errors import IntegrityError
from modelreg.registry.garbage.trust import CollectionRefusedError, require_continued, require_pinned_version
from modelreg.registry.leases import read_leases
from modelreg.registry.pins import parse_pin
from modelreg.registry.storage.interface import Storage
from modelreg.registry.storage.marks import MARK_FOLDER, parse_mark
from modelreg.registry.storage.notes import PINS, Note
from modelreg.registry.storage.s3_parallel import run_ahead

_WORKERS = 8
_LEASE_HINT = "A newer modelreg wrote it, perhaps: upgrade this one. Else remove it: modelreg leases drop NAME"


def examine_notes(database: Database | None, storage: Storage) -> Iterator[Finding]:
    """Tell of notes that cannot be read, pins of versions that are lost, and a database older than a collection."""
    for name in read_leases(storage).unreadable:
        message = "no lease that this modelreg can read: gc refuses to work"
        yield found(Level.PROBLEM, "lease", name, message, _LEASE_HINT)
    yield from _examine_pins(database, storage)
    for mark in unreadable_marks(storage):
        message = "no mark of a collector: gc refuses to work, and nobody can store what it is of"
        yield found(Level.FIXABLE, "mark", mark.name, message, FIX_HINT)
    if database is not None:
        try:
            require_continued(database, storage)
        except CollectionRefusedError as error:
            yield found(Level.PROBLEM, "collection", "store", f"gc refuses to work: {error}", error.hint())


def _examine_pins(database: Database | None, storage: Storage) -> Iterator[Finding]:
    for info in sorted(storage.list_notes(PINS), key=lambda info: info.name):
        note = storage.read_note(info.name)
        if note is None:
            continue
        try:
            pin = parse_pin(note)
        except IntegrityError as error:
            yield failure("pin", info.name, error)
            continue
        if database is not None:
            try:
                with database.read() as connection:
                    require_pinned_version(connection, pin)
            except CollectionRefusedError as error:
                message = f"gc refuses to work: {error}"
                yield found(Level.PROBLEM, "pin", f"{pin.model}:{pin.version}", message, error.hint())


def unreadable_marks(storage: Storage) -> Iterator[Note]:
    """Yield notes in the place of marks that are none. Where one is removed, what it was of is kept, or marked anew."""
    names = [info.name for info in storage.list_notes(MARK_FOLDER)]
    for note in run_ahead((partial(storage.read_note, name) for name in names), workers=_WORKERS):
        if note is not None:
            try:
                parse_mark(note)
            except IntegrityError:
                yield note
