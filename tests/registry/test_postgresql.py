"""What a server does to a registry that a file does not: logins, lost connections, settings of others, old versions."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from modelreg.migrations.runner import create_database
from modelreg.registry import postgresql, versions
from modelreg.registry.clock import utc_now
from modelreg.registry.database import Database
from modelreg.registry.errors import (
    BusyError,
    CommitUnknownError,
    DatabaseError,
    MissingDependencyError,
    ModelregError,
    UsageError,
)
from modelreg.registry.schema import model
from modelreg_testing.postgresql import PASSWORD, QUOTED, PostgresServer
from modelreg_testing.registry import add_version, populate, row_counts, url_of


@pytest.fixture
def registry(postgres: PostgresServer) -> Iterator[Database]:
    with postgres.registry() as database:
        yield database


@pytest.fixture
def server(postgres: PostgresServer) -> Iterator[PostgresServer]:
    """A database of its own, with the newest schema, whose settings a test may change."""
    with postgres.new_database(template=postgres.template) as server:
        yield server


def failure(url: str, *, timeout_s: float = 30.0) -> ModelregError:
    """Return how opening fails; it is one line, and says nothing of the password."""
    with pytest.raises(ModelregError) as caught:
        Database.open(url, timeout_s=timeout_s)
    told = f"{caught.value} {caught.value.hint()}"
    assert "\n" not in told
    assert PASSWORD not in told
    assert QUOTED not in told
    return caught.value


# -- names and drivers -------------------------------------------------------------------------------------


def test_a_server_is_named_without_its_password_and_its_settings(postgres: PostgresServer) -> None:
    with Database(postgres.url + "?connect_timeout=3&application_name=x") as database:
        assert database.name == postgres.shown
        assert database.path is None
        with pytest.raises(UsageError, match="is no file") as caught:
            database.backup(Path("x"))
        assert "pg_dump" in caught.value.hint()


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_every_usual_spelling_is_the_same_server(server: PostgresServer, scheme: str) -> None:
    with Database.open(server.url.replace("postgresql", scheme, 1)) as database:
        assert database.name == server.shown
    with Database.open(sa.make_url(server.url)) as database:
        assert database.name == server.shown


def test_a_url_object_of_another_kind_is_refused() -> None:
    with pytest.raises(UsageError, match="'mysql' is no kind of database"):
        Database(sa.URL.create("mysql", host="db"))


@pytest.mark.parametrize("url", ["postgresql://db:port/models", "postgresql://[::1/models"])
def test_a_url_that_cannot_be_read_is_one_line(url: str) -> None:
    with pytest.raises(UsageError, match=r"the database's URL postgresql://.* cannot be read"):
        Database(url)


def test_without_the_driver_the_extra_is_named(postgres: PostgresServer) -> None:
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from modelreg.registry.database import Database\n"
        "from modelreg.registry.errors import MissingDependencyError\n"
        "try: Database(sys.argv[1])\n"
        "except MissingDependencyError as error: print(error, error.hint())"
    )
    done = subprocess.run([sys.executable, "-c", code, postgres.url], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("psycopg is not installed Install it with: pip install")
    assert "modelreg[postgresql]" in done.stdout
    assert issubclass(MissingDependencyError, ModelregError)


def test_two_registries_in_schemas_of_one_database_know_nothing_of_each_other(postgres: PostgresServer) -> None:
    with postgres.new_database() as server:
        urls = []
        for name in ("models", "other"):
            server.execute(f"CREATE SCHEMA {name}")
            urls.append(f"{server.url}?options=-csearch_path%3D{name}")
            assert create_database(urls[-1]).is_change
        with Database.open(urls[0]) as one, Database.open(urls[1]) as other:
            populate(one)
            assert row_counts(one)["version"] == 4
            assert set(row_counts(other).values()) == {0}
        assert server.execute("SELECT count(*) FROM information_schema.tables WHERE table_schema = 'public'") == [(0,)]


# -- what cannot be reached --------------------------------------------------------------------------------


def test_a_wrong_password_is_refused_in_one_line(server: PostgresServer) -> None:
    wrong = failure(server.url.replace(QUOTED, "wrong"))
    assert str(wrong).startswith(f"database {server.shown} refuses the login: ")
    assert "wrong" not in str(wrong)
    assert "~/.pgpass" in wrong.hint()


def test_no_password_where_one_is_needed_is_refused_in_one_line(server: PostgresServer) -> None:
    assert "refuses the login" in str(failure(server.url.replace(f":{QUOTED}", "")))


def test_a_user_that_does_not_exist_is_refused_in_one_line(server: PostgresServer) -> None:
    assert "refuses the login" in str(failure(server.url.replace("//modelreg:", "//nobody:")))


def test_a_database_that_does_not_exist_is_said_with_how_to_make_it(postgres: PostgresServer) -> None:
    missing = failure(postgres.on("missing").url)
    assert str(missing).startswith(f"database {postgres.on('missing').shown} does not exist: ")
    assert "createdb" in missing.hint()
    assert missing.exit_code == 1


def test_a_server_that_is_down_is_one_line_at_once(postgres: PostgresServer) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        away = failure(postgres.url.replace(f":{postgres.port}/", f":{free.getsockname()[1]}/"))
    assert "cannot be reached" in str(away)
    assert "refused" in str(away)
    assert "`which`, `pull` and `rollback` work without" in away.hint()


def test_of_several_addresses_the_last_answer_is_told_in_one_line() -> None:
    away = failure("postgresql://ada@/models?host=127.0.0.1:1&host=localhost:1")
    assert str(away).endswith("cannot be reached: Connection refused")


def test_a_certificate_that_is_missing_is_not_taken_for_a_missing_database() -> None:
    """The words are libpq's; the server of these tests knows no TLS."""
    server = postgresql.open_server("postgresql://ada:secret@db/models", timeout_s=1)
    told = (
        'connection failed: connection to server at "db", port 5432 failed: root certificate file "/x" does not exist\n'
    )
    meaning = server.meaning(psycopg.OperationalError(told + "Either provide the file, or change sslmode."))
    assert str(meaning).endswith('@db/models cannot be reached: root certificate file "/x" does not exist')


def test_a_host_without_a_name_is_one_line() -> None:
    assert "cannot be reached" in str(failure("postgresql://ada@nosuchhost.invalid/models"))


def test_what_answers_but_is_no_postgresql_ends_after_the_timeout() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"postgresql://ada@127.0.0.1:{silent.getsockname()[1]}/models?connect_timeout=2"
        assert "cannot be reached" in str(failure(url))


def test_an_empty_database_is_told_from_one_that_may_not_be_read(postgres: PostgresServer) -> None:
    with postgres.new_database() as empty:
        assert str(failure(empty.url)) == f"database {empty.shown} is empty"
        empty.execute("CREATE ROLE guest LOGIN PASSWORD 'guest'")
        try:
            empty.execute("CREATE TABLE alembic_version (version_num text)")
            url = empty.url.replace(f"modelreg:{QUOTED}", "guest:guest")
            refused = failure(url)
            assert "refuses this user: permission denied for table alembic_version" in str(refused)
            assert "owner" in refused.hint()
        finally:
            empty.execute("DROP ROLE guest")


def test_an_older_server_is_refused_by_its_version(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    found = server.execute("SHOW server_version")[0][0].split()[0]
    monkeypatch.setattr(postgresql, "_OLDEST", 990_000)
    assert f"is on PostgreSQL {found}" in str(failure(server.url))
    assert "99 or newer is needed" in str(failure(server.url))


def test_a_database_of_another_encoding_is_refused(postgres: PostgresServer) -> None:
    postgres.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
    try:
        assert "has the encoding LATIN1, UTF8 is needed" in str(failure(postgres.on("latin").url))
    finally:
        postgres.execute("DROP DATABASE latin WITH (FORCE)")


def test_a_server_without_a_free_connection_is_busy(server: PostgresServer) -> None:
    server.execute("CREATE ROLE narrow LOGIN PASSWORD 'x' CONNECTION LIMIT 0")
    try:
        busy = failure(server.url.replace(f"modelreg:{QUOTED}", "narrow:x"))
    finally:
        server.execute("DROP ROLE narrow")
    assert isinstance(busy, BusyError)
    assert "has no connection free" in str(busy)
    assert busy.exit_code == 4


# -- transactions ------------------------------------------------------------------------------------------


def test_a_writer_waits_for_another_one_only_so_long(server: PostgresServer) -> None:
    with (
        Database(server.url) as database,
        database.write(),
        Database(server.url, timeout_s=0.05) as other,
        pytest.raises(BusyError, match="stayed locked by another command") as caught,
        other.write(),
    ):
        raise AssertionError("two writers at once")
    assert caught.value.exit_code == 4


def test_a_writer_sees_what_the_one_before_has_written_whatever_is_set(server: PostgresServer) -> None:
    """With a snapshot from before the wait, which these defaults ask for, it would count from an old number."""
    alter = f"ALTER DATABASE {server.database} SET"
    server.execute(f"{alter} default_transaction_isolation = 'repeatable read'")
    server.execute(f"{alter} synchronous_commit = off")
    server.execute(f"{alter} default_transaction_read_only = on")
    with Database.open(server.url) as database:

        def second() -> None:
            with database.write() as connection:
                add_version(connection, word="second")

        with database.write() as connection:
            assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
            thread = threading.Thread(target=second)
            thread.start()
            wait_until_somebody_waits(server)
            add_version(connection, word="first")
        thread.join(30)
        with database.read() as connection:
            found = [(one.number, one.message) for one in versions.list_versions(connection, model="resnet50")]
    assert found == [(2, "source second"), (1, "source first")]


def wait_until_somebody_waits(server: PostgresServer) -> None:
    deadline = time.monotonic() + 30
    query = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{server.database}' AND wait_event_type = 'Lock'"
    while server.execute(query) == [(0,)] and time.monotonic() < deadline:
        time.sleep(0.01)


def test_a_stricter_wish_for_durability_is_kept(server: PostgresServer) -> None:
    server.execute(f"ALTER DATABASE {server.database} SET synchronous_commit = remote_apply")
    with Database.open(server.url) as database, database.write() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "remote_apply"


def test_a_reader_can_write_nothing(registry: Database) -> None:
    with pytest.raises(DatabaseError, match="is read-only"), registry.read() as connection:
        add_version(connection)


def test_a_reader_neither_waits_nor_sees_what_comes_later(registry: Database) -> None:
    with registry.read() as reader:
        assert versions.list_models(reader) == []
        with registry.write() as writer:
            add_version(writer)
        assert versions.list_models(reader) == []
    with registry.read() as reader:
        assert len(versions.list_models(reader)) == 1


def test_a_transaction_with_a_failed_statement_is_never_taken_for_a_commit(registry: Database) -> None:
    def go_on_regardless() -> None:
        with registry.write() as connection:
            add_version(connection)
            with pytest.raises(sa.exc.DBAPIError):
                connection.exec_driver_sql("SELECT 1 / 0")

    with pytest.raises(RuntimeError, match="nothing of it can be kept"):
        go_on_regardless()
    with registry.read() as connection:
        assert versions.list_models(connection) == []


@pytest.mark.parametrize(
    ("values", "fact"),
    [
        ({"name": "x" * 200}, "takes no text as long as one that was given: value too long for type"),
        ({"next_version": 1 << 40}, "takes no number as large as one that was given"),
        ({"created_by": "a\0b"}, r"cannot keep what was given: .*NUL"),
    ],
)
def test_what_no_column_can_hold_is_one_line(registry: Database, values: dict[str, object], fact: str) -> None:
    row = {"name": "net", "next_version": 1, "created_at": utc_now(), "created_by": "x", **values}
    with pytest.raises(DatabaseError, match=fact), registry.write() as connection:
        connection.execute(sa.insert(model), row)


def test_a_query_that_the_server_stopped_is_one_line(registry: Database) -> None:
    with pytest.raises(DatabaseError, match="took longer than the server allows"), registry.read() as connection:
        connection.exec_driver_sql("SET LOCAL statement_timeout = 10; SELECT pg_sleep(30)")


@pytest.mark.slow
def test_every_row_is_read_when_a_registry_is_checked(registry: Database) -> None:
    populate(registry)
    assert registry.check() == []
    with registry.write() as connection:
        connection.exec_driver_sql("UPDATE engine SET precision = 'fp99' WHERE id = 1")
        connection.exec_driver_sql("UPDATE version SET tags = '[1]' WHERE id = 2")
    assert registry.check() == [
        "row 2 of version: tags cannot be read: [1] is no JSON object",
        "row 1 of engine: precision cannot be read: 'fp99' is not a valid Precision",
    ]


# -- lost connections --------------------------------------------------------------------------------------


def kill_others(connection: sa.Connection, postgres: PostgresServer) -> None:
    """End the session of a connection from outside, as an administrator or a restart does."""
    pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
    postgres.execute(f"SELECT pg_terminate_backend({pid}, 5000)")


def test_a_connection_that_is_lost_half_way_leaves_nothing_and_the_next_one_works(
    registry: Database, postgres: PostgresServer
) -> None:
    def lose() -> None:
        with registry.write() as connection:
            add_version(connection)
            kill_others(connection, postgres)
            add_version(connection, word="more")

    with pytest.raises(DatabaseError, match="the connection was lost") as caught:
        lose()
    assert type(caught.value) is DatabaseError
    assert "\n" not in str(caught.value)
    with registry.write() as connection:
        assert versions.list_models(connection) == []
        add_version(connection)


def test_a_reader_that_loses_its_connection_says_so(registry: Database, postgres: PostgresServer) -> None:
    def lose() -> None:
        with registry.read() as connection:
            kill_others(connection, postgres)
            versions.list_models(connection)

    with pytest.raises(DatabaseError, match="the connection was lost"):
        lose()


def test_a_commit_whose_answer_is_lost_is_unknown_and_not_failed(registry: Database, postgres: PostgresServer) -> None:
    def lose() -> None:
        with registry.write() as connection:
            add_version(connection)
            kill_others(connection, postgres)

    with pytest.raises(CommitUnknownError, match="lost while a change was committed") as caught:
        lose()
    assert caught.value.exit_code == 5
    assert isinstance(caught.value, DatabaseError)
    assert "run the command again" in caught.value.hint()


def test_an_idle_connection_that_was_cut_is_replaced(registry: Database, postgres: PostgresServer) -> None:
    with registry.read() as connection:
        pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
    postgres.execute(f"SELECT pg_terminate_backend({pid}, 5000)")
    with registry.write() as connection:
        add_version(connection)


def test_a_forked_child_has_connections_of_its_own(server: PostgresServer) -> None:
    code = """
import os, sys
from modelreg_testing.registry import add_version
from modelreg.registry.clock import utc_now
from modelreg.registry.database import Database
with Database(sys.argv[1]) as database:
    with database.write() as connection:
        add_version(connection, word="parent")
        before = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
    child = os.fork()
    with database.write() as connection:
        same = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar() == before
        add_version(connection, word=f"after {bool(child)}")
    if not child:
        assert not same
        database.close()
        os._exit(0)
    assert same and os.waitpid(child, 0)[1] == 0
    with database.write() as connection:
        add_version(connection, word="last")
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, server.url]
    subprocess.run(command, check=True, env=environment, timeout=60)
    with Database.open(server.url) as database, database.read() as connection:
        assert len(versions.list_versions(connection, model="resnet50")) == 4


@pytest.mark.parametrize("timeout_s", [1e8, 1e300])
def test_a_wait_longer_than_a_server_can_count_is_the_longest_that_it_can(
    postgres: PostgresServer, timeout_s: float
) -> None:
    with postgres.registry() as database, Database.open(url_of(database), timeout_s=timeout_s) as patient:
        for use in (patient.read, patient.write):
            with use() as connection:
                assert connection.exec_driver_sql("SELECT 1").scalar() == 1
