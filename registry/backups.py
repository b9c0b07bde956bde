"""Backups of a database file while it is in use: one file, checked before it gets its name, with its digest beside it.

The copy is SQLite's own (its backup API), the last committed state and nothing half; a copy of the file by other means
would lack what is still in the log.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from modelreg.registry import events
from modelreg.registry.database import Database
from modelreg.registry.digests import file_digest
from modelreg.registry.errors import DatabaseError, IntegrityError, UsageError
from modelreg.registry.events import ChainAnchor
from modelreg.registry.schema import SCHEMA_REVISION
from modelreg.registry.sqlite import sync

DIGEST_SUFFIX = ".sha256"
_SQLITE = b"SQLite format 3\0"
_BESIDE = ("-wal", "-journal")
_LONGEST_NAME = 255 - len("-journal")  # bytes: the digest lies beside it, and SQLite's own files may


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """A backup that was read and found whole: its digest, its schema, and how far its events go."""

    path: Path
    size_bytes: int
    sha256: str
    revision: str
    events: int
    head: ChainAnchor | None


def require_file(url: str, destination: Path) -> None:
    """
    Check that a database is a file, which we copy; needs no driver.

    Raises:
        UsageError: It is a server's, whose own tool is named.
    """
    parsed = sa.make_url(url)
    if parsed.get_backend_name() != "sqlite":
        raise _is_a_server(parsed.render_as_string(hide_password=True), destination)


def check_destination(database: Database, destination: Path, *, replace: bool) -> None:
    """
    Check that a backup can be written there, before anything is.

    Raises:
        UsageError: The database is a server's; the file is there already, and `replace` does not allow it; or it is
            the database itself.
    """
    source = database.path
    if source is None:
        raise _is_a_server(database.name, destination)
    if destination.absolute() in {source, *(source.with_name(source.name + each) for each in ("-wal", "-shm"))}:
        raise UsageError(f"{destination} is the database itself", hint="Name another file.")
    if not destination.parent.is_dir():
        raise UsageError(f"{destination.parent} is no folder", hint="Make it, or name another file.")
    if len(os.fsencode(destination.name)) > _LONGEST_NAME:
        raise UsageError(
            f"{destination.name[:40]}… is too long a name: other files are to lie beside it",
            hint=f"Take at most {_LONGEST_NAME} bytes.",
        )
    if destination.is_dir():
        raise UsageError(f"{destination} is a folder", hint="Name a file in it.")
    if os.path.lexists(destination) and not replace:
        raise UsageError(f"{destination} is there already", hint="Name a new file, or replace it with --force.")


def _is_a_server(name: str, destination: Path) -> UsageError:
    return UsageError(
        f"database {name} is a server's, which backs itself up",
        hint=f"Run: pg_dump --format=custom --file={destination} {server_address(name)}",
    )


def server_address(name: str) -> str:
    """Return a server's database as its own tools take it: no driver in the scheme, and no password."""
    scheme, _, rest = name.partition("://")
    return f"{scheme.partition('+')[0]}://{rest.replace(':***@', '@')}"


def make_backup(database: Database, destination: Path, *, replace: bool) -> Backup:
    """
    Copy the last committed state to `destination`, check the copy, and write its digest beside it.

    The file appears whole or not at all; its digest, for `sha256sum -c`, a moment later.

    Raises:
        UsageError: As `check_destination`.
        IntegrityError: The copy is damaged, so the database is; nothing was left.
        DatabaseError: The database cannot be read, or the file not be written; nothing was left.
    """
    check_destination(database, destination, replace=replace)
    # Without the name of the backup in it: that may be as long as a name can be.
    temporary = destination.with_name(f".modelreg-backup.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        database.copy_to(temporary)
        made = read_backup(temporary)
        _publish(temporary, destination, replace=replace)
    except OSError as error:
        raise DatabaseError(f"{destination} cannot be written: {error.strerror}") from error
    finally:
        with suppress(OSError):
            temporary.unlink()
    _write_digest(destination, made.sha256)
    return Backup(
        path=destination,
        size_bytes=made.size_bytes,
        sha256=made.sha256,
        revision=made.revision,
        events=made.events,
        head=made.head,
    )


def read_backup(path: Path) -> Backup:
    """
    Read all of a backup and return what it is; it is not changed.

    Raises:
        DatabaseError: It is not there, is no database of ours, or of a newer modelreg.
        IntegrityError: It does not match the digest beside it, or is damaged inside.
    """
    if not path.is_file():
        raise DatabaseError(f"there is no backup {path}")
    for suffix in _BESIDE:
        with suppress(OSError):  # none there, or a name too long for one to be there
            if path.with_name(path.name + suffix).stat().st_size:
                raise DatabaseError(
                    f"{path} is no backup but a database in use: {path.name}{suffix} lies beside it",
                    hint="Make a backup of it with `modelreg db backup FILE`.",
                )
    digest = file_digest(path)
    _require_digest(path, digest)
    if not _is_sqlite(path):
        raise DatabaseError(
            f"{path} is no backup: it is no SQLite database", hint="Name a file that `modelreg db backup` made."
        )
    with Database.at_rest(path) as copy:
        revision = copy.revision()
        if revision is None or revision > SCHEMA_REVISION:
            what = "has no registry in it" if revision is None else f"has schema {revision}, made by a newer modelreg"
            raise DatabaseError(f"{path} {what}", hint="Name a file that `modelreg db backup` made.")
        # Rows are decoded by the schema of today; an older one is checked by SQLite alone.
        faults = copy.check(rows=revision == SCHEMA_REVISION)
        with copy.read() as connection:
            chain = events.verify_chain(connection)
    if chain.broken_at is not None:
        faults.append(f"event {chain.broken_at}: {chain.reason}")
    if faults:
        raise IntegrityError(f"{path} is damaged: {faults[0]}", hint="Take another backup.")
    return Backup(
        path=path,
        size_bytes=path.stat().st_size,
        sha256=digest,
        revision=revision,
        events=chain.events,
        head=chain.head,
    )


def _is_sqlite(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def _require_digest(path: Path, digest: str) -> None:
    beside = path.with_name(path.name + DIGEST_SUFFIX)
    try:
        stated = beside.read_text(encoding="ascii", errors="replace").split()
    except FileNotFoundError:
        return
    if not stated or stated[0] != digest:
        raise IntegrityError(
            f"{path} does not match its digest in {beside.name}", hint="It was changed or damaged: take another backup."
        )


def _publish(temporary: Path, destination: Path, *, replace: bool) -> None:
    beside = destination.with_name(destination.name + DIGEST_SUFFIX)
    if replace:
        beside.unlink(missing_ok=True)  # before the file: an old digest must not speak of a new file
        temporary.replace(destination)
    else:
        try:
            os.link(temporary, destination)  # unlike a rename, it fails where somebody was faster
        except FileExistsError:
            raise UsageError(f"{destination} is there already", hint="Name a new file.") from None
        temporary.unlink()
    sync(destination.parent)


def _write_digest(path: Path, digest: str) -> None:
    beside = path.with_name(path.name + DIGEST_SUFFIX)
    try:
        beside.write_text(f"{digest}  {path.name}\n", encoding="utf-8")
        sync(beside)
        sync(beside.parent)
    except OSError as error:
        raise DatabaseError(f"{path} is written, its digest {beside.name} is not: {error.strerror}") from error
