"""Rows with a flipped bit: every read names the table, and the check names the row."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from modelreg.registry import blobs, engines, golden_sets, releases, validations, versions
from modelreg.registry.database import Database
from modelreg.registry.errors import DatabaseError
from modelreg.registry.references import parse_reference
from modelreg.registry.rows import UnreadableRowError, decoding
from modelreg_testing.registry import make_database, populate


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with make_database(tmp_path) as database:
        populate(database)
        yield database


def damage(database: Database, table: str, column: str, value: object) -> None:
    assert database.path is not None
    with sqlite3.connect(database.path) as connection:
        connection.execute(f"UPDATE {table} SET {column} = CAST(? AS TEXT)", (value,))
    connection.close()


def read_versions(connection: sa.Connection) -> None:
    versions.get_version(connection, parse_reference("resnet50"))


def read_engines(connection: sa.Connection) -> None:
    engines.list_engines(connection, version_id=1)


def read_validations(connection: sa.Connection) -> None:
    for number in range(1, 9):
        validations.newest_validations(connection, version_id=number)


def read_golden(connection: sa.Connection) -> None:
    for number in range(1, 9):
        golden_sets.newest_golden_set(connection, version_id=number)


def read_activations(connection: sa.Connection) -> None:
    for number in range(1, 9):
        releases.list_activations(connection, channel_id=number)


@pytest.mark.parametrize(
    ("place", "value", "reads", "reason"),
    [
        ("version.tags", "{", read_versions, "Expecting property name"),
        ("version.signature", '{"inputs": []}', read_versions, "it lacks 'outputs'"),
        ("version.created_at", 2**62, read_versions, "out of range"),
        ("engine.status", "cuilt", read_engines, "'cuilt' is not a valid EngineStatus"),
        ("engine.files", '[{"path": "x"}]', read_engines, "it lacks 'sha256'"),
        ("engine.realised", b"\xff", read_engines, "not UTF-8"),
        ("validation.verdict", "qass", read_validations, "'qass' is not a valid Verdict"),
        ("validation.gates", "[1]", read_validations, "not subscriptable"),
        ("golden_set.origin", "", read_golden, "Expecting value"),
        ("activation.kind", "", read_activations, "is not a valid ActivationKind"),
        ("blob.kind", "sourcf", blobs.list_blobs, "'sourcf' is not a valid BlobKind"),
    ],
)
def test_a_row_that_means_nothing_is_one_line_and_the_check_names_it(
    database: Database,
    place: str,
    value: object,
    reads: Callable[[sa.Connection], object],
    reason: str,
) -> None:
    table, column = place.split(".")
    with database.read() as connection:
        reads(connection)
    assert database.check() == []
    damage(database, table, column, value)
    with pytest.raises(DatabaseError) as caught, database.read() as connection:
        reads(connection)
    told = str(caught.value)
    assert told.startswith(f"database {database.name}")
    assert "cannot be read" in told
    assert reason in told
    assert "\n" not in told
    assert "modelreg doctor" in caught.value.hint()
    found = database.check()
    assert 1 <= len(found) <= 20
    assert all(f" of {table}: {column} cannot be read: " in line for line in found)


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("operation", "owner", "[]"),
        ("release_engine", "target", b"\xff"),
        ("model", "next_version", "x"),
        ("engine", "build_s", "x"),
        ("event", "details", b"\xc3"),
        ("channel", "policy", "nul"),
    ],
)
def test_the_check_reads_every_kind_of_column(database: Database, table: str, column: str, value: object) -> None:
    damage(database, table, column, value)
    assert any(f" of {table}: {column} cannot be read: " in line for line in database.check())


def test_an_activation_without_a_target_to_roll_back_to_is_whole(database: Database) -> None:
    with database.read() as connection:
        assert None in connection.exec_driver_sql("SELECT rolls_back_to FROM activation").scalars().all()
    assert database.check() == []


def test_mistakes_outside_of_the_decoding_keep_their_own_class(database: Database) -> None:
    with pytest.raises(KeyError), database.read():
        raise KeyError("a caller's bug")


def test_the_record_that_failed_is_the_cause() -> None:
    message = "a row of engine cannot be read: it lacks 'gpu'"
    with pytest.raises(UnreadableRowError, match=message) as caught, decoding("engine"):
        raise KeyError("gpu")
    assert isinstance(caught.value.__cause__, KeyError)
