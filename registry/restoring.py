"""A backup put in the place of a registry's database, and what that would hide.

What the current database knows beyond the backup would be gone, so it is refused without a person's word, and what is
replaced is kept beside it. What the store knows beyond the backup is not gone: the pointer is the truth about what is
served, and `doctor --fix` records what the store's history says.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from modelreg.registry import events, releases
from modelreg.registry.backups import Backup, read_backup, server_address
from modelreg.registry.channel_states import compare, read_channel_state
from modelreg.registry.database import Database, sqlite_url
from modelreg.registry.errors import (
    BusyError,
    ConflictError,
    DatabaseError,
    ModelregError,
    UsageError,
)
from modelreg.registry.events import ChainAnchor, NewerEvent
from modelreg.registry.schema import SCHEMA_REVISION
from modelreg.registry.sqlite import sync
from modelreg.registry.storage.interface import Storage

RESTORED = "database.restored"
_BESIDE = ("-wal", "-shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """What lies where a backup would go: readable, or `fault` says why not; `newer` is what the backup lacks of it."""

    fault: str = ""
    exists: bool = True
    head: ChainAnchor | None = None
    newer: tuple[NewerEvent, ...] = ()
    parted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A channel of which backup and store know different generations; 0 for none."""

    place: str
    known: int
    served: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """What a restore would do."""

    backup: Backup
    current: Current
    gaps: tuple[Gap, ...]

    def require_nothing_hidden(self, name: str) -> None:
        """
        Check that the current database knows nothing that the backup does not.

        Raises:
            ConflictError: It does; how much, and what came last, is said.
        """
        if self.current.parted:
            raise ConflictError(
                f"database {name} and {self.backup.path} are not of one history: another registry's backup, perhaps",
                hint="Name this registry's backup, or say --force: what is replaced is kept beside it.",
            )
        if newer := self.current.newer:
            last = newer[-1]
            raise ConflictError(
                f"database {name} has newer events than {self.backup.path}, {len(newer)} in all: the last is"
                f" {last.kind} of {last.subject} by {last.actor} at {last.at:%Y-%m-%d %H:%M}Z",
                hint="Take a newer backup, or say --force: what is replaced is kept beside it.",
            )


def plan_restore(path: Path, *, database: Path | None, name: str, storage: Storage | None) -> RestorePlan:
    """
    Return what restoring a backup would do; nothing is written.

    Args:
        path: The backup.
        database: The registry's database file, None for a server's.
        name: What messages call the database.
        storage: The registry's store, None where it is away.

    Raises:
        UsageError: The database is a server's, or `path` is the database itself.
        DatabaseError: As `read_backup`.
        IntegrityError: As `read_backup`.
    """
    if database is None:
        raise UsageError(
            f"database {name} is a server's, which restores itself",
            hint=f"Run: pg_restore --clean --if-exists --dbname={server_address(name)} {path}",
        )
    if path.absolute() == database:
        raise UsageError(f"{path} is the database itself", hint="Name a backup.")
    backup = read_backup(path)
    return RestorePlan(backup=backup, current=_look_at(database, backup), gaps=tuple(_find_gaps(backup, storage)))


def restore(
    plan: RestorePlan, *, database: Path, storage: Storage | None, actor: str, timeout_s: float, force: bool
) -> Path | None:
    """
    Put a backup in the place of the database; return where what was there is kept, None where nothing was.

    A database that can be read is overwritten in one transaction, so commands that have it open go on with the new
    one; what has come into it since the plan is found under its lock. Promotions and rollbacks wait meanwhile.

    Raises:
        ConflictError: The database knows what the backup does not, and `force` does not allow that.
        BusyError: Another command was at work for the whole timeout.
        DatabaseError: It cannot be written; what was there is there.
    """
    if not force:
        plan.require_nothing_hidden(str(database))
    with _channels_held(storage, timeout_s=timeout_s):
        kept = _kept_name(database)
        if plan.current.exists and not plan.current.fault:
            _overwrite(plan, database, kept=kept, timeout_s=timeout_s, force=force)
        else:
            kept_files = _swap_files(plan.backup.path, database, kept=kept)
            kept = kept if kept_files else database
    with Database(sqlite_url(database), timeout_s=timeout_s) as restored, restored.write() as connection:
        replaced = plan.current.head
        details = {
            "sha256": plan.backup.sha256,
            "replaced": None if replaced is None else {"sequence": replaced.sequence, "hash": replaced.hash},
        }
        events.append_event(connection, kind=RESTORED, subject="database", details=details, actor=actor)
    return None if kept == database else kept


def _look_at(path: Path, backup: Backup) -> Current:
    if not path.exists():
        return Current(exists=False, fault=f"database {path} does not exist")
    try:
        with Database(sqlite_url(path)) as database:
            if damage := database.check(rows=database.revision() == SCHEMA_REVISION):
                return Current(fault=f"database {path} is damaged: {damage[0]}")
            with database.read() as connection:
                head = events.read_head(connection)
                if head is None:
                    return Current()
                if backup.head is None or events.has_anchor(connection, backup.head):
                    after = 0 if backup.head is None else backup.head.sequence
                    newer = events.events_after(connection, after)
                    return Current(head=head, newer=tuple(each for each in newer if each.kind != RESTORED))
        return Current(head=head, parted=not _goes_through(backup, head))
    except BusyError:
        raise
    except (ModelregError, sqlite3.Error) as error:
        return Current(fault=str(error))


def _goes_through(backup: Backup, head: ChainAnchor) -> bool:
    """Return whether the backup is the newer one: the current chain ends within it."""
    with Database.at_rest(backup.path) as copy, copy.read() as connection:
        return events.has_anchor(connection, head)


def _find_gaps(backup: Backup, storage: Storage | None) -> Iterator[Gap]:
    if storage is None or backup.revision != SCHEMA_REVISION:
        return
    with Database.at_rest(backup.path) as copy, copy.read() as connection:
        places = sorted({*storage.list_channels(), *releases.list_channels(connection)})
        for model, channel in places:
            state = read_channel_state(connection, model=model, channel=channel)
            try:
                pointer = storage.read_pointer(model, channel)
            except ModelregError:
                continue  # `doctor` says what is the matter with it
            found = compare(state, pointer)
            if found.behind or found.ahead:
                yield Gap(place=f"{model}@{channel}", known=found.known, served=found.served)


@contextmanager
def _channels_held(storage: Storage | None, *, timeout_s: float) -> Iterator[None]:
    """Hold every channel, so that nobody of this host is between an intent and its outcome."""
    with ExitStack() as stack:
        for model, channel in () if storage is None else storage.list_channels():
            stack.enter_context(storage.exclusive(model, channel, timeout_s=timeout_s))  # type: ignore[union-attr]
        yield


def _overwrite(plan: RestorePlan, path: Path, *, kept: Path, timeout_s: float, force: bool) -> None:
    with Database(sqlite_url(path), timeout_s=timeout_s) as database:

        def keep() -> None:
            if not force:
                _require_unchanged(database, plan)
            database.backup(kept)

        database.overwrite_from(plan.backup.path, once_locked=keep)


def _require_unchanged(database: Database, plan: RestorePlan) -> None:
    with database.read() as connection:
        if events.read_head(connection) != plan.current.head:
            raise ConflictError(
                f"database {database.name} was written meanwhile", hint="Run the command again: it says by whom."
            )


def _swap_files(backup: Path, path: Path, *, kept: Path) -> bool:
    """Put a copy of a backup where there is no database, or a damaged one, which is moved aside with its log first."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        with Database.at_rest(backup) as source:
            source.copy_to(temporary)
        # The file first: without it nothing is opened, and what is left of a log is never taken for a new file's.
        moved = [_move(path.with_name(path.name + end), kept.with_name(kept.name + end)) for end in ("", *_BESIDE)]
        os.link(temporary, path)
        sync(path.parent)
    except OSError as error:
        raise DatabaseError(f"{path} cannot be written: {error.strerror}", hint="Run the command again.") from error
    finally:
        temporary.unlink(missing_ok=True)
    return any(moved)


def _move(path: Path, target: Path) -> bool:
    try:
        path.rename(target)
    except FileNotFoundError:
        return False
    return True


def _kept_name(path: Path) -> Path:
    """Return the next free `NAME.replaced-NUMBER`; numbers, since names in order of time would trust the clock."""
    stem = f"{path.name}.replaced-"
    numbers = [each.name[len(stem) :][:6] for each in path.parent.iterdir() if each.name.startswith(stem)]
    taken = max((int(number) for number in numbers if number.isdecimal()), default=0)
    return path.with_name(f"{stem}{taken + 1:06d}")
