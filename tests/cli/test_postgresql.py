"""The command line with its database on a server: made, joined, lost and found again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from modelreg_testing.cli import CliResult, Shop, run_cli
from modelreg_testing.postgresql import PASSWORD, QUOTED, PostgresServer


@pytest.fixture
def server(postgres: PostgresServer) -> Iterator[PostgresServer]:
    with postgres.new_database() as server:
        yield server


@pytest.fixture
def migrated(postgres: PostgresServer) -> Iterator[PostgresServer]:
    with postgres.new_database(template=postgres.template) as server:
        yield server


@pytest.fixture
def served(migrated: PostgresServer, tmp_path: Path) -> Shop:
    shop = Shop(tmp_path, database_url=migrated.url)
    for word in (1, 2):
        shop.add_version(word=word)
        assert shop.cli("promote", f"lenet:{word}", "--to", "production").code == 0
    return shop


@contextmanager
def away(server: PostgresServer) -> Iterator[None]:
    """Let nobody connect, as while a server restarts or a network is down."""
    administrator = server.on("postgres")
    administrator.execute(f"ALTER DATABASE {server.database} ALLOW_CONNECTIONS false")
    administrator.execute(
        f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{server.database}'"
    )
    try:
        yield
    finally:
        administrator.execute(f"ALTER DATABASE {server.database} ALLOW_CONNECTIONS true")


def secrets(result: CliResult) -> list[str]:
    """Return what of the password a command has let out."""
    return [word for word in (PASSWORD, QUOTED) if word in result.out + result.err]


def generations(shop: Shop) -> list[tuple[int, int, str]]:
    rows = shop.cli("history", "lenet", "--json").document["generations"]
    return [(row["generation"], row["version"], row["kind"]) for row in reversed(rows)]


def test_init_makes_the_tables_and_keeps_the_url(server: PostgresServer, tmp_path: Path) -> None:
    home = tmp_path / "home"
    dry = run_cli("init", "--database", server.url, "--dry-run", home=home)
    assert dry.code == 0
    assert not home.exists()
    assert "revision none" in run_cli("db", "current", "--set", f"database.url={server.url}", home=made(tmp_path)).out
    result = run_cli("init", "--database", server.url, "--json", home=home)
    assert result.code == 0, result.err
    assert result.document["database"] == server.shown
    assert "holds a password" in result.err
    assert "~/.pgpass" in result.err
    assert (home / "config.toml").stat().st_mode & 0o077 == 0
    assert not (home / "registry.db").exists()
    shown = run_cli("config", "get", "database.url", home=home)
    assert shown.out == f"{server.shown}\n"
    assert "up to date" in run_cli("db", "current", home=home).out
    assert run_cli("db", "upgrade", home=home).code == 0
    assert run_cli("doctor", home=home).code == 0
    for each in (dry, result, shown):
        assert secrets(each) == []


def made(folder: Path) -> Path:
    """Return a registry that is there already."""
    assert run_cli("init", home=folder / "other").code == 0
    return folder / "other"


def test_init_takes_the_url_of_the_environment_and_writes_it_nowhere(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELREG_DATABASE_URL", server.url)
    home = tmp_path / "home"
    result = run_cli("init", home=home)
    assert result.code == 0
    assert result.err == "next: modelreg register NAME MODEL.onnx\n"
    assert result.out == f"{home} is a registry now, store {home}/store, database {server.shown}\n"
    assert QUOTED not in (home / "config.toml").read_text()
    assert f"{server.shown}: revision" in run_cli("db", "current", home=home).out


def test_init_again_keeps_the_registry_and_takes_no_other_database(server: PostgresServer, tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert run_cli("init", "--database", server.url, home=home).code == 0
    assert run_cli("init", home=home).code == 0
    assert run_cli("init", "--database", server.url, home=home).code == 0
    refused = run_cli("init", "--database", "other.db", home=home)
    assert refused.code == 2
    assert f"is a registry already, with the database {server.shown}" in refused.err
    assert secrets(refused) == []


def test_a_second_host_joins_with_the_same_database_and_store(served: Shop, migrated: PostgresServer) -> None:
    second = served.path.parent / "second"
    joined = run_cli("init", "--database", migrated.url, "--store", served.path / "store", home=second)
    assert joined.code == 0
    assert run_cli("rollback", "lenet@production", home=second).code == 0
    assert served.cli("promote", "lenet:2", "--to", "production", "--expect-current", "3").code == 0
    assert generations(served) == [(1, 1, "promote"), (2, 2, "promote"), (3, 1, "rollback"), (4, 2, "promote")]
    assert run_cli("history", "lenet", home=second).out == served.cli("history", "lenet").out
    assert run_cli("doctor", home=second).code == 0


def test_a_database_that_is_in_use_gets_no_new_store_beside_it(served: Shop, migrated: PostgresServer) -> None:
    refused = run_cli("init", "--database", migrated.url, home=served.path.parent / "second")
    assert refused.code == 1
    assert "the database names" in refused.err
    assert not (served.path.parent / "second").exists()


def test_nothing_is_made_where_the_database_cannot_be_reached(postgres: PostgresServer, tmp_path: Path) -> None:
    for url, fact in (
        (postgres.on("missing").url, "does not exist"),
        (postgres.url.replace(QUOTED, "wrong"), "refuses the login"),
        (postgres.url.replace(f":{postgres.port}/", ":1/"), "cannot be reached"),
    ):
        refused = run_cli("init", "--database", url, home=tmp_path / "home")
        assert refused.code == 1, url
        assert fact in refused.err
        assert len(refused.err.splitlines()) == 2, refused.err
        assert secrets(refused) == []
        assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("url", ["mysql://h/x", "postgresql://ada:pass word@1/2@h/x", "host=h password=x"])
def test_what_is_no_url_of_a_database_is_a_usage_error(url: str, tmp_path: Path) -> None:
    refused = run_cli("init", "--database", url, home=tmp_path / "home")
    assert refused.code == 2
    assert secrets(refused) == []


def test_a_traceback_has_no_password_either(postgres: PostgresServer, tmp_path: Path) -> None:
    home = made(tmp_path)
    for url in (postgres.on("missing").url, "postgresql://modelreg:pass word@1/2@127.0.0.1/x"):
        refused = run_cli("list", "-v", "--set", f"database.url={url}", home=home)
        assert refused.code in (1, 2)
        assert "Traceback" in refused.err
        assert secrets(refused) == []


def test_a_rollback_needs_no_server_and_the_next_promotion_records_it(served: Shop, migrated: PostgresServer) -> None:
    with away(migrated):
        for words in (("list",), ("show", "lenet"), ("promote", "lenet:1", "--to", "production")):
            refused = served.cli(*words)
            assert refused.code == 1, words
            assert "not currently accepting connections" in refused.err
            assert len(refused.err.splitlines()) == 2
            assert secrets(refused) == []
        assert served.cli("which", "lenet@production").code == 0
        rolled_back = served.cli("rollback", "lenet@production", "-m", "now")
        assert rolled_back.code == 0
        assert "from the store alone" in rolled_back.err
        assert served.cli("doctor").code == 1
    assert served.cli("promote", "lenet:2", "--to", "production").code == 0
    assert generations(served) == [(1, 1, "promote"), (2, 2, "promote"), (3, 1, "rollback"), (4, 2, "promote")]
    assert served.cli("verify", "--events").code == 0
    assert served.cli("doctor").code == 0


def test_a_rollback_works_where_the_driver_is_not_installed(served: Shop) -> None:
    code = "import sys; sys.modules['psycopg'] = None; from modelreg.cli.main import run; sys.exit(run(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "--home", str(served.path)]
    run = subprocess.run([*command, "list"], capture_output=True, text=True, check=False, env=os.environ)
    assert run.returncode == 1
    assert "psycopg is not installed" in run.stderr
    assert "modelreg[postgresql]" in run.stderr
    run = subprocess.run(
        [*command, "rollback", "lenet@production"], capture_output=True, text=True, check=False, env=os.environ
    )
    assert run.returncode == 0, run.stderr
    assert "rolling back from the store alone" in run.stderr


def test_a_dump_of_the_server_is_a_backup(served: Shop, migrated: PostgresServer, postgres: PostgresServer) -> None:
    """As docs/databases.md has it; the tools are the server's own."""
    file = served.path / "registry.dump"
    dump: list[str | Path] = [migrated.programs / "pg_dump", "--format=custom", f"--file={file}", migrated.url]
    subprocess.run(dump, check=True, capture_output=True)
    before = served.cli("history", "lenet", "--json").document
    with postgres.new_database() as fresh:
        options = ["--no-owner", "--exit-on-error", "--single-transaction", f"--dbname={fresh.url}"]
        subprocess.run([migrated.programs / "pg_restore", *options, file], check=True, capture_output=True)
        words = ("--set", f"database.url={fresh.url}")
        assert served.cli("history", "lenet", "--json", *words).document == before
        assert served.cli("verify", "--events", *words).code == 0
        assert served.cli("promote", "lenet:1", "--to", "production", *words).code == 0
        assert served.cli("doctor", *words).code == 0


def test_every_command_that_reads_the_database_reads_a_server_too(served: Shop) -> None:
    for words in (
        ("list",),
        ("list", "lenet"),
        ("show", "lenet"),
        ("show", "lenet:1"),
        ("history", "lenet"),
        ("diff", "lenet:1", "lenet:2"),
        ("verify",),
        ("verify", "--events"),
        ("toolchain", "list"),
        ("db", "current"),
    ):
        for more in ((), ("--json",)):
            result = served.cli(*words, *more)
            assert result.code == 0, (words, result.err)
            assert secrets(result) == []
    missing = served.cli("show", "lenet:2147483647")
    assert (missing.code, "lenet" in missing.err) == (1, True)
