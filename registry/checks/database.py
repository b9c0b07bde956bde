"""The database by itself: its file, its rows, and the chain of its events."""

from __future__ import annotations

from collections.abc import Iterator

from modelreg.registry import events
from modelreg.registry.checks.findings import Finding, Level, failure, found
from modelreg.registry.database import Database
from modelreg.registry.errors import ModelregError

_RESTORE_HINT = "Restore it: `modelreg db restore FILE`. `which`, `pull` and `rollback` work from the store meanwhile."


def examine_database(database: Database | None, *, why: str) -> Iterator[Finding]:
    """Check the file and decode every row; `why` says why there is no database."""
    if database is None:
        message = why or "the database is missing"
        yield found(Level.PROBLEM, "database", "registry", message, _RESTORE_HINT)
        return
    try:
        damage = database.check()
        for problem in damage:
            yield found(Level.DAMAGE, "database", "registry", problem, _RESTORE_HINT)
        if not damage:
            yield found(Level.OK, "database", "registry", "consistent")
            yield _examine_chain(database)
    except ModelregError as error:
        yield failure("database", "registry", error, hint=_RESTORE_HINT)


def _examine_chain(database: Database) -> Finding:
    with database.read() as connection:
        chain = events.verify_chain(connection)
    if chain.broken_at is None:
        return found(Level.OK, "events", "chain", f"{chain.events} events, unbroken")
    return found(Level.DAMAGE, "events", f"event {chain.broken_at}", chain.reason, events.CHAIN_HINT)
