from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import modelreg.registry.storage.open as store_module
from modelreg_testing.cli import Shop, run_cli


@pytest.mark.parametrize("left", [None, b""], ids=["missing", "cut off"])
def test_a_lost_database_is_not_replaced_by_an_empty_one(in_memory: Path, left: bytes | None) -> None:
    shop = Shop(in_memory)
    shop.add_version(word=1)
    shop.add_version(word=2)
    for version in (1, 2):
        assert shop.cli("promote", f"lenet:{version}", "--to", "production").code == 0
    shop.database_path.unlink()
    if left is not None:
        shop.database_path.write_bytes(left)
    for extra in ((), ("--dry-run",)):
        result = shop.cli("init", *extra)
        assert result.code == 1
        state = "gone" if left is None else "empty"
        assert f"database {shop.database_path} is {state}, and the store serves lenet@production" in result.err
    assert shop.cli("rollback", "lenet", "--channel", "production").code == 0
    assert "Restore its backup" in shop.cli("list").err


def test_a_lost_database_of_a_registry_that_never_served_is_made_again(in_memory: Path) -> None:
    shop = Shop(in_memory)
    for lose in (shop.database_path.unlink, lambda: shop.database_path.write_bytes(b"")):
        lose()
        assert shop.cli("init").code == 0
        assert shop.cli("list").code == 0


def test_a_store_that_is_away_is_not_replaced_by_an_empty_one(in_memory: Path) -> None:
    shop = Shop(in_memory)
    shop.add_version()
    store, away = shop.path / "store", shop.path / "store2"
    store.rename(away)
    store.mkdir()  # what is left of an unmounted disk
    for extra in ((), ("--dry-run",)):
        result = shop.cli("init", *extra)
        assert result.code == 1
        assert f"there is no store at {store}, and the database names 5 blobs" in result.err
        assert "Mount" in result.err
    (shop.path / "config.toml").unlink()
    assert shop.cli("init").code == 1
    assert list(store.iterdir()) == []
    store.rmdir()
    away.rename(store)
    assert shop.cli("init").code == 0
    assert shop.cli("doctor").code == 0


def test_a_missing_store_is_to_be_mounted_before_one_is_made(in_memory: Path) -> None:
    shop = Shop(in_memory)
    (shop.path / "store").rename(shop.path / "store2")
    hint = shop.cli("verify").err.splitlines()[-1]
    assert hint == "  hint: Mount it or restore it; a new registry is made with `modelreg init`."


@pytest.mark.slow
def test_of_many_that_make_one_registry_at_once_none_fails(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "modelreg.cli", "--home", str(tmp_path / "home"), "init"]
    racers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(8)]
    told = [racer.communicate(timeout=120)[1] for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * 8, told
    assert sorted(path.name for path in (tmp_path / "home").iterdir()) == ["config.toml", "registry.db", "store"]


def test_a_store_that_somebody_made_meanwhile_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = store_module.create_storage

    def make_it_twice(url: str) -> object:
        made(url)
        return made(url)

    monkeypatch.setattr(store_module, "create_storage", make_it_twice)
    assert run_cli("init", home=tmp_path / "home").code == 0
