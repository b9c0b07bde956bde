import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

import modelreg.migrations
from modelreg.migrations.runner import create_database, downgrade_database, upgrade_database
from modelreg.registry import schema
from modelreg.registry.database import Database, sqlite_url
from modelreg.registry.errors import BusyError, DatabaseError, SchemaVersionError, UsageError
from modelreg.registry.events import verify_chain
from modelreg_testing.registry import make_database, populate, row_counts

SCRIPTS = Path(modelreg.migrations.__file__).parent

REVISION = """
import os
import signal

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade():
    with op.batch_alter_table("version", recreate="always") as batch:
        batch.add_column(sa.Column("notes", sa.Text(), nullable=False, server_default=""))
    with op.batch_alter_table("model", recreate="always") as batch:
        batch.add_column(sa.Column("notes", sa.Text(), nullable=False, server_default=""))
    {then}


def downgrade():
    with op.batch_alter_table("model") as batch:
        batch.drop_column("notes")
    with op.batch_alter_table("version") as batch:
        batch.drop_column("notes")
"""


@pytest.fixture
def populated(tmp_path: Path) -> Path:
    with make_database(tmp_path) as database:
        populate(database)
        assert database.path is not None
        return database.path


def make_scripts(folder: Path, *, then: str = "pass") -> Path:
    """Return the project's revisions with one more that rebuilds two parent tables."""
    scripts = folder / "scripts 100%"
    shutil.copytree(SCRIPTS, scripts, ignore=shutil.ignore_patterns("__pycache__"))
    (scripts / "versions" / "r0004_next.py").write_text(REVISION.format(then=then))
    return scripts


def counts(path: Path) -> dict[str, int]:
    with Database(sqlite_url(path)) as database:
        return row_counts(database)


def revision(path: Path) -> str | None:
    with Database(sqlite_url(path)) as database:
        return database.revision()


def dump(path: Path) -> list[str]:
    with sqlite3.connect(path) as connection:
        lines = list(connection.iterdump())
    connection.close()
    return sorted(lines)


def test_a_new_database_has_the_newest_schema_and_no_backup(tmp_path: Path) -> None:
    path = tmp_path / "odd ?#%20 näme.db"
    migration = create_database(sqlite_url(path))
    assert (migration.before, migration.after, migration.backup) == (None, schema.SCHEMA_REVISION, None)
    assert migration.is_change
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    Database.open(sqlite_url(path)).close()


def test_making_it_again_changes_nothing(populated: Path) -> None:
    before = dump(populated)
    migration = create_database(sqlite_url(populated))
    assert not migration.is_change
    assert migration.backup is None
    assert dump(populated) == before


def test_down_and_up_again_brings_every_table_back_empty(populated: Path) -> None:
    assert all(counts(populated).values()), "every table must have rows, or its count proves nothing"
    down = downgrade_database(sqlite_url(populated), revision="base")
    assert (down.before, down.after) == ("0003", None)
    with sqlite3.connect(populated) as connection:
        left = {
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'index')")
        }
    connection.close()
    assert {name for name in left if not name.startswith("sqlite_")} == {"alembic_version"}
    for use in (Database.open, upgrade_database):
        with pytest.raises(DatabaseError, match="is empty"):
            use(sqlite_url(populated))
    create_database(sqlite_url(populated))
    assert set(counts(populated).values()) == {0}


def test_a_registry_of_before_registered_toolchains_keeps_every_other_row(populated: Path) -> None:
    before = counts(populated)
    samples = before["benchmark"]  # every benchmark of `populate` names a blob of its own
    downgrade_database(sqlite_url(populated), revision="0001")
    up = upgrade_database(sqlite_url(populated))
    assert (up.before, up.after) == ("0001", "0003")
    assert counts(populated) == {**before, "toolchain_state": 0, "benchmark": 0, "blob": before["blob"] - samples}
    with Database.open(sqlite_url(populated)) as database:
        assert database.check() == []
        with database.read() as connection:
            assert verify_chain(connection).broken_at is None


def test_the_backup_of_a_downgrade_is_the_whole_database(populated: Path) -> None:
    before, rows = dump(populated), counts(populated)
    backup = downgrade_database(sqlite_url(populated), revision="base").backup
    assert backup is not None
    assert dump(backup) == before
    shutil.move(backup, populated)
    assert counts(populated) == rows
    with Database.open(sqlite_url(populated)) as database, database.read() as connection:
        assert verify_chain(connection).broken_at is None


def test_rebuilding_parent_tables_keeps_every_row_up_and_down(populated: Path, tmp_path: Path) -> None:
    before = counts(populated)
    scripts = make_scripts(tmp_path)
    up = upgrade_database(sqlite_url(populated), scripts=scripts)
    assert (up.before, up.after) == ("0003", "0004")
    assert counts(populated) == before
    with sqlite3.connect(populated) as connection:
        assert connection.execute("SELECT notes FROM version").fetchall() == [("",)] * before["version"]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()
    downgrade_database(sqlite_url(populated), revision="0003", scripts=scripts)
    assert counts(populated) == before
    with Database.open(sqlite_url(populated)) as database:
        assert database.check() == []


def test_the_same_rebuild_with_foreign_keys_on_does_not_work(populated: Path) -> None:
    """Control: the counts above are kept by the runner, not by luck."""
    with Database(sqlite_url(populated)) as database, database.write() as connection:
        connection.exec_driver_sql("CREATE TABLE copy AS SELECT * FROM version")
        with pytest.raises(sa.exc.IntegrityError):
            connection.exec_driver_sql("DROP TABLE version")


def test_foreign_keys_are_on_again_after_a_migration(populated: Path) -> None:
    with Database(sqlite_url(populated)) as database:
        with database.migrate() as connection:
            assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 0
        with database.write() as connection:
            assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1


def test_a_revision_that_would_orphan_rows_is_refused_whole(populated: Path, tmp_path: Path) -> None:
    before = dump(populated)
    scripts = make_scripts(tmp_path, then='op.execute("DELETE FROM model")')
    with pytest.raises(DatabaseError, match="would refer to nothing"):
        upgrade_database(sqlite_url(populated), scripts=scripts)
    assert dump(populated) == before


def test_a_view_that_somebody_added_is_no_obstacle(populated: Path, tmp_path: Path) -> None:
    with sqlite3.connect(populated) as connection:
        connection.execute(
            "CREATE VIEW newest AS SELECT model_id, max(number) AS number FROM version GROUP BY model_id"
        )
    connection.close()
    upgrade_database(sqlite_url(populated), scripts=make_scripts(tmp_path))
    with sqlite3.connect(populated) as connection:
        assert connection.execute("SELECT number FROM newest ORDER BY model_id").fetchall() == [(3,), (1,)]
    connection.close()


def test_a_failing_revision_leaves_the_database_as_it_was(populated: Path, tmp_path: Path) -> None:
    before = dump(populated)
    scripts = make_scripts(tmp_path, then='op.execute("DELETE FROM nowhere")')
    with pytest.raises(DatabaseError, match="no such table: nowhere"):
        upgrade_database(sqlite_url(populated), scripts=scripts)
    assert dump(populated) == before


def test_a_killed_migration_leaves_the_database_as_it_was(populated: Path, tmp_path: Path) -> None:
    before, rows = dump(populated), counts(populated)
    scripts = make_scripts(tmp_path, then="os.kill(os.getpid(), signal.SIGKILL)")
    code = (
        "import sys; from pathlib import Path; from modelreg.migrations.runner import upgrade_database\n"
        "upgrade_database('sqlite:///' + sys.argv[1], scripts=Path(sys.argv[2]))"
    )
    result = subprocess.run([sys.executable, "-c", code, populated, scripts], check=False)
    assert result.returncode == -signal.SIGKILL
    assert dump(populated) == before
    (scripts / "versions" / "r0004_next.py").write_text(REVISION.format(then="pass"))
    upgrade_database(sqlite_url(populated), scripts=scripts)
    assert counts(populated) == rows


def test_of_several_processes_that_make_a_database_one_wins(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    code = (
        "import sys; from modelreg.migrations.runner import create_database\n"
        "print(create_database('sqlite:///' + sys.argv[1]).is_change)"
    )
    command = [sys.executable, "-c", code, str(path)]
    racers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    answers = [racer.communicate(timeout=120)[0].strip() for racer in racers]
    assert sorted(answers) == ["False", "False", "False", "True"]
    assert [racer.returncode for racer in racers] == [0, 0, 0, 0]
    Database.open(sqlite_url(path)).close()


def test_of_two_processes_that_upgrade_one_wins(populated: Path, tmp_path: Path) -> None:
    rows = counts(populated)
    scripts = make_scripts(tmp_path, then="__import__('time').sleep(0.3)")
    code = (
        "import sys; from pathlib import Path; from modelreg.migrations.runner import upgrade_database\n"
        "print(upgrade_database('sqlite:///' + sys.argv[1], scripts=Path(sys.argv[2])).is_change)"
    )
    command = [sys.executable, "-c", code, str(populated), str(scripts)]
    racers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert sorted(racer.communicate(timeout=120)[0].strip() for racer in racers) == ["False", "True"]
    assert counts(populated) == rows


def test_three_backups_are_kept_and_their_numbers_go_on(populated: Path, tmp_path: Path) -> None:
    scripts = make_scripts(tmp_path)
    stray = populated.with_name("registry.db.backup-mine")
    stray.touch()
    for _ in range(3):
        upgrade_database(sqlite_url(populated), scripts=scripts)
        downgrade_database(sqlite_url(populated), revision="0003", scripts=scripts)
    kept = sorted(path.name for path in populated.parent.glob("registry.db.backup-0*"))
    assert kept == [
        "registry.db.backup-000004-0004",
        "registry.db.backup-000005-0003",
        "registry.db.backup-000006-0004",
    ]
    assert stray.exists()


def test_a_newer_database_is_refused_both_ways(populated: Path) -> None:
    with sqlite3.connect(populated) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    before = dump(populated)
    url = sqlite_url(populated)
    actions: list[Callable[[], object]] = [
        lambda: upgrade_database(url),
        lambda: create_database(url),
        lambda: downgrade_database(url, revision="base"),
    ]
    for action in actions:
        with pytest.raises(SchemaVersionError, match="has schema 9999") as caught:
            action()
        assert "upgrade modelreg" in caught.value.hint()
    assert dump(populated) == before


def test_a_downgrade_goes_down_only(populated: Path, tmp_path: Path) -> None:
    scripts = make_scripts(tmp_path)
    with pytest.raises(UsageError, match="no schema revision '0007'") as caught:
        downgrade_database(sqlite_url(populated), revision="0007")
    assert caught.value.hint() == "Known: base, 0001, 0002, 0003."
    with pytest.raises(SchemaVersionError, match="older than schema 0004"):
        downgrade_database(sqlite_url(populated), revision="0004", scripts=scripts)
    assert not downgrade_database(sqlite_url(populated), revision="0003", scripts=scripts).is_change
    assert revision(populated) == "0003"


def test_what_cannot_be_made_or_found_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match="cannot be made: No such file"):
        create_database(sqlite_url(tmp_path / "missing" / "registry.db"))
    with pytest.raises(DatabaseError, match="does not exist"):
        upgrade_database(sqlite_url(tmp_path / "registry.db"))


def test_an_upgrade_does_not_make_a_database_of_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    path.touch()
    with pytest.raises(DatabaseError, match=r"registry\.db is empty") as caught:
        upgrade_database(sqlite_url(path))
    assert "Restore its backup" in caught.value.hint()
    assert revision(path) is None


def test_an_upgrade_waits_for_a_writer_and_then_says_who_is_in_the_way(populated: Path, tmp_path: Path) -> None:
    scripts = make_scripts(tmp_path)
    with Database(sqlite_url(populated)) as database, database.write(), pytest.raises(BusyError, match="stayed locked"):
        upgrade_database(sqlite_url(populated), timeout_s=0.1, scripts=scripts)
    assert revision(populated) == "0003"


def test_the_environment_can_be_imported_without_running() -> None:
    import modelreg.migrations.env as environment

    assert callable(environment.run_migrations)


def test_a_backup_that_cannot_be_written_stops_the_upgrade(populated: Path, tmp_path: Path) -> None:
    populated.with_name("registry.db.backup-000001-0003.tmp").mkdir()
    before = dump(populated)
    with pytest.raises(DatabaseError, match=r"registry\.db\.backup-000001-0003 cannot be written: Is a directory"):
        upgrade_database(sqlite_url(populated), scripts=make_scripts(tmp_path))
    assert dump(populated) == before
