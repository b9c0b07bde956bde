"""The runner on a real server: the same promises as for a file, kept by the server's transactional DDL."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import modelreg.migrations
from modelreg.migrations.runner import create_database, downgrade_database, upgrade_database
from modelreg.registry.database import Database
from modelreg.registry.errors import BusyError, DatabaseError, SchemaVersionError
from modelreg.registry.events import verify_chain
from modelreg.registry.schema import SCHEMA_REVISION, metadata
from modelreg_testing.postgresql import PostgresServer
from modelreg_testing.registry import add_version, populate, row_counts

SCRIPTS = Path(modelreg.migrations.__file__).parent
NEXT = """
import os
import signal

import sqlalchemy as sa
from alembic import op

revision = "9000"
down_revision = "{head}"


def upgrade():
    with op.batch_alter_table("version") as batch:
        batch.add_column(sa.Column("notes", sa.Text(), nullable=False, server_default=""))
    {then}


def downgrade():
    with op.batch_alter_table("version") as batch:
        batch.drop_column("notes")
"""


@pytest.fixture
def empty(postgres: PostgresServer) -> Iterator[PostgresServer]:
    with postgres.new_database() as server:
        yield server


@pytest.fixture
def populated(postgres: PostgresServer) -> Iterator[PostgresServer]:
    with postgres.new_database(template=postgres.template) as server:
        with Database(server.url) as database:
            populate(database)
        yield server


def make_scripts(folder: Path, *, then: str = "pass") -> Path:
    """Return the project's revisions with one more, that adds a column."""
    scripts = folder / "scripts"
    shutil.copytree(SCRIPTS, scripts, ignore=shutil.ignore_patterns("__pycache__"))
    (scripts / "versions" / "r9000_next.py").write_text(NEXT.format(then=then, head=SCHEMA_REVISION))
    return scripts


def contents(server: PostgresServer) -> tuple[dict[str, int], list[tuple[object, ...]]]:
    """Return what a migration that did not happen must leave alone: the rows of every table, and the columns."""
    with Database(server.url) as database:
        counts = row_counts(database)
    columns = server.execute(
        "SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = 'public'"
        " ORDER BY table_name, column_name"
    )
    return counts, columns


def revision(server: PostgresServer) -> str | None:
    with Database(server.url) as database:
        return database.revision()


def race(code: str, *arguments: object, processes: int) -> list[str]:
    """Run the same program several times at once and return what each printed, sorted."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    racers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    answers = sorted(racer.communicate(timeout=120)[0].strip() for racer in racers)
    assert [racer.returncode for racer in racers] == [0] * processes
    return answers


def test_a_new_database_has_the_newest_schema_and_making_it_again_changes_nothing(empty: PostgresServer) -> None:
    assert revision(empty) is None
    first, second = create_database(empty.url), create_database(empty.url)
    assert (first.before, first.after, first.backup) == (None, SCHEMA_REVISION, None)
    assert not second.is_change
    with Database.open(empty.url) as database:
        assert set(row_counts(database).values()) == {0}


def test_every_step_down_and_up_again_keeps_what_its_tables_hold(populated: PostgresServer) -> None:
    before, _ = contents(populated)
    assert all(before.values()), "every table must have rows, or its count proves nothing"
    down = downgrade_database(populated.url, revision="0001")
    assert (down.before, down.after, down.backup) == (SCHEMA_REVISION, "0001", None)
    up = upgrade_database(populated.url)
    assert (up.before, up.after) == ("0001", SCHEMA_REVISION)
    after, _ = contents(populated)
    kept = {name for (name,) in populated.execute("SELECT table_name FROM information_schema.tables")} & before.keys()
    assert kept == set(metadata.tables)
    assert {name: after[name] for name in ("version", "engine", "event", "activation")} == {
        name: before[name] for name in ("version", "engine", "event", "activation")
    }
    # An older program has no word for the blobs of benchmarks: their rows go with the table, one each.
    assert after["blob"] == before["blob"] - before["benchmark"]
    with Database.open(populated.url) as database:
        assert database.check() == []
        with database.read() as connection:
            assert verify_chain(connection).broken_at is None


def test_down_to_nothing_leaves_no_table(populated: PostgresServer) -> None:
    assert downgrade_database(populated.url, revision="base").after is None
    left = populated.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'")
    assert left == [("alembic_version",)]
    with pytest.raises(DatabaseError, match="is empty"):
        upgrade_database(populated.url)
    create_database(populated.url)
    assert set(contents(populated)[0].values()) == {0}


def test_an_upgraded_registry_goes_on_with_its_numbers(populated: PostgresServer) -> None:
    downgrade_database(populated.url, revision="0001")
    upgrade_database(populated.url)
    with Database.open(populated.url) as database, database.write() as connection:
        assert add_version(connection, word="new").number == 4


def test_a_failing_revision_leaves_the_database_as_it_was(populated: PostgresServer, tmp_path: Path) -> None:
    before = contents(populated)
    with pytest.raises(DatabaseError, match='relation "nowhere" does not exist'):
        upgrade_database(populated.url, scripts=make_scripts(tmp_path, then='op.execute("DELETE FROM nowhere")'))
    assert contents(populated) == before
    assert revision(populated) == SCHEMA_REVISION


def test_a_killed_migration_leaves_the_database_as_it_was(populated: PostgresServer, tmp_path: Path) -> None:
    before = contents(populated)
    scripts = make_scripts(tmp_path, then="os.kill(os.getpid(), signal.SIGKILL)")
    code = (
        "import sys; from pathlib import Path; from modelreg.migrations.runner import upgrade_database\n"
        "upgrade_database(sys.argv[1], scripts=Path(sys.argv[2]))"
    )
    killed = subprocess.run([sys.executable, "-c", code, populated.url, scripts], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert contents(populated) == before
    (scripts / "versions" / "r9000_next.py").write_text(NEXT.format(then="pass", head=SCHEMA_REVISION))
    assert upgrade_database(populated.url, scripts=scripts).after == "9000"
    assert contents(populated)[0] == before[0]


def test_of_several_processes_that_make_a_database_one_wins(empty: PostgresServer) -> None:
    code = (
        "import sys; from modelreg.migrations.runner import create_database\n"
        "print(create_database(sys.argv[1]).is_change)"
    )
    assert race(code, empty.url, processes=3) == ["False", "False", "True"]
    assert revision(empty) == SCHEMA_REVISION


def test_of_two_processes_that_upgrade_one_wins(populated: PostgresServer, tmp_path: Path) -> None:
    scripts = make_scripts(tmp_path, then="__import__('time').sleep(0.3)")
    code = (
        "import sys; from pathlib import Path; from modelreg.migrations.runner import upgrade_database\n"
        "print(upgrade_database(sys.argv[1], scripts=Path(sys.argv[2])).is_change)"
    )
    assert race(code, populated.url, scripts, processes=2) == ["False", "True"]


def test_an_upgrade_waits_for_readers_only_so_long(populated: PostgresServer, tmp_path: Path) -> None:
    with Database(populated.url) as database, database.read() as connection:
        connection.exec_driver_sql("SELECT count(*) FROM version")
        with pytest.raises(BusyError, match="stayed locked"):
            upgrade_database(populated.url, timeout_s=0.1, scripts=make_scripts(tmp_path))
    assert revision(populated) == SCHEMA_REVISION


def test_a_newer_database_is_refused_both_ways(populated: PostgresServer) -> None:
    populated.execute("UPDATE alembic_version SET version_num = '9999'")
    before = contents(populated)
    actions: list[Callable[[], object]] = [
        lambda: upgrade_database(populated.url),
        lambda: create_database(populated.url),
        lambda: downgrade_database(populated.url, revision="base"),
        lambda: Database.open(populated.url),
    ]
    for action in actions:
        with pytest.raises(SchemaVersionError, match="has schema 9999") as caught:
            action()
        assert "upgrade modelreg" in caught.value.hint()
        assert populated.shown in str(caught.value)
    assert contents(populated) == before


def test_a_user_who_may_make_no_table_is_told_so(empty: PostgresServer) -> None:
    empty.execute("CREATE ROLE reader LOGIN PASSWORD 'reader'")
    try:
        url = empty.url.replace(empty.url.partition("//")[2].partition("@")[0], "reader:reader")
        with pytest.raises(DatabaseError, match="refuses this user: permission denied for schema public") as caught:
            create_database(url)
    finally:
        empty.execute("DROP ROLE reader")
    assert "owner" in caught.value.hint()
