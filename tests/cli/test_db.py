from __future__ import annotations

import sqlite3

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


def test_a_database_without_schema_is_refused_then_upgraded(shop: Shop) -> None:
    shop.database_path.unlink()
    sqlite3.connect(shop.database_path).close()
    shop.database_path.touch()
    refused = shop.cli("list")
    assert refused.code == 1
    assert "modelreg db upgrade" in refused.err
    assert "needs" in shop.cli("db", "current").out
    dry = shop.cli("db", "upgrade", "--dry-run")
    assert f"would be upgraded from revision none to {SCHEMA_REVISION}" in dry.out
    assert shop.cli("list").code == 1
    assert shop.cli("db", "upgrade").code == 0
    assert shop.cli("list").code == 0


def test_a_database_of_a_newer_schema_is_refused_everywhere_with_what_to_do(shop: Shop) -> None:
    set_revision(shop, "9999")
    for words in (("list",), ("db", "upgrade"), ("promote", "lenet:1", "--to", "production")):
        refused = shop.cli(*words, "--json")
        assert refused.code == 1, words
        assert refused.document["error"]["kind"] == "schema-version"
        assert "9999" in refused.err
        assert "upgrade modelreg" in refused.err
    assert "9999" in shop.cli("db", "current").out
