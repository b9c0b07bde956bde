import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from modelreg.registry.database import Database
from modelreg.registry.events import ChainAnchor, append_event, verify_chain
from modelreg_testing.registry import make_database

EVENTS = 2500  # more than two pages


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with make_database(tmp_path_factory.mktemp("events")) as database:
        with database.write() as connection:
            for number in range(1, EVENTS + 1):
                details = {"n": number, "ä": "ü", "list": [1, None, True]}
                append_event(connection, kind="test.made", subject=f"thing {number}", details=details, actor="me")
        assert database.path is not None
        return database.path


@pytest.fixture
def chain(filled: Path, tmp_path: Path) -> Iterator[Database]:
    (tmp_path / "registry.db").write_bytes(filled.read_bytes())
    with Database(f"sqlite:///{tmp_path}/registry.db") as database:
        yield database


def tamper(database: Database, *statements: str) -> None:
    assert database.path is not None
    with sqlite3.connect(database.path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def test_an_empty_log_is_whole(tmp_path: Path) -> None:
    with make_database(tmp_path) as database, database.read() as connection:
        report = verify_chain(connection)
    assert (report.events, report.broken_at, report.reason, report.head) == (0, None, "", None)


def test_an_untouched_chain_is_whole_over_several_pages(chain: Database) -> None:
    with chain.read() as connection:
        report = verify_chain(connection)
    assert (report.events, report.broken_at, report.reason) == (EVENTS, None, "")
    assert report.head is not None
    assert report.head.sequence == EVENTS


@pytest.mark.parametrize("row", [1, 1000, 1001, EVENTS])
@pytest.mark.parametrize(
    "change",
    [
        "actor = 'you'",
        "kind = 'test.undone'",
        "subject = subject || ' '",
        "details = replace(details, 'true', 'false')",
        "details = x'00ff'",
        "details = NULL || details",
        "at = at + 1",
        "at = at || ''",
        "hash = replace(hash, substr(hash, 1, 1), 'z')",
        "previous_hash = substr(previous_hash, 2) || '0f'",
    ],
)
def test_any_changed_field_is_found_at_its_row(chain: Database, row: int, change: str) -> None:
    assert chain.path is not None
    with sqlite3.connect(chain.path) as connection:
        connection.execute("PRAGMA ignore_check_constraints=ON")
        if "NULL" in change or "|| ''" in change:
            # A column's NOT NULL and affinity do not bind somebody with an editor: rebuild the table without them.
            connection.execute("ALTER TABLE event RENAME TO old")
            connection.execute("CREATE TABLE event AS SELECT * FROM old")
            connection.execute("CREATE TABLE loose (sequence, at, actor, kind, subject, details, previous_hash, hash)")
            connection.execute("INSERT INTO loose SELECT * FROM old")
            connection.execute("DROP TABLE event")
            connection.execute("ALTER TABLE loose RENAME TO event")
        assert connection.execute(f"UPDATE event SET {change} WHERE sequence = {row}").rowcount == 1
    connection.close()
    with chain.read() as reader:
        report = verify_chain(reader)
    assert report.broken_at == row
    assert report.events == row - 1
    assert str(row) in report.reason


@pytest.mark.parametrize("row", [1, 2, 1000, 1001, EVENTS - 1])
def test_a_removed_row_is_found(chain: Database, row: int) -> None:
    tamper(chain, f"DELETE FROM event WHERE sequence = {row}")
    with chain.read() as connection:
        report = verify_chain(connection)
    assert (report.broken_at, report.events) == (row + 1, row - 1)
    assert report.reason == f"event {row} is missing"


def test_a_removed_row_is_found_though_the_rest_moved_up(chain: Database) -> None:
    tamper(chain, "DELETE FROM event WHERE sequence = 7", "UPDATE event SET sequence = sequence - 1 WHERE sequence > 7")
    with chain.read() as connection:
        assert verify_chain(connection).broken_at == 7


def test_a_cut_in_the_middle_is_found(chain: Database) -> None:
    tamper(chain, "DELETE FROM event WHERE sequence BETWEEN 500 AND 1999")
    with chain.read() as connection:
        assert verify_chain(connection).broken_at == 2000


def test_two_rows_that_changed_places_are_found(chain: Database) -> None:
    tamper(
        chain,
        "UPDATE event SET sequence = -1 WHERE sequence = 10",
        "UPDATE event SET sequence = 10 WHERE sequence = 11",
        "UPDATE event SET sequence = 11 WHERE sequence = -1",
    )
    with chain.read() as connection:
        assert verify_chain(connection).broken_at == 10


@pytest.mark.parametrize("sequence", [0, -5, EVENTS + 2])
def test_an_inserted_row_is_found(chain: Database, sequence: int) -> None:
    columns = "at, actor, kind, subject, details, previous_hash, hash"
    tamper(chain, f"INSERT INTO event SELECT {sequence}, {columns} FROM event WHERE sequence = 5")
    with chain.read() as connection:
        assert verify_chain(connection).broken_at == sequence


def test_a_cut_tail_is_found_only_with_an_anchor(chain: Database) -> None:
    with chain.read() as connection:
        anchor = verify_chain(connection).head
    assert anchor is not None
    tamper(chain, f"DELETE FROM event WHERE sequence > {EVENTS - 10}")
    with chain.read() as connection:
        assert verify_chain(connection).broken_at is None
        report = verify_chain(connection, anchor=anchor)
    assert report.broken_at == EVENTS - 9
    assert report.reason == f"the log ends at event {EVENTS - 10}, event {EVENTS} was seen earlier"


def test_a_rewritten_history_is_found_with_an_anchor(chain: Database) -> None:
    with chain.read() as connection:
        anchor = verify_chain(connection).head
    assert anchor is not None
    tamper(chain, f"DELETE FROM event WHERE sequence = {EVENTS}")
    with chain.write() as connection:
        append_event(connection, kind="test.forged", subject="x", details={}, actor="me")
    with chain.read() as connection:
        assert verify_chain(connection).broken_at is None
        report = verify_chain(connection, anchor=anchor)
    assert report.reason == f"event {EVENTS} is not the one that was seen earlier"


def test_an_anchor_that_is_still_there_is_no_complaint(chain: Database) -> None:
    with chain.read() as connection:
        anchor = verify_chain(connection).head
    with chain.write() as connection:
        append_event(connection, kind="test.made", subject="later", details={}, actor="me")
    with chain.read() as connection:
        report = verify_chain(connection, anchor=anchor)
    assert (report.broken_at, report.events) == (None, EVENTS + 1)
    assert report.head != anchor
    assert isinstance(anchor, ChainAnchor)


def test_an_event_rolls_back_with_what_it_tells(chain: Database) -> None:
    def fail() -> None:
        with chain.write() as connection:
            append_event(connection, kind="test.made", subject="lost", details={}, actor="me")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    with chain.read() as connection:
        assert verify_chain(connection).events == EVENTS


def test_details_that_are_no_json_are_refused(chain: Database) -> None:
    with chain.write() as connection, pytest.raises(ValueError, match="JSON compliant"):
        append_event(connection, kind="test.made", subject="x", details={"loss": float("nan")}, actor="me")
