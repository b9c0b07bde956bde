"""What hosts and users note in a store, leases and pins: what of it would keep `gc` from its work."""

from __future__ import annotations

from collections.abc import Iterator

from modelreg.registry.checks.findings import Finding, Level, failure, found
from modelreg.registry.database import Database
from modelreg.registry.errors import IntegrityError
from modelreg.registry.garbage.trust import CollectionRefusedError, require_continued, require_pinned_version
from modelreg.registry.leases import read_leases
from modelreg.registry.pins import parse_pin
from modelreg.registry.storage.interface import Storage
from modelreg.registry.storage.notes import PINS

_LEASE_HINT = "A newer modelreg wrote it, perhaps: upgrade this one. Else remove it: modelreg leases drop NAME"


def examine_notes(database: Database | None, storage: Storage) -> Iterator[Finding]:
    """Tell of notes that cannot be read, pins of versions that are lost, and a database older than a collection."""
    for name in read_leases(storage).unreadable:
        message = "no lease that this modelreg can read: gc refuses to work"
        yield found(Level.PROBLEM, "lease", name, message, _LEASE_HINT)
    yield from _examine_pins(database, storage)
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
