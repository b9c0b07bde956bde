from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from modelreg.registry import schema
from modelreg.registry.database import Database
from modelreg.registry.schema import UtcTime, blob, to_microseconds
from modelreg_testing.postgresql import PostgresServer
from modelreg_testing.registry import make_database


def differences(connection: sa.Connection, metadata: sa.MetaData) -> list[object]:
    def compare(_context: object, _inspected: object, _column: object, found: object, expected: object) -> bool | None:
        # Times are integers in the database; Alembic does not look behind the decorator.
        return False if isinstance(expected, UtcTime) and isinstance(found, sa.BigInteger) else None

    context = MigrationContext.configure(connection, opts={"compare_type": compare})
    return list(compare_metadata(context, metadata))


def test_the_migrations_make_exactly_this_schema(database: Database) -> None:
    schema.complete_for_postgresql()
    with database.read() as connection:
        assert differences(connection, schema.metadata) == []


def test_the_migrations_make_the_same_on_postgresql_as_the_schema(postgres: PostgresServer) -> None:
    """Autogenerate sees neither conditions of partial indexes, nor collations, nor names of constraints."""

    def catalogue(server: PostgresServer) -> set[tuple[object, ...]]:
        columns = server.execute(
            "SELECT table_name, column_name, data_type, character_maximum_length, collation_name, is_nullable,"
            " column_default FROM information_schema.columns WHERE table_schema = 'public'"
        )
        indexes = server.execute("SELECT tablename, indexdef FROM pg_indexes WHERE schemaname = 'public'")
        keys = server.execute(
            "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint"
            " WHERE connamespace = 'public'::regnamespace"
        )
        return {row for row in (*columns, *indexes, *keys) if row[0] != "alembic_version"}

    schema.complete_for_postgresql()
    with postgres.new_database() as created, postgres.new_database(template=postgres.template) as migrated:
        engine = sa.create_engine(created.url.replace("postgresql:", "postgresql+psycopg:"))
        schema.metadata.create_all(engine)
        engine.dispose()
        assert catalogue(migrated) == catalogue(created)


def test_the_migrations_write_the_same_ddl_as_the_schema(tmp_path: Path) -> None:
    """Autogenerate does not see conditions of partial indexes nor names of constraints; the text has all."""

    def ddl(connection: sa.Connection) -> dict[str, list[str]]:
        rows = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
        wanted = {name: sql for name, sql in rows if name != "alembic_version"}
        return {
            name: sorted(line.strip().rstrip(",") for line in sql.replace("\t", "").splitlines())
            for name, sql in wanted.items()
        }

    engine = sa.create_engine("sqlite://")
    with make_database(tmp_path) as database, database.read() as migrated, engine.connect() as created:
        schema.metadata.create_all(created)
        assert ddl(migrated) == ddl(created)
    engine.dispose()


@pytest.mark.parametrize("change", ["column", "index", "table"])
def test_a_schema_that_went_ahead_of_the_migrations_is_seen(tmp_path: Path, change: str) -> None:
    ahead = sa.MetaData(naming_convention=schema.NAMING)
    for table in schema.metadata.tables.values():
        table.to_metadata(ahead)
    if change == "column":
        ahead.tables["model"].append_column(sa.Column("owner", sa.Text))
    elif change == "index":
        sa.Index(None, ahead.tables["engine"].c.plan_digest)
    else:
        sa.Table("plugin", ahead, sa.Column("id", sa.Integer, primary_key=True))
    with make_database(tmp_path) as database, database.read() as connection:
        assert len(differences(connection, ahead)) == 1


def test_every_constraint_has_a_name() -> None:
    for table in schema.metadata.tables.values():
        assert all(constraint.name for constraint in table.constraints), table.name


def test_a_channel_has_one_open_operation_on_postgresql_too() -> None:
    schema.complete_for_postgresql()
    (index,) = [index for index in schema.operation.indexes if index.name == "ix_operation_open"]
    text = str(sa.schema.CreateIndex(index).compile(dialect=sa.URL.create("postgresql").get_dialect()()))
    assert text.startswith("CREATE UNIQUE INDEX ix_operation_open ON operation (channel_id)")
    assert text.endswith("WHERE state IN ('prepared', 'unknown')")


def test_a_time_keeps_its_instant_whatever_its_zone(tmp_path: Path) -> None:
    west = datetime(2026, 3, 8, 13, 30, 0, 123456, tzinfo=timezone(timedelta(hours=-8)))
    with make_database(tmp_path) as database:
        with database.write() as connection:
            row = {"digest": "a" * 64, "size_bytes": 1, "kind": "plan", "created_at": west}
            connection.execute(sa.insert(blob), row)
        with database.read() as connection:
            found = connection.execute(sa.select(blob.c.created_at)).scalar_one()
    assert found == west
    assert found.tzinfo is timezone.utc
    assert found.hour == 21


def test_a_naive_time_is_refused(tmp_path: Path) -> None:
    naive = datetime(2026, 3, 8, 13, 30)
    with pytest.raises(ValueError, match="aware"):
        to_microseconds(naive)
    row = {"digest": "a" * 64, "size_bytes": 1, "kind": "plan", "created_at": naive}
    with (
        make_database(tmp_path) as database,
        pytest.raises(sa.exc.StatementError, match="times must be aware"),
        database.write() as connection,
    ):
        connection.execute(sa.insert(blob), row)


def test_times_before_1970_and_absent_ones_survive() -> None:
    dialect = sa.create_engine("sqlite://").dialect
    early = datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=timezone.utc)
    kind = UtcTime()
    assert kind.process_bind_param(early, dialect) == -1
    assert kind.process_result_value(-1, dialect) == early
    assert kind.process_bind_param(None, dialect) is None
    assert kind.process_result_value(None, dialect) is None
