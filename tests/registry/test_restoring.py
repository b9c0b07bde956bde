from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from pathlib import Path

import pytest

from modelreg.registry import events
from modelreg.registry.backups import make_backup
from modelreg.registry.checks.findings import Level
from modelreg.registry.errors import BusyError, ConflictError, IntegrityError, UsageError
from modelreg.registry.restoring import RestorePlan, plan_restore, restore
from modelreg_testing.cli import Shop
from modelreg_testing.doctors import bad, doctor, promote, served, told
from modelreg_testing.registry import add_version, row_counts
from modelreg_testing.storage_faults import in_child


@pytest.fixture
def shop(in_memory: Path) -> Shop:
    made = Shop(in_memory)
    for word in (1, 2):
        made.add_version(word=word)
    return made


def back_up(shop: Shop) -> Path:
    path = shop.path.parent / "backup.db"
    with shop.database() as database:
        make_backup(database, path, replace=True)
    return path


def plan(shop: Shop, backup: Path) -> RestorePlan:
    name = str(shop.database_path)
    return plan_restore(backup, database=shop.database_path, name=name, storage=shop.storage)


def put_back(shop: Shop, backup: Path, *, force: bool = False, timeout_s: float = 30.0) -> Path | None:
    return restore(
        plan(shop, backup),
        database=shop.database_path,
        storage=shop.storage,
        actor="ada@lab",
        timeout_s=timeout_s,
        force=force,
    )


def kinds(shop: Shop) -> list[str]:
    with shop.database() as database, database.read() as connection:
        return [event.kind for event in events.events_after(connection, 0)]


def test_what_the_database_alone_knows_is_not_hidden_without_a_word(shop: Shop) -> None:
    backup = back_up(shop)
    promote(shop, 1)
    with pytest.raises(ConflictError, match=r"newer events.*channel.promote of lenet@production by ada@host"):
        put_back(shop, backup)
    assert kinds(shop)[-1] == "channel.promote"
    assert [path.name for path in shop.path.iterdir() if "replaced" in path.name] == []


def test_a_restore_by_force_keeps_what_was_there_and_says_so_in_the_log(shop: Shop) -> None:
    backup = back_up(shop)
    with shop.database() as database:
        before = row_counts(database)
    promote(shop, 1)
    newest = kinds(shop)
    kept = put_back(shop, backup, force=True)
    assert kept is not None
    assert kept.name == "registry.db.replaced-000001"
    with shop.database() as database:
        assert row_counts(database) == {**before, "event": before["event"] + 1}
        assert database.check() == []
        with database.read() as connection:
            assert events.verify_chain(connection).broken_at is None
    assert kinds(shop)[-1] == "database.restored"
    shop.database_path.unlink()
    kept.rename(shop.database_path)
    assert kinds(shop) == newest


def test_the_store_is_the_truth_after_an_older_database_was_restored(shop: Shop) -> None:
    promote(shop, 1)
    backup = back_up(shop)
    for version in (2, 1, 2):
        promote(shop, version)
    pointer = served(shop.storage)
    made = plan(shop, backup)
    assert [(gap.place, gap.known, gap.served) for gap in made.gaps] == [("lenet@production", 1, 4)]
    put_back(shop, backup, force=True)
    found = bad(doctor(shop).examine())
    assert [(f.level, f.message) for f in found] == [
        (Level.FIXABLE, "the store serves generation 4, the database knows 1")
    ]
    assert served(shop.storage) == pointer
    assert {level for level, _ in told(doctor(shop).repair())} == {Level.FIXED}
    assert bad(doctor(shop).repair()) == []
    assert served(shop.storage) == pointer
    promote(shop, 1)
    assert served(shop.storage).generation == 5


def test_the_same_backup_can_be_restored_twice(shop: Shop) -> None:
    backup = back_up(shop)
    for number in (1, 2):
        kept = put_back(shop, backup)
        assert kept is not None
        assert kept.name == f"registry.db.replaced-00000{number}"
    assert kinds(shop).count("database.restored") == 1


def test_a_newer_backup_hides_nothing(shop: Shop) -> None:
    older = shop.path.parent / "older.db"
    with shop.database() as database:
        make_backup(database, older, replace=False)
    promote(shop, 1)
    backup = back_up(shop)
    put_back(shop, older, force=True)
    assert not plan(shop, older).current.newer
    shutil.copy(older, shop.database_path)
    assert plan(shop, backup).current.newer == ()
    put_back(shop, backup)
    assert "channel.promote" in kinds(shop)


def test_a_backup_of_another_registry_is_refused(shop: Shop, in_memory: Path) -> None:
    other = Shop(in_memory / "other")
    other.add_version(word="other")
    with pytest.raises(ConflictError, match="not of one history"):
        put_back(shop, back_up(other))


@pytest.mark.parametrize("how", ["gone", "cut", "garbage", "rows"])
def test_a_database_that_is_gone_or_damaged_is_replaced_and_kept(shop: Shop, how: str) -> None:
    promote(shop, 1)
    backup = back_up(shop)
    path = shop.database_path
    if how == "gone":
        path.unlink()
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:5000])
    elif how == "garbage":
        path.write_bytes(os.urandom(path.stat().st_size))
    else:
        with sqlite3.connect(path) as raw:
            raw.execute("UPDATE version SET signature = 'no json'")
        raw.close()
    kept = put_back(shop, backup)
    assert (kept is not None) == (how != "gone")
    assert kept is None or kept.exists()
    assert kinds(shop)[-2:] == ["channel.promote", "database.restored"]
    assert bad(doctor(shop).examine()) == []


def test_the_log_of_a_file_that_is_gone_is_never_taken_for_the_new_one_s(shop: Shop) -> None:
    backup = back_up(shop)
    shop.database_path.unlink()
    shop.database_path.with_name("registry.db-wal").write_bytes(b"of the old file")
    put_back(shop, backup)
    assert (shop.path / "registry.db.replaced-000001-wal").read_bytes() == b"of the old file"
    assert bad(doctor(shop).examine()) == []


def test_a_damaged_backup_restores_nothing(shop: Shop) -> None:
    backup = back_up(shop)
    data = bytearray(backup.read_bytes())
    data[50_000] ^= 4
    backup.write_bytes(data)
    before = kinds(shop)
    with pytest.raises(IntegrityError):
        put_back(shop, backup, force=True)
    assert kinds(shop) == before


def test_commands_that_have_the_database_open_go_on_with_the_restored_one(shop: Shop) -> None:
    backup = back_up(shop)
    with shop.database() as held:
        with held.write() as connection:
            add_version(connection, model="late", word="late")
        with held.read() as connection:
            before = events.read_head(connection)
            put_back(shop, backup, force=True)
            assert events.read_head(connection) == before  # one transaction sees one state
        with held.read() as connection:
            assert list(events.events_after(connection, 0))[-1].kind == "database.restored"
        with held.write() as connection:
            add_version(connection, model="later", word="later")
        assert held.check() == []


def test_what_comes_in_after_the_plan_is_found_under_the_lock(shop: Shop) -> None:
    backup = back_up(shop)
    made = plan(shop, backup)
    with shop.database() as database, database.write() as connection:
        add_version(connection, model="late", word="late")
    with pytest.raises(ConflictError, match="written meanwhile"):
        restore(
            made,
            database=shop.database_path,
            storage=shop.storage,
            actor="a",
            timeout_s=5,
            force=False,
        )
    assert "version.registered" in kinds(shop)[-1]
    assert not (shop.path / "registry.db.replaced-000001").exists()


def test_a_writer_that_does_not_end_is_waited_for_and_then_told(shop: Shop) -> None:
    backup = back_up(shop)
    with shop.database() as database, database.write(), pytest.raises(BusyError):
        put_back(shop, backup, timeout_s=0.2)


def test_a_promotion_waits_for_a_restore(shop: Shop) -> None:
    promote(shop, 1)
    backup = back_up(shop)
    with shop.storage.exclusive("lenet", "production", timeout_s=1), pytest.raises(BusyError):
        put_back(shop, backup, timeout_s=0.1)
    waiting = threading.Thread(target=lambda: put_back(shop, backup, force=True))
    waiting.start()
    promote(shop, 2)
    waiting.join()
    assert served(shop.storage).generation == 2
    doctor(shop).repair()
    assert bad(doctor(shop).examine()) == []


def test_a_restore_that_dies_leaves_the_old_or_the_new_database(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed when it has the lock, with what was there kept already."""
    backup = back_up(shop)
    promote(shop, 1)
    before = kinds(shop)

    def die(*_: object, **__: object) -> None:
        os._exit(9)

    def restore_and_die() -> None:
        monkeypatch.setattr("modelreg.registry.database.Database.backup", die)
        put_back(shop, backup, force=True)

    assert in_child(restore_and_die) == 9
    assert kinds(shop) == before
    assert bad(doctor(shop).examine()) == []
    put_back(shop, backup, force=True)
    assert kinds(shop)[-1] == "database.restored"


@pytest.mark.parametrize("step", ["pathlib.Path.rename", "os.link"])
def test_a_restore_over_a_damaged_file_that_dies_is_finished_by_the_next(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    backup = back_up(shop)
    shop.database_path.write_bytes(b"damaged")

    def die(*_: object, **__: object) -> None:
        os._exit(9)

    def restore_and_die() -> None:
        monkeypatch.setattr(step, die)
        put_back(shop, backup)

    assert in_child(restore_and_die) == 9
    put_back(shop, backup)
    assert kinds(shop)[-1] == "database.restored"


def test_the_database_is_no_backup_of_itself(shop: Shop) -> None:
    with pytest.raises(UsageError, match="the database itself"):
        plan(shop, shop.database_path)


def test_a_server_restores_itself(shop: Shop) -> None:
    with pytest.raises(UsageError, match="server's") as refused:
        plan_restore(back_up(shop), database=None, name="postgresql+psycopg://ada:***@db/models", storage=None)
    assert "pg_restore --clean --if-exists --dbname=postgresql://ada@db/models" in refused.value.hint()
