from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from modelreg.config.settings import Home
from modelreg.registry.database import Database
from modelreg.registry.errors import DatabaseError
from modelreg.registry.events import verify_chain
from modelreg_testing.cli import Shop, run_cli
from modelreg_testing.postgresql import QUOTED, PostgresServer
from modelreg_testing.registry import add_version, populate, row_counts


@pytest.fixture
def server(postgres: PostgresServer) -> Iterator[PostgresServer]:
    with postgres.new_database() as server:
        yield server


@pytest.fixture
def served(shop: Shop) -> Shop:
    for word in (1, 2):
        shop.add_version(word=word)
        assert shop.cli("promote", f"lenet:{word}", "--to", "production").code == 0
    return shop


@pytest.mark.slow
def test_a_registry_moves_to_a_server_and_back_with_all_its_history(
    served: Shop, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = served.cli("history", "lenet", "--json").document
    copied = served.cli("db", "copy", "--to", server.url, "--json")
    assert copied.code == 0, copied.err
    assert copied.document["to"] == server.shown
    assert copied.document["rows"] == sum(copied.document["tables"].values()) > 10
    assert QUOTED not in copied.out + copied.err
    monkeypatch.setenv("MODELREG_DATABASE_URL", server.url)
    assert served.cli("history", "lenet", "--json").document == before
    assert served.cli("verify", "--events").code == 0
    assert served.cli("doctor").code == 0
    served.home = Home(served.path)  # which has read its settings before
    served.add_version(word=3)
    assert served.cli("promote", "lenet:3", "--to", "production").code == 0
    back = served.path / "back.db"
    assert served.cli("db", "copy", "--to", back).code == 0
    monkeypatch.setenv("MODELREG_DATABASE_URL", "back.db")
    assert len(served.cli("history", "lenet", "--json").document["generations"]) == 3
    assert served.cli("rollback", "lenet@production").code == 0
    assert served.cli("doctor").code == 0
    assert served.cli("verify", "--events").code == 0


def test_every_table_is_copied_and_numbers_go_on(database: Database, server: PostgresServer, tmp_path: Path) -> None:
    from modelreg.migrations.runner import create_database
    from modelreg.registry.database_copy import copy_database

    populate(database)
    create_database(server.url)
    with Database.open(server.url) as copy:
        assert copy_database(database, copy) == row_counts(database) == row_counts(copy)
        assert copy.check() == []
        with copy.write() as connection:
            assert verify_chain(connection).broken_at is None
            assert add_version(connection, word="new").number == 4
            assert add_version(connection, model="new", word="new").number == 1
        with pytest.raises(DatabaseError, match="has a registry already"):
            copy_database(database, copy)


def test_a_dry_run_writes_nothing(served: Shop, server: PostgresServer) -> None:
    dry = served.cli("db", "copy", "--to", server.url, "--dry-run")
    assert dry.code == 0
    assert f"would be copied to {server.shown}" in dry.out
    with Database(server.url) as database:
        assert database.revision() is None
    assert served.cli("db", "copy", "--to", "copy.db", "--dry-run").code == 0
    assert not Path("copy.db").exists()


def test_what_is_in_use_is_not_written_over(served: Shop, tmp_path: Path) -> None:
    own = served.cli("db", "copy", "--to", served.database_path)
    assert (own.code, "is the registry's own database" in own.err) == (2, True)
    other = Shop(tmp_path / "other")
    other.add_version(word="theirs")
    for more in ((), ("--dry-run",)):
        refused = served.cli("db", "copy", "--to", other.database_path, *more)
        assert refused.code == 1
        assert "has a registry already" in refused.err
    assert "lenet" in run_cli("list", home=other.path).out


def test_a_place_that_cannot_be_reached_or_read_is_one_line(served: Shop, postgres: PostgresServer) -> None:
    for url, code in ((postgres.on("missing").url, 1), ("mysql://h/x", 2), ("missing/copy.db", 1)):
        refused = served.cli("db", "copy", "--to", url)
        assert refused.code == code, refused.err
        assert refused.err.startswith("modelreg: error: ")
