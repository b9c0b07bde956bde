from __future__ import annotations

import importlib
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from modelreg.registry.contents import StoredFile
from modelreg.registry.database import Database
from modelreg.registry.errors import DatabaseError
from modelreg.registry.schema import activation, channel, engine, event, model, version
from modelreg.registry.statements import Statement, _Prepared
from modelreg_testing.registry import add_engine, add_version, digest_of, make_database, make_source, populate

MODULES = (
    "channel_states",
    "engines",
    "events",
    "golden_sets",
    "operations",
    "releases",
    "validations",
    "version_rows",
)
WHEN = datetime(2026, 11, 30, 9, 30, tzinfo=timezone.utc)
NEW_MODEL = {"next_version": 1, "created_at": WHEN, "created_by": "tester"}
INSERT_MODEL = Statement(sa.insert(model).returning(model.c.id))
INSERT_CHANNEL = Statement(sa.insert(channel))
RENAME_MODEL = Statement(
    sa.update(model).where(model.c.name == sa.bindparam("old")).values(name=sa.bindparam("new"), next_version=7)
)
MODEL_NAMES = Statement(sa.select(model.c.name).order_by(model.c.name))


def kept_queries() -> dict[str, Statement]:
    """Return every query that the registry keeps as a `Statement`."""
    return {
        f"{name}.{key}": value
        for name in MODULES
        for key, value in vars(importlib.import_module(f"modelreg.registry.{name}")).items()
        if isinstance(value, Statement) and isinstance(value.element, sa.Select)
    }


@pytest.mark.parametrize("name", kept_queries())
def test_a_kept_query_gives_what_sqlalchemy_gives(name: str, database: Database) -> None:
    populate(database)
    with database.write() as connection:
        files = [StoredFile(path=f"file{number}", digest=digest_of(number), size_bytes=number) for number in range(3)]
        several = add_version(connection, source=make_source("several", files=files))
    statement = kept_queries()[name]
    with database.read() as connection:
        prepared = _Prepared(statement.element, connection.dialect, given=())
        texts = {"model": "resnet50", "model_name": "resnet50", "channel": "production"}
        texts["digest"] = connection.execute(sa.select(version.c.source_digest)).scalars().first() or ""
        texts["start"] = texts["digest"][:9]
        texts["of_txn"] = connection.execute(sa.select(activation.c.txn)).scalars().first() or ""
        some = connection.execute(sa.select(event.c.kind, event.c.subject)).first()
        texts["replaced"], texts["of_subject"] = some or ("", "")
        numbers = {"up_to": 100, "rows": 100, "newest": 100, "before": 100}
        if "MORE_FILES" in name:
            numbers["of_version"] = several.id
        parameters: dict[str, Any] = {key: texts.get(key, numbers.get(key, 1)) for key in prepared.names}
        wanted = connection.execute(statement.element, parameters).all()
        found = statement.rows(connection, **parameters)
        assert found == wanted
        assert [row._asdict() for row in found] == [dict(row._mapping) for row in wanted]
        first = statement.first(connection, **parameters)
        assert first == (wanted[0] if wanted else None)
        assert statement.scalar(connection, **parameters) == (wanted[0][0] if wanted else None)
    assert wanted or name == "releases._FIND_RELEASE", "nothing was compared"


def test_an_insertion_returns_its_key_and_takes_json_and_times(database: Database) -> None:
    with database.write() as connection:
        key = INSERT_MODEL.scalar(connection, name="vit", **NEW_MODEL)
        policy = {"é": [1, None, {"b": 2.5}]}
        row = {"model_id": key, "name": "production", "policy": policy, "created_at": WHEN, "created_by": "tester"}
        assert INSERT_CHANNEL.execute(connection, **row) == 1
    with database.read() as connection:
        assert connection.execute(sa.select(model.c.id, model.c.created_at)).one() == (key, WHEN)
        assert connection.execute(sa.select(channel.c.policy, channel.c.created_at)).one() == (policy, WHEN)


def test_an_update_says_how_many_rows_it_changed(database: Database) -> None:
    with database.write() as connection:
        INSERT_MODEL.scalar(connection, name="vit", **NEW_MODEL)
        assert RENAME_MODEL.execute(connection, old="vit", new="vit-b") == 1
        assert RENAME_MODEL.execute(connection, old="vit", new="vit-c") == 0
        assert connection.execute(sa.select(model.c.name, model.c.next_version)).all() == [("vit-b", 7)]


def test_it_is_part_of_its_transaction(database: Database) -> None:
    with database.write() as connection:
        INSERT_MODEL.scalar(connection, name="vit", **NEW_MODEL)
        assert [row.name for row in MODEL_NAMES.rows(connection)] == ["vit"]
        connection.rollback()
    with database.read() as connection:
        assert MODEL_NAMES.rows(connection) == []


def test_what_the_driver_refuses_is_sqlalchemys_error(database: Database) -> None:
    with database.write() as connection:
        INSERT_MODEL.scalar(connection, name="vit", **NEW_MODEL)
    with (
        pytest.raises(sa.exc.IntegrityError, match=r"model\.name|uq_model_name") as caught,
        database.write() as connection,
    ):
        INSERT_MODEL.scalar(connection, name="vit", **NEW_MODEL)
    assert "INSERT INTO model" in str(caught.value.statement)


def test_what_the_database_cannot_do_is_said_in_one_line(database: Database) -> None:
    with database.write() as connection:
        connection.exec_driver_sql("DROP TABLE event")
        connection.commit()
    with (
        pytest.raises(sa.exc.DBAPIError, match=r"no such table|UndefinedTable"),
        database._engine.connect() as connection,
    ):
        Statement(sa.select(event.c.sequence)).rows(connection)
    with (
        pytest.raises(DatabaseError, match=r'no such table: event$|lacks a table: relation "event" does not exist$'),
        database.read() as connection,
    ):
        Statement(sa.select(event.c.sequence)).rows(connection)


@pytest.mark.parametrize("parameters", [{}, {"old": "a"}, {"old": "a", "new": "b", "newer": "c"}])
def test_a_parameter_too_few_or_too_many_is_refused(parameters: dict[str, str], database: Database) -> None:
    with (
        database.write() as connection,
        pytest.raises(RuntimeError, match=r"given, \['new', 'old'\] wanted"),
    ):
        RENAME_MODEL.execute(connection, **parameters)


def test_a_statement_that_changes_with_its_values_is_refused(database: Database) -> None:
    some = Statement(sa.select(engine).where(engine.c.id.in_(sa.bindparam("ids", expanding=True))))
    with database.read() as connection, pytest.raises(ValueError, match="rendered anew each time"):
        some.rows(connection, ids=[1, 2])


def test_one_statement_serves_several_databases(tmp_path: Path) -> None:
    for name in "abcdefghij":
        with make_database(tmp_path, name=name) as database, database.write() as connection:
            INSERT_MODEL.scalar(connection, name=name, **NEW_MODEL)
            assert MODEL_NAMES.scalar(connection) == name
    assert len(MODEL_NAMES._prepared) <= 8


def test_a_driver_that_takes_parameters_by_name_gets_them_by_name() -> None:
    dialect = sa.URL.create("postgresql").get_dialect()()
    prepared = _Prepared(RENAME_MODEL.element, dialect, given=())
    assert "%(old)s" in prepared.text
    assert prepared.encode({"old": "a", "new": "b"}) == {"next_version": 7, "old": "a", "new": "b"}


def test_engines_are_read_in_full(database: Database) -> None:
    with database.write() as connection:
        made = add_engine(connection, add_version(connection))
        row = Statement(sa.select(engine)).first(connection)
    assert row is not None
    assert (row.id, row.recipe, row.created_at) == (made.id, made.recipe, made.created_at)


def test_a_column_is_read_as_the_driver_says_it_is() -> None:
    """PostgreSQL's numbers are converted by the type that each answer names."""
    dialect = sa.URL.create("postgresql").get_dialect()()
    prepared = _Prepared(sa.select(engine.c.build_s, engine.c.created_at), dialect, given=())
    double, bigint = 701, 20
    found = dict(prepared._find_decoders([("build_s", double), ("created_at", bigint)]))
    assert set(found) == {1}
    assert found[1](1_000_000) == datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc)
