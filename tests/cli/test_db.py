from __future__ import annotations

import sqlite3
import time

from modelreg.registry.schema import SCHEMA_REVISION
from modelreg_testing.cli import Shop


def set_revision(shop: Shop, revision: str) -> None:
    with sqlite3.connect(shop.database_path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))
    connection.close()


def test_current_tells_the_revision_and_what_is_needed(shop: Shop) -> None:
    assert f"revision {SCHEMA_REVISION}, up to date" in shop.cli("db", "current").out
    document = shop.cli("db", "current", "--json").document
    assert (document["revision"], document["needed"]) == (SCHEMA_REVISION, SCHEMA_REVISION)


def test_upgrade_of_an_up_to_date_database_does_nothing(shop: Shop) -> None:
    assert "nothing to do" in shop.cli("db", "upgrade").out
    assert shop.cli("db", "upgrade", "--json").document["changed"] is False


def test_an_empty_database_is_no_new_one(shop: Shop) -> None:
    shop.database_path.write_bytes(b"")
    for words in (("list",), ("db", "upgrade"), ("db", "upgrade", "--dry-run")):
        refused = shop.cli(*words)
        assert refused.code == 1, words
        assert f"database {shop.database_path} is empty" in refused.err
        assert "Restore its backup" in refused.err
    assert "revision none, this modelreg needs" in shop.cli("db", "current").out


def test_an_older_database_would_be_upgraded(shop: Shop) -> None:
    set_revision(shop, "0000")
    assert f"would be upgraded from revision 0000 to {SCHEMA_REVISION}" in shop.cli("db", "upgrade", "--dry-run").out


def test_an_upgrade_waits_as_long_as_the_settings_say(shop: Shop) -> None:
    (shop.path / "config.toml").write_text("[limits]\nlock_timeout_s = 0.1\n")
    started = time.monotonic()
    with shop.database() as database, database.write():
        refused = shop.cli("db", "upgrade")
    assert refused.code == 4
    assert "stayed locked" in refused.err
    assert time.monotonic() - started < 10


def test_a_database_of_a_newer_schema_is_refused_everywhere_with_what_to_do(shop: Shop) -> None:
    set_revision(shop, "9999")
    for words in (
        ("list",),
        ("db", "upgrade"),
        ("db", "upgrade", "--dry-run"),
        ("promote", "lenet:1", "--to", "production"),
    ):
        refused = shop.cli(*words, "--json")
        assert refused.code == 1, words
        assert refused.document["error"]["kind"] == "schema-version"
        assert "9999" in refused.err
        assert "upgrade modelreg" in refused.err
    assert "9999" in shop.cli("db", "current").out
