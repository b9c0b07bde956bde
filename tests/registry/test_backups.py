from __future__ import annotations

import hashlib
import sqlite3
import threading
from pathlib import Path

import pytest

from modelreg.registry.backups import check_destination, make_backup, read_backup, require_file
from modelreg.registry.database import Database, sqlite_url
from modelreg.registry.errors import DatabaseError, IntegrityError, ModelregError, UsageError
from modelreg_testing.registry import add_version, make_database, populate, row_counts


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def changes(database: Database, word: object) -> None:
    with database.write() as connection:
        add_version(connection, word=word)


def test_a_backup_is_what_was_committed_with_its_digest_beside_it(in_memory: Path) -> None:
    file = in_memory / "backup.db"
    with make_database(in_memory) as database:
        populate(database)
        made = make_backup(database, file, replace=False)
        with Database.at_rest(file) as copy:
            assert row_counts(copy) == row_counts(database)
    assert made.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert (in_memory / "backup.db.sha256").read_text() == f"{made.sha256}  backup.db\n"
    assert read_backup(file) == made
    assert made.events > 10
    assert names(in_memory) == ["backup.db", "backup.db.sha256", "registry.db"]


def test_reading_a_backup_changes_nothing_of_it(in_memory: Path) -> None:
    file = in_memory / "backup.db"
    with make_database(in_memory) as database:
        make_backup(database, file, replace=False)
    before = (file.read_bytes(), file.stat().st_mtime_ns, names(in_memory))
    file.chmod(0o444)
    read_backup(file)
    assert (file.read_bytes(), file.stat().st_mtime_ns, names(in_memory)) == before


def test_a_backup_while_others_write_is_whole_and_holds_nobody_up(in_memory: Path) -> None:
    done = threading.Event()
    with make_database(in_memory) as database:
        changes(database, "first")

        def write() -> None:
            with Database.open(sqlite_url(in_memory / "registry.db")) as other:
                for word in range(1000):
                    changes(other, word)
                    if done.is_set():
                        return

        writer = threading.Thread(target=write)
        writer.start()
        try:
            made = [make_backup(database, in_memory / f"{number}.db", replace=False) for number in range(5)]
        finally:
            done.set()
            writer.join()
        assert [backup.events for backup in made] == sorted(backup.events for backup in made)
        for backup in made:
            assert read_backup(backup.path) == backup


def test_what_is_in_the_log_is_in_the_backup(in_memory: Path) -> None:
    """A copy of the file alone would lack it."""
    with make_database(in_memory) as database:
        changes(database, 1)
        log = in_memory / "registry.db-wal"
        assert log.stat().st_size > 0
        assert make_backup(database, in_memory / "b.db", replace=False).events == 1


def test_a_file_that_is_there_is_not_replaced_unless_told(in_memory: Path) -> None:
    file = in_memory / "b.db"
    with make_database(in_memory) as database:
        first = make_backup(database, file, replace=False)
        changes(database, 1)
        with pytest.raises(UsageError, match="is there already"):
            make_backup(database, file, replace=False)
        assert read_backup(file) == first
        second = make_backup(database, file, replace=True)
        assert second.sha256 != first.sha256
        assert read_backup(file) == second


@pytest.mark.parametrize("name", ["registry.db", "registry.db-wal", "missing/b.db", "."])
def test_a_backup_has_a_file_of_its_own(in_memory: Path, name: str) -> None:
    with make_database(in_memory) as database, pytest.raises(UsageError):
        check_destination(database, in_memory / name, replace=True)


def test_a_server_backs_itself_up() -> None:
    with pytest.raises(UsageError, match="server's") as refused:
        require_file("postgresql+psycopg://ada:secret@db.example/models", Path("b.db"))
    assert "pg_dump --format=custom --file=b.db postgresql://ada@db.example/models" in refused.value.hint()
    require_file("sqlite:////tmp/registry.db", Path("b.db"))


def test_a_damaged_database_gives_no_backup(in_memory: Path) -> None:
    with make_database(in_memory) as database:
        populate(database)
    with sqlite3.connect(in_memory / "registry.db") as raw:
        raw.execute("UPDATE event SET actor = 'somebody else' WHERE sequence = 3")
    raw.close()
    database = Database.open(sqlite_url(in_memory / "registry.db"))
    with database, pytest.raises(IntegrityError, match="event 3"):
        make_backup(database, in_memory / "b.db", replace=False)
    assert not list(in_memory.glob("*b.db*"))


@pytest.mark.parametrize("offset", range(0, 172_000, 9_973))
def test_a_flipped_bit_in_a_backup_is_found(in_memory: Path, offset: int) -> None:
    file = in_memory / "b.db"
    with make_database(in_memory) as database:
        make_backup(database, file, replace=False)
    data = bytearray(file.read_bytes())
    data[offset % len(data)] ^= 1
    file.write_bytes(data)
    with pytest.raises(IntegrityError, match="does not match its digest"):
        read_backup(file)


def test_what_is_no_backup_is_told(in_memory: Path) -> None:
    with pytest.raises(DatabaseError, match="there is no backup"):
        read_backup(in_memory / "nothing")
    text = in_memory / "text"
    text.write_text("no database at all, but long enough to look at: " * 100)
    with pytest.raises(ModelregError, match="is no SQLite database"):
        read_backup(text)
    other = in_memory / "other.db"
    with sqlite3.connect(other) as raw:
        raw.execute("CREATE TABLE t (a)")
    raw.close()
    with pytest.raises(DatabaseError, match="has no registry in it"):
        read_backup(other)
    with make_database(in_memory) as database:
        changes(database, 1)
        with pytest.raises(DatabaseError, match="a database in use"):
            read_backup(in_memory / "registry.db")


def test_a_backup_of_a_newer_modelreg_is_not_read(in_memory: Path) -> None:
    with make_database(in_memory, name="b.db"):
        pass
    with sqlite3.connect(in_memory / "b.db") as raw:
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
    raw.close()
    with pytest.raises(DatabaseError, match="newer modelreg"):
        read_backup(in_memory / "b.db")


@pytest.mark.parametrize(("length", "works"), [(247, True), (248, False), (255, False), (300, False)])
def test_a_backup_may_have_the_longest_name_that_leaves_room_for_its_digest(
    in_memory: Path, length: int, works: bool
) -> None:
    file = in_memory / ("é" * (length // 2) + "b" * (length % 2))
    with make_database(in_memory) as database:
        if works:
            make_backup(database, file, replace=False)
            assert read_backup(file).events == 0
        else:
            with pytest.raises(UsageError, match="too long a name"):
                make_backup(database, file, replace=False)
    assert len(names(in_memory)) == (3 if works else 1)
