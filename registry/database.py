"""The database: one place where transactions begin, end, and fail.

A writer takes the only write lock before it reads (`BEGIN IMMEDIATE`, on PostgreSQL an advisory lock), so nothing it
has read can change before it commits: no lost update, no retry. Readers see one state from their first query on. What
the two databases do differently is in `sqlite` and `postgresql`.
"""

from __future__ import annotations

import json
import os
import sqlite3
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import sqlalchemy as sa

from modelreg.registry.database_url import is_server
from modelreg.registry.digests import canonical_json
from modelreg.registry.errors import BusyError, DatabaseError, ModelregError, UsageError
from modelreg.registry.revisions import REVISION, check_revision
from modelreg.registry.rows import UnreadableRowError
from modelreg.registry.sqlite import SYNCED, UNSYNCED, SqliteFile, find_damage, find_orphans, translate

if TYPE_CHECKING:
    from modelreg.registry.postgresql import PostgresqlServer

_LONGEST_WAIT_S = 2_000_000.0  # three weeks; both databases count milliseconds in 32 bits
_TOLD = 20  # faults of one kind that `check` names
_BUGS = (sa.exc.IntegrityError, sa.exc.ProgrammingError, sa.exc.DataError)
_inherited: list[object] = []  # pools of a parent process, kept alive: closing them here would disturb it


def sqlite_url(path: Path) -> sa.URL:
    """Return the URL of a database file; unlike a string, it takes any character in the path."""
    return sa.URL.create("sqlite", database=str(path))


class Database:
    """A registry's database; use `read()` and `write()`, one short transaction each.

    Connections are kept for the next transaction of this process, never for a forked child's, and are closed by
    `close()`, at the end of a `with` block, or when the object goes away.
    """

    def __init__(self, url: str | sa.URL, *, timeout_s: float = 30.0, at_rest: bool = False) -> None:
        """
        Name a database; nothing is opened yet.

        Args:
            url: `sqlite:////abs/path/registry.db`, `postgresql://…`, or what `sqlite_url` returns.
            timeout_s: How long a writer waits for another one before `BusyError`.
            at_rest: Whether it is a backup (see `at_rest`).

        Raises:
            UsageError: The URL cannot be read, names no file, or is of another kind of database.
            MissingDependencyError: It names a server, and the driver is not installed.
        """
        self._file: SqliteFile | None = None
        self._server: PostgresqlServer | None = None
        place = _locate(url, timeout_s=min(timeout_s, _LONGEST_WAIT_S), at_rest=at_rest)
        if isinstance(place, SqliteFile):
            self._file, self._engine = place, _open_file(place)
            begin = _begin_sqlite
        else:
            self._server, self._engine = place, place.create_engine(**_JSON)
            begin = place.begin
        self._reader = self._engine.execution_options(modelreg_read=True)
        sa.event.listen(self._engine, "begin", lambda connection: begin(connection, reads=_is_read(connection)))
        self._own()

    @classmethod
    def open(cls, url: str | sa.URL, *, timeout_s: float = 30.0) -> Database:
        """
        Open a database whose schema this program knows.

        Raises:
            SchemaVersionError: Its schema is older or newer than this program.
            DatabaseError: It does not exist, is empty, or cannot be read.
        """
        database = cls(url, timeout_s=timeout_s)
        try:
            check_revision(database.revision(), name=database.name)
        except BaseException:
            database.close()
            raise
        return database

    @classmethod
    def at_rest(cls, path: Path) -> Database:
        """Name a backup, which is read as it lies there; nothing is opened yet, and no revision is asked for."""
        return cls(sqlite_url(path), at_rest=True)

    @property
    def name(self) -> str:
        """Return what messages call it: the file's path, or the URL without its password."""
        return str(self._file.path) if self._file else self._server.name if self._server else ""

    @property
    def path(self) -> Path | None:
        """Return the database file, or None for a server."""
        return self._file.path if self._file else None

    def close(self) -> None:
        """Close all connections; the object may be used again."""
        self._check_fork()
        self._engine.dispose()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """
        Give a connection in a reading transaction: one state, no waiting for writers.

        Raises:
            DatabaseError: The database cannot be read.
            BusyError: A file without a usable log (read-only folder) was changed by somebody else meanwhile.
        """
        self._check_fork()
        with self._translated():
            stamp = self._file.stamp() if self._file else None
            with self._reader.connect() as connection:
                if stamp is not None:
                    connection.detach()  # a connection without locks must not outlive what it has seen
                with connection.begin():
                    yield connection
            if stamp is not None and self._file and self._file.stamp() != stamp:
                raise BusyError(f"database {self.name} was changed while it was read")

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """
        Give a connection in a writing transaction, alone; it commits at the end, or rolls back on any exception.

        Raises:
            BusyError: Another writer kept the lock for the whole timeout; nothing was done.
            DatabaseError: The database cannot be written (read-only, full, damaged); nothing was done.
            CommitUnknownError: A server was lost while it committed, or a disk failed then.
        """
        self._check_fork()
        with self._translated():
            self._require_writable()
            with self._engine.connect() as connection, self._committing(connection):
                yield connection

    @contextmanager
    def write_intent(self) -> Iterator[sa.Connection]:
        """
        Give a connection as `write()` does, for what a power cut may take back: nobody waits for the disk.

        It is there for everybody from the commit on, whoever dies, and becomes durable with the next `write()` at the
        latest. An intent is such a thing: what becomes of it stands in the store (`settling`), which does wait.
        """
        self._check_fork()
        with self._translated():
            self._require_writable()
            with self._engine.connect() as connection:
                raw = _raw(connection) if self._file else None
                if raw is not None:
                    raw.execute(UNSYNCED)  # without effect inside a transaction
                try:
                    with self._committing(connection):
                        if raw is None:
                            connection.exec_driver_sql("SET LOCAL synchronous_commit TO off")
                        yield connection
                finally:
                    if raw is not None:
                        raw.execute(SYNCED)

    @contextmanager
    def migrate(self) -> Iterator[sa.Connection]:
        """
        Give a connection as `write()` does, for changes of the schema: foreign keys are checked at the end only.

        A rebuilt parent table is dropped on the way, which with foreign keys on would delete its children.

        Raises:
            DatabaseError: Rows refer to rows that are not there any more; nothing was changed.
        """
        self._check_fork()
        with self._translated():
            self._require_writable()
            with self._engine.connect() as connection:
                if self._file:
                    connection.detach()  # the setting below must not reach the pool
                    _raw(connection).execute("PRAGMA foreign_keys=OFF")  # without effect inside a transaction
                    _raw(connection).execute("PRAGMA legacy_alter_table=ON")  # else somebody's view stops a rebuild
                with self._committing(connection):
                    yield connection
                    if self._file and (broken := _raw(connection).execute("PRAGMA foreign_key_check").fetchall()):
                        raise DatabaseError(f"{len(broken)} rows of {broken[0][0]} would refer to nothing")

    def revision(self) -> str | None:
        """Return the schema revision, or None where there is no schema; one query."""
        with self.read() as connection:
            try:
                found: str | None = connection.execute(REVISION).scalar()
            except sa.exc.DBAPIError as error:
                if not self._is_missing_table(error.orig):
                    raise
                return None
            return found

    def backup(self, destination: Path) -> None:
        """Copy the last committed state of a database file to `destination`, whole or not at all."""
        with self._copying(destination) as file:
            file.backup(destination)

    def copy_to(self, path: Path) -> None:
        """Copy the last committed state of a database file to a file that is not there, durably."""
        with self._copying(path) as file:
            file.copy_to(path)

    def overwrite_from(self, backup: Path, *, once_locked: Callable[[], None]) -> None:
        """
        Put what a backup holds in the place of what this database file holds, in one transaction.

        Args:
            backup: A file at rest.
            once_locked: Called when nobody else can write any more and nothing is changed yet; may raise.

        Raises:
            DatabaseError: It cannot be written; nothing was changed.
            BusyError: Another writer kept the lock for the whole timeout; nothing was changed.
        """
        self._check_fork()
        with self._copying(self.path or backup) as file:
            self._require_writable()
            file.overwrite_from(backup, once_locked=once_locked)

    @contextmanager
    def _copying(self, destination: Path) -> Iterator[SqliteFile]:
        if self._file is None:
            raise UsageError(f"database {self.name} is no file", hint="Use `pg_dump --format=custom`.")
        try:
            with self._translated():
                yield self._file
        except OSError as error:
            raise DatabaseError(f"{destination} cannot be written: {error.strerror}") from error

    def check(self, *, rows: bool = True) -> list[str]:
        """Return what is wrong inside, an empty list when nothing is; reads all of it, and decodes `rows`."""
        from modelreg.registry.row_check import find_unreadable  # noqa: PLC0415 - no other command needs it

        try:
            with self.read() as connection:
                found = find_damage(_raw(connection), most=_TOLD) if self._file else []
                unreadable = list(islice(find_unreadable(connection), _TOLD)) if rows and not found else []
                orphans = find_orphans(_raw(connection)) if self._file else []  # a server never lets go of its checks
        except DatabaseError as error:
            return [str(error)]
        return found + orphans + unreadable

    @contextmanager
    def _committing(self, connection: sa.Connection) -> Iterator[None]:
        """Begin a transaction, and tell a commit that was lost on the way from one that was refused."""
        is_done = False
        try:
            with connection.begin():
                yield
                if self._server:
                    self._server.require_sound(connection)
                is_done = True
        except sa.exc.DBAPIError as error:
            place = self._server or self._file
            unknown = place.unknown_commit(error.orig or error) if is_done and place else None
            if unknown is None:
                raise
            raise unknown from error

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except UnreadableRowError as error:
            raise DatabaseError(f"database {self.name}: {error}", hint=error.hint()) from error
        except sa.exc.DBAPIError as error:
            meaning = self._meaning(error)
            if meaning is None:
                raise
            raise meaning from error
        except sqlite3.Error as error:
            if self._file is None:
                raise
            raise translate(error, path=self._file.path) from error

    def _meaning(self, error: sa.exc.DBAPIError) -> ModelregError | None:
        """Return what an error means to a user, or None for a fault of ours."""
        if self._file is None:
            assert self._server is not None
            return self._server.meaning(error.orig or error, is_lost=error.connection_invalidated)
        return None if isinstance(error, _BUGS) else translate(error.orig or error, path=self._file.path)

    def _is_missing_table(self, error: BaseException | None) -> bool:
        if self._server:
            return getattr(error, "sqlstate", None) == "42P01"
        return "alembic_version" in str(error)

    def _require_writable(self) -> None:
        if self._file and (obstacle := self._file.obstacle()) and self._file.path.exists():
            raise obstacle

    def _own(self) -> None:
        self._pid = os.getpid()
        self._finalizer = weakref.finalize(self, _dispose, self._engine, self._pid)

    def _check_fork(self) -> None:
        if os.getpid() != self._pid:
            _inherited.append(self._engine.pool)
            self._engine.dispose(close=False)
            self._own()


def insert_row(connection: sa.Connection, statement: sa.Insert, row: Mapping[str, Any]) -> int:
    """Insert one row and return the integer key that the database gave it."""
    key = connection.execute(statement, row).inserted_primary_key
    if key is None:
        raise TypeError(f"{statement.table.name} has no key of its own")
    return int(key[0])


def _locate(url: str | sa.URL, *, timeout_s: float, at_rest: bool) -> SqliteFile | PostgresqlServer:
    if is_server(url) if isinstance(url, str) else url.get_backend_name() != "sqlite":
        from modelreg.registry.postgresql import open_server  # noqa: PLC0415 - no file needs it

        return open_server(url, timeout_s=timeout_s)
    try:
        named = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        raise UsageError("database URL cannot be used") from None
    if named.get_backend_name() != "sqlite" or named.database in {None, "", ":memory:"}:
        raise UsageError("database URL cannot be used: it names no file")
    return SqliteFile(path=Path(str(named.database)).absolute(), timeout_s=timeout_s, at_rest=at_rest)


def _open_file(file: SqliteFile) -> sa.Engine:
    # Every transaction is ended by `read` or `write`: the pool need not roll back a second time.
    return sa.create_engine(
        "sqlite://", creator=file.connect, poolclass=sa.pool.QueuePool, pool_reset_on_return=None, **_JSON
    )


def _is_read(connection: sa.Connection) -> bool:
    return bool(connection.get_execution_options().get("modelreg_read", False))


def _begin_sqlite(connection: sa.Connection, *, reads: bool) -> None:
    _raw(connection).execute("BEGIN" if reads else "BEGIN IMMEDIATE")


def _raw(connection: sa.Connection) -> sqlite3.Connection:
    return cast("sqlite3.Connection", connection.connection.dbapi_connection)


def _to_json(value: Any) -> str:
    return canonical_json(value).decode()


def _from_json(text: str | bytes) -> Any:
    if text == "{}":
        return {}
    return [] if text == "[]" else json.loads(text)


_JSON: dict[str, Any] = {"json_serializer": _to_json, "json_deserializer": _from_json}


def _dispose(engine: sa.Engine, pid: int) -> None:
    if os.getpid() == pid:
        engine.dispose()
