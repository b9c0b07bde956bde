import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import sqlalchemy as sa

from modelreg.registry import schema, versions
from modelreg.registry.database import Database, sqlite_url
from modelreg.registry.errors import BusyError, DatabaseError, SchemaVersionError, UsageError
from modelreg.registry.references import ModelReference
from modelreg.registry.statements import Statement
from modelreg_testing.registry import add_version, make_database, populate, row_counts

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with make_database(tmp_path) as database:
        yield database


def file_of(database: Database) -> Path:
    assert database.path is not None
    return database.path


@contextmanager
def mounted(*arguments: str, at: Path) -> Iterator[None]:
    at.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *arguments, str(at)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mount is not allowed here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True)  # a failed test may still hold a file


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make a folder read-only even for root, by a bind mount over itself."""
    with mounted("--bind", str(folder), at=folder):
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
        yield


def test_every_connection_has_the_settings_that_keep_data_safe(database: Database) -> None:
    wanted = {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "trusted_schema": 0,
        "cell_size_check": 1,
        "busy_timeout": 30000,
    }
    for transaction in (database.read, database.write):
        with transaction() as connection:
            found = {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in wanted}
        assert found == wanted


def test_a_writer_holds_the_lock_before_it_reads(database: Database) -> None:
    with (
        database.write(),
        Database(sqlite_url(file_of(database)), timeout_s=0.05) as other,
        pytest.raises(BusyError, match=r"registry\.db stayed locked by another command") as caught,
        other.write(),
    ):
        raise AssertionError("two writers at once")
    assert caught.value.exit_code == 4


def test_a_reader_neither_waits_nor_sees_what_comes_later(database: Database) -> None:
    with database.write() as connection:
        add_version(connection, word="before")
    with database.read() as reader:
        assert len(versions.list_versions(reader, model="resnet50")) == 1
        with database.write() as writer:
            add_version(writer, word="after")
            assert len(versions.list_versions(reader, model="resnet50")) == 1
        assert len(versions.list_versions(reader, model="resnet50")) == 1
    with database.read() as reader:
        assert len(versions.list_versions(reader, model="resnet50")) == 2


def test_a_writer_waits_for_the_one_before(database: Database) -> None:
    order: list[str] = []

    def second() -> None:
        with database.write() as connection:
            order.append("second")
            add_version(connection, word="second")

    with database.write() as connection:
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.2)
        order.append("first")
        add_version(connection, word="first")
    thread.join(10)
    assert order == ["first", "second"]
    with database.read() as reader:
        assert [one.message for one in versions.list_versions(reader, model="resnet50")] == [
            "source second",
            "source first",
        ]


def test_an_exception_rolls_everything_back_ddl_too(database: Database) -> None:
    def fail() -> None:
        with database.write() as connection:
            add_version(connection)
            connection.exec_driver_sql("CREATE TABLE half (x)")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert set(row_counts(database).values()) == {0}
    with database.read() as connection:
        assert not sa.inspect(connection).has_table("half")


def test_a_savepoint_rolls_back_alone(database: Database) -> None:
    with database.write() as connection:
        add_version(connection, word="kept")
        savepoint = connection.begin_nested()
        add_version(connection, word="dropped")
        savepoint.rollback()
    with database.read() as connection:
        assert [one.message for one in versions.list_versions(connection, model="resnet50")] == ["source kept"]


def test_foreign_keys_bind(database: Database) -> None:
    row = {"version_id": 7, "position": 0, "path": "x", "blob_digest": "0" * 64}
    with database.write() as connection, pytest.raises(sa.exc.IntegrityError, match="FOREIGN KEY"):
        connection.execute(sa.insert(schema.version_file), row)


def test_a_connection_is_reused_and_closed_with_the_database(database: Database) -> None:
    with database.read() as first:
        one = first.connection.dbapi_connection
    with database.write() as second:
        assert second.connection.dbapi_connection is one
    assert file_of(database).with_name("registry.db-wal").exists()
    database.close()
    assert not file_of(database).with_name("registry.db-wal").exists()
    with database.read() as again:
        assert versions.list_models(again) == []


def test_a_forgotten_database_is_closed_when_it_goes_away(tmp_path: Path) -> None:
    database = make_database(tmp_path)
    log = file_of(database).with_name("registry.db-wal")
    with database.write() as connection:
        add_version(connection)
    assert log.exists()
    del database, connection
    assert not log.exists()


def test_a_forked_child_has_connections_of_its_own(database: Database) -> None:
    code = """
import os, sys
from modelreg_testing.registry import add_version
from modelreg.registry.database import Database, sqlite_url
with Database(sqlite_url(sys.argv[1])) as database:
    with database.write() as connection:
        add_version(connection, word="parent")
        before = connection.connection.dbapi_connection
    child = os.fork()
    with database.write() as connection:
        same = connection.connection.dbapi_connection is before
        add_version(connection, word=f"after {bool(child)}")
    if child:
        assert same and os.waitpid(child, 0)[1] == 0
    else:
        assert not same
        database.close()
        sys.exit(0)
    with database.write() as connection:
        add_version(connection, word="last")
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, str(file_of(database))]
    subprocess.run(command, check=True, env=environment, timeout=60)
    with database.read() as connection:
        assert len(versions.list_versions(connection, model="resnet50")) == 4
    assert database.check() == []


# -- schema revisions --------------------------------------------------------------------------------------


def set_revision(database: Database, statement: str) -> sa.URL:
    database.close()
    with sqlite3.connect(file_of(database)) as connection:
        connection.execute(statement)
    connection.close()
    return sqlite_url(file_of(database))


@pytest.mark.parametrize("newer", ["0004", "9999", "abc"])
def test_a_newer_schema_is_refused_with_what_to_do(database: Database, newer: str) -> None:
    url = set_revision(database, f"UPDATE alembic_version SET version_num = '{newer}'")
    with pytest.raises(SchemaVersionError, match=f"has schema {newer}, this modelreg knows 0003") as caught:
        Database.open(url)
    assert "upgrade modelreg" in caught.value.hint()


def test_an_older_schema_is_refused_with_the_command_that_helps(database: Database) -> None:
    url = set_revision(database, "UPDATE alembic_version SET version_num = '0000'")
    with pytest.raises(SchemaVersionError, match="has schema 0000, this modelreg needs 0003") as caught:
        Database.open(url)
    assert caught.value.hint() == "Run `modelreg db upgrade`."


def test_a_refused_database_keeps_no_connection(database: Database) -> None:
    url = set_revision(database, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(SchemaVersionError):
        Database.open(url)
    assert not file_of(database).with_name("registry.db-wal").exists()


# -- URLs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "nonsense", "nosuchdb://host/x", "mysql://h/x"])
def test_a_url_that_cannot_be_used_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError, match=r"database URL cannot be used|is no kind of database"):
        Database(url)


# -- faults ------------------------------------------------------------------------------------------------


def test_a_missing_file_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match="does not exist") as caught:
        Database.open(sqlite_url(tmp_path / "registry.db"))
    assert "modelreg init" in caught.value.hint()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_place_of_the_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match="cannot be opened"):
        Database.open(sqlite_url(tmp_path))


@pytest.mark.parametrize("content", [b"this is no database at all, but long enough to be one " * 100, b"\x00" * 8192])
def test_a_file_that_is_no_database_is_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "registry.db"
    path.write_bytes(content)
    with pytest.raises(DatabaseError) as caught:
        Database.open(sqlite_url(path))
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == content


@pytest.mark.parametrize("change", ["", "DELETE FROM alembic_version", "DROP TABLE alembic_version"])
def test_a_file_without_schema_is_as_bad_as_a_missing_one(database: Database, change: str) -> None:
    database.close()
    path = file_of(database)
    if change:
        with sqlite3.connect(path) as connection:
            connection.execute(change)
        connection.close()
    else:
        path.write_bytes(b"")
    with pytest.raises(DatabaseError, match=r"registry\.db is empty") as caught:
        Database.open(sqlite_url(path))
    assert "Restore its backup" in caught.value.hint()


def test_damage_inside_is_one_line_and_check_tells_it(database: Database) -> None:
    with database.write() as connection:
        for word in range(200):
            add_version(connection, word=word)
    database.close()
    path = file_of(database)
    body = bytearray(path.read_bytes())
    for page in range(4096 * 40, len(body) - 4096, 4096):
        body[page : page + 64] = b"\xff" * 64
    path.write_bytes(body)
    assert database.check()
    with pytest.raises(DatabaseError, match="is damaged") as caught, database.read() as connection:
        versions.list_versions(connection, model="resnet50", limit=1000)
    assert "\n" not in str(caught.value)
    assert "backup" in caught.value.hint()


def test_a_flipped_bit_in_the_name_of_a_table_is_damage(database: Database) -> None:
    database.close()
    path = file_of(database)
    body = bytearray(path.read_bytes())
    body[body.index(b"tableversionversion") + len("table")] ^= 0x80
    path.write_bytes(body)
    with pytest.raises(DatabaseError, match="is damaged: malformed database schema"):
        Database.open(sqlite_url(path))


def test_check_finds_rows_that_refer_to_nothing(database: Database) -> None:
    populate(database)
    assert database.check() == []
    database.close()
    with sqlite3.connect(file_of(database)) as connection:
        connection.execute("DELETE FROM release WHERE id = 1")
    connection.close()
    assert "row 1 of release_engine refers to a missing row of release" in database.check()


@needs_root
def test_a_full_disk_is_named_and_costs_only_the_last_transaction(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    with mounted("-t", "tmpfs", "-o", "size=2m", "tmpfs", at=folder), make_database(folder) as database:
        done: list[int] = []

        def fill() -> None:
            while True:
                with database.write() as connection:
                    numbers = [add_version(connection, word=(len(done), word)).number for word in range(20)]
                done.extend(numbers)

        with pytest.raises(DatabaseError, match=r"registry\.db cannot grow: the disk is full") as caught:
            fill()
        assert "Free some space" in caught.value.hint()
        assert done
        assert row_counts(database)["version"] == len(done)
        assert database.check() == []


@needs_root
@pytest.mark.parametrize(
    ("options", "room", "lack"),
    [("size=1m", 4096, "the disk is full"), ("size=8m,nr_inodes=8", None, "the disk has no inodes left")],
)
def test_a_disk_without_room_for_a_log_is_read_and_named_to_writers(
    tmp_path: Path, options: str, room: int | None, lack: str
) -> None:
    folder = tmp_path / "small"
    with mounted("-t", "tmpfs", "-o", options, "tmpfs", at=folder):
        with make_database(folder) as database:
            populate(database)
            rows = row_counts(database)
        with suppress(OSError):
            for number in range(100):
                (folder / f"other-{number}").write_bytes(b"x" * 16384 if room else b"")
        with Database.open(sqlite_url(folder / "registry.db")) as database:
            assert row_counts(database) == rows
            with pytest.raises(DatabaseError, match=f"cannot grow: {lack}") as caught, database.write():
                raise AssertionError("written")
        assert "Free some space" in caught.value.hint()


@needs_root
@pytest.mark.parametrize("logged", [False, True], ids=["closed", "with a log left by a killed writer"])
def test_a_read_only_home_is_read_and_not_written(tmp_path: Path, logged: bool) -> None:
    home, copy = tmp_path / "home", tmp_path / "copy"
    home.mkdir()
    with make_database(home) as database:
        populate(database)
        rows = row_counts(database)
        shutil.copytree(home, copy)  # while it is open: the file alone has not all rows
    folder = copy if logged else home
    assert (folder / "registry.db-wal").exists() is logged
    before = sorted(entry.name for entry in folder.iterdir())
    with read_only(folder), Database.open(sqlite_url(folder / "registry.db")) as database:
        assert row_counts(database) == rows
        assert database.check() == []
        with database.read() as connection:
            assert versions.get_version(connection, ModelReference(model="resnet50", channel="production")).number == 2
        with pytest.raises(DatabaseError, match="is read-only"), database.write():
            raise AssertionError("written")
        with pytest.raises(DatabaseError, match="is read-only"), database.migrate():
            raise AssertionError("written")
    assert sorted(entry.name for entry in folder.iterdir()) == before


@needs_root
def test_a_log_that_cannot_be_read_is_not_ignored(tmp_path: Path) -> None:
    home, copy = tmp_path / "home", tmp_path / "copy"
    home.mkdir()
    with make_database(home) as database:
        populate(database)
        shutil.copytree(home, copy)
    (copy / "registry.db-shm").unlink()
    with read_only(copy), pytest.raises(DatabaseError, match="changes in its log") as caught:
        Database.open(sqlite_url(copy / "registry.db"))
    assert "permission to write" in caught.value.hint()


@needs_root
def test_a_reader_without_locks_notices_a_writer(tmp_path: Path) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    home.mkdir()
    make_database(home).close()
    with mounted("--bind", str(home), at=other):
        subprocess.run(["mount", "-o", "remount,ro,bind", str(other)], check=True)
        reader, writer = Database(sqlite_url(other / "registry.db")), Database(sqlite_url(home / "registry.db"))

        def read_while_somebody_writes() -> None:
            with reader.read() as connection, writer:
                assert versions.list_models(connection) == []
                with writer.write() as writing:
                    add_version(writing)

        with pytest.raises(BusyError, match="was changed while it was read"):
            read_while_somebody_writes()
        with reader, reader.read() as connection:
            assert len(versions.list_models(connection)) == 1


def test_a_backup_is_a_whole_database_with_what_was_committed_last(database: Database, tmp_path: Path) -> None:
    populate(database)
    rows = row_counts(database)
    copy = tmp_path / "copy.db"
    with database.write() as connection:
        add_version(connection, word="not committed yet")
        database.backup(copy)
    assert sorted(path.name for path in tmp_path.glob("copy*")) == ["copy.db"]
    with Database.open(sqlite_url(copy)) as restored:
        assert row_counts(restored) == rows
        assert restored.check() == []


def test_a_backup_to_nowhere_is_one_line(database: Database, tmp_path: Path) -> None:
    with pytest.raises(DatabaseError):
        database.backup(tmp_path / "missing" / "copy.db")


# -- what it costs to import -------------------------------------------------------------------------------


def test_reading_and_writing_import_neither_the_orm_nor_alembic_nor_another_dialect(database: Database) -> None:
    code = """
import sys
from modelreg.registry import blobs, engines, events, releases, validations, versions
from modelreg.registry.database import Database, sqlite_url
with Database.open(sqlite_url(sys.argv[1])) as database:
    with database.read() as connection:
        versions.list_models(connection)
        events.verify_chain(connection)
    with database.write() as connection:
        events.append_event(connection, kind="x", subject="x", details={}, actor="x")
print("\\n".join(sys.modules))
"""
    command = [sys.executable, "-c", code, str(file_of(database))]
    loaded = set(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.split())
    unwanted = {"sqlalchemy.orm", "alembic", "sqlalchemy.dialects.postgresql", "numpy", "onnx", "ctypes", "difflib"}
    assert "modelreg.registry.database" in loaded
    assert not loaded & unwanted


@pytest.mark.parametrize(
    "name", ["blobs", "engines", "events", "operations", "releases", "validations", "version_rows", "versions"]
)
def test_every_statement_compiles_for_postgresql(name: str) -> None:
    import importlib

    statements = {
        key: value
        for key, value in vars(importlib.import_module(f"modelreg.registry.{name}")).items()
        if isinstance(value, sa.ClauseElement | Statement) and not isinstance(value, sa.Table | sa.TextClause)
    }
    assert len(statements) >= 2
    for key, statement in statements.items():
        element = statement.element if isinstance(statement, Statement) else statement
        assert str(element.compile(dialect=sa.URL.create("postgresql").get_dialect()())), key


def test_an_intent_is_there_for_everybody_at_once_and_waits_for_no_disk(tmp_path: Path) -> None:
    with make_database(tmp_path) as database, make_reader(tmp_path) as other:
        with database.write_intent() as connection:
            assert synchronous(connection) == 1
            add_version(connection, word="intent")
        with other.read() as connection:
            assert versions.list_models(connection)
        with database.write() as connection:
            assert synchronous(connection) == 2
        with pytest.raises(ZeroDivisionError):
            take_back(database)
        with database.write() as connection:
            assert synchronous(connection) == 2
            assert [model.newest for model in versions.list_models(connection)] == [1]


def take_back(database: Database) -> None:
    with database.write_intent() as connection:
        add_version(connection, word="taken back")
        raise ZeroDivisionError


def make_reader(folder: Path) -> Database:
    return Database.open(sqlite_url(folder / "registry.db"))


def synchronous(connection: sa.Connection) -> int:
    found: int = connection.exec_driver_sql("PRAGMA synchronous").scalar_one()
    return found
