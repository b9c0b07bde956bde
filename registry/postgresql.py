"""PostgreSQL alone: how a server is reached, how transactions begin, what its errors mean. No other module knows it.

Imported only where a database is on a server.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from modelreg.registry.database_url import SERVER_SCHEMES, check_database_url, mask_secrets
from modelreg.registry.errors import (
    BusyError,
    CommitUnknownError,
    DatabaseError,
    MissingDependencyError,
    ModelregError,
    UsageError,
)

_WRITER_LOCK = 7_021_936_551_240  # an advisory lock: any number, the same for every modelreg
_DRIVER = "postgresql+psycopg"
_OLDEST = 140_000  # the oldest that its authors still maintained when this was written
_WRITE = """\
SET TRANSACTION ISOLATION LEVEL READ COMMITTED READ WRITE;
SET LOCAL lock_timeout = {timeout_ms};
SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off';
SELECT pg_advisory_xact_lock({lock})"""
_READ = """\
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY;
SET LOCAL lock_timeout = {timeout_ms}"""
_DEFAULTS = {
    "connect_timeout": "10",
    "application_name": "modelreg",
    # A server that is switched off answers nothing: without these, a command would wait for it for two hours.
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}

_AWAY_HINT = "Check that the server runs and that this host may reach it; `which`, `pull` and `rollback` work without."
_LOGIN_HINT = "Check user and password: in the URL, in ~/.pgpass, or in PGUSER and PGPASSWORD."
_MAKE_HINT = "Make it on the server (`createdb --encoding UTF8 NAME`), then run `modelreg init`."
_GRANT_HINT = "Make the user the owner of the database and its tables, or grant it what it lacks."
_PRIMARY_HINT = "It may be a standby: name the primary in database.url."

_BY_STATE: dict[str, tuple[type[ModelregError], str, str | None]] = {
    "40001": (BusyError, "was changed by another command meanwhile", None),
    "40P01": (BusyError, "is in use by another command that waits for this one", None),
    "55P03": (BusyError, "stayed locked by another command", None),
    "53300": (BusyError, "has no connection free", "Try again, or raise max_connections on the server."),
    "53100": (DatabaseError, "cannot grow: the server's disk is full", "Free some space and run the command again."),
    "57014": (DatabaseError, "stopped the query: it took longer than the server allows", "Raise statement_timeout."),
    "25006": (DatabaseError, "is read-only", _PRIMARY_HINT),
    "42501": (DatabaseError, "refuses this user", _GRANT_HINT),
    "3F000": (DatabaseError, "has no schema that this user may use", _GRANT_HINT),
    "42P01": (DatabaseError, "lacks a table", "Somebody removed it: restore a backup (docs/databases.md)."),
    "42703": (DatabaseError, "lacks a column", "Somebody changed a table: restore a backup (docs/databases.md)."),
    "22001": (DatabaseError, "takes no text as long as one that was given", "Shorten it."),
    "22003": (DatabaseError, "takes no number as large as one that was given", ""),
    "22021": (DatabaseError, "takes no text with the characters that were given", ""),
    "28P01": (DatabaseError, "refuses the login", _LOGIN_HINT),
    "28000": (DatabaseError, "refuses the login", _LOGIN_HINT),
    "3D000": (DatabaseError, "does not exist", _MAKE_HINT),
}
"""What a state of the SQL standard means: the class, what the database does, and what to do about it."""

_BY_TEXT = (
    ("password authentication failed", "28P01"),
    ("no password supplied", "28P01"),
    (r"pg_hba\.conf", "28000"),
    (r'database ".*" does not exist', "3D000"),
    (r'role ".*" does not exist', "28000"),
    ("too many clients", "53300"),
    ("connection slots are reserved", "53300"),
    ("too many connections", "53300"),
)
"""The driver tells no state where a connection was refused; in English it can be told by its words."""

_LOST_CLASSES = ("08", "57P")


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresqlServer:
    """A database on a server, and how long to wait for its lock."""

    url: sa.URL
    timeout_s: float

    @property
    def name(self) -> str:
        """Return what messages call it: without password, and without settings of the connection."""
        return self.url.set(drivername="postgresql", query={}).render_as_string(hide_password=True)

    def create_engine(self, **shared: Any) -> sa.Engine:
        """
        Return the engine; nothing is connected yet.

        Raises:
            MissingDependencyError: psycopg is not installed, or has no libpq.
        """
        try:
            engine = sa.create_engine(
                self.url,
                connect_args={**_missing_defaults(self.url), "prepare_threshold": None},  # for poolers like PgBouncer
                pool_pre_ping=True,  # a build lasts longer than a firewall keeps an idle connection
                use_native_hstore=False,
                **shared,
            )
        except ImportError:
            raise MissingDependencyError("psycopg", extra="postgresql") from None
        sa.event.listen(engine, "connect", self._examine)
        return engine

    def begin(self, connection: sa.Connection, *, reads: bool) -> None:
        """Take the writers' lock before anything is read, or fix what is read; both wait for `timeout_s` at most.

        Defaults of a role or a database (isolation, commit without waiting for the disk) must not reach either.
        """
        text = _READ if reads else _WRITE
        connection.exec_driver_sql(text.format(timeout_ms=max(1, round(self.timeout_s * 1000)), lock=_WRITER_LOCK))

    def require_sound(self, connection: sa.Connection) -> None:
        """
        Let a transaction pass that can be committed: the server takes back one with a failed statement, without a word.

        Raises:
            RuntimeError: Somebody has caught the error of a statement and went on.
        """
        raw: Any = connection.connection.dbapi_connection
        if raw.info.transaction_status.name == "INERROR":
            raise RuntimeError("a statement of this transaction has failed: nothing of it can be kept")

    def meaning(self, error: BaseException, *, is_lost: bool = False) -> ModelregError | None:
        """Return what an error of the driver means to a user, in one line, or None for a fault of ours."""
        told = self._told(error)
        state = getattr(error, "sqlstate", None) or _guess_state(told)
        if state in _BY_STATE:
            kind, meaning, hint = _BY_STATE[state]
            detail = f": {told}" if kind is DatabaseError else ""
            return kind(f"database {self.name} {meaning}{detail}", hint=hint)
        if is_lost or state.startswith(_LOST_CLASSES):
            return DatabaseError(f"database {self.name}: the connection was lost: {told}", hint=_AWAY_HINT)
        if state:
            return None
        if type(error).__name__ == "DataError":  # the driver's own: text with a NUL
            return DatabaseError(f"database {self.name} cannot keep what was given: {told}")
        return DatabaseError(f"database {self.name} cannot be reached: {told}", hint=_AWAY_HINT)

    def unknown_commit(self, error: BaseException) -> CommitUnknownError | None:
        """Return what to say of a commit that ended so, or None where the server has refused it."""
        state = getattr(error, "sqlstate", None)
        is_lost = type(error).__name__ == "OperationalError" if state is None else state.startswith(_LOST_CLASSES)
        if not is_lost:
            return None
        return CommitUnknownError(
            f"database {self.name}: the connection was lost while a change was committed: {self._told(error)}"
        )

    def _told(self, error: BaseException) -> str:
        """Return the driver's words in one line, of several the last: it tried one address after the other."""
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        failed = [line for line in lines if "failed:" in line] or lines[:1]
        told = failed[-1].rpartition("failed: ")[2] if failed else type(error).__name__
        told = told.removeprefix("FATAL: ").strip()
        password = self.url.password
        return told.replace(str(password), "***") if password else told

    def _examine(self, raw: Any, _record: object) -> None:
        """Look at a new connection; what is asked came with the greeting."""
        fault = ""
        if raw.info.server_version < _OLDEST:
            found = raw.info.parameter_status("server_version") or raw.info.server_version
            fault = f"is on PostgreSQL {found}, {_OLDEST // 10_000} or newer is needed"
        elif (encoding := raw.info.parameter_status("server_encoding")) != "UTF8":
            fault = f"has the encoding {encoding}, UTF8 is needed"
        if fault:
            raw.close()
            raise DatabaseError(f"database {self.name} {fault}", hint="Use another server or database.")


def open_server(url: str | sa.URL, *, timeout_s: float) -> PostgresqlServer:
    """
    Return the server that a URL names.

    Raises:
        UsageError: It cannot be read; its password is not repeated.
    """
    made = _parse(check_database_url(url)) if isinstance(url, str) else url
    if not made.drivername.startswith("postgresql"):
        raise UsageError(f"{made.drivername!r} is no kind of database")
    return PostgresqlServer(url=made.set(drivername=_DRIVER), timeout_s=timeout_s)


def _parse(url: str) -> sa.URL:
    scheme = next((each for each in SERVER_SCHEMES if url.startswith(each)), "")
    try:
        return sa.make_url(_DRIVER + "://" + url.removeprefix(scheme))
    except (sa.exc.ArgumentError, ValueError):
        raise UsageError(f"the database's URL {mask_secrets(url)[:200]} cannot be read") from None


def _missing_defaults(url: sa.URL) -> dict[str, str]:
    return {name: value for name, value in _DEFAULTS.items() if name not in url.query}


def _guess_state(told: str) -> str:
    return next((state for pattern, state in _BY_TEXT if re.search(pattern, told)), "")
