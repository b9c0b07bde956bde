from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from modelreg_testing.cli import Shop, run_cli


def test_a_home_on_a_network_file_system_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("modelreg.registry.sqlite._file_system", lambda _path, _mounts: "nfs4")
    refused = run_cli("init", home=tmp_path / "home")
    assert refused.code == 1
    assert "is on a network file system (nfs4), where SQLite corrupts" in refused.err
    assert "PostgreSQL" in refused.err
    assert not (tmp_path / "home").exists()


def test_init_makes_a_registry_here_that_every_command_finds(tmp_path: Path) -> None:
    made = run_cli("init")
    assert made.code == 0
    assert made.out == f"{tmp_path}/.modelreg is a registry now, store {tmp_path}/.modelreg/store\n"
    assert "modelreg register" in made.err
    assert run_cli("list", "--json").document["models"] == []
    assert run_cli("doctor").code == 0


def test_init_again_keeps_what_is_there_and_makes_what_is_missing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert run_cli("init", "--json", home=home).document["created"] is True
    (home / "config.toml").write_text("[limits]\nlock_timeout_s = 5\n")
    again = run_cli("init", "--json", home=home)
    assert again.code == 0
    assert again.document["created"] is False
    assert (home / "config.toml").read_text() == "[limits]\nlock_timeout_s = 5\n"
    (home / "registry.db").unlink()
    assert run_cli("list", home=home).code == 1
    assert run_cli("init", home=home).code == 0
    assert run_cli("list", home=home).code == 0


def test_two_registries_may_share_a_store_elsewhere(tmp_path: Path) -> None:
    for name in ("a", "b"):
        result = run_cli("init", "--store", "shared/store", "--json", home=tmp_path / name)
        assert result.code == 0
        assert result.document["store"] == str(tmp_path / "shared" / "store")
        assert not (tmp_path / name / "store").exists()
        assert run_cli("doctor", home=tmp_path / name).code == 0


def test_a_store_that_serves_another_registrys_releases_is_warned_of(shop: Shop, tmp_path: Path) -> None:
    shop.add_version()
    shop.cli("promote", "lenet:1", "--to", "production")
    said = "the store is in use: it serves lenet@production, of versions that another registry knows"
    words = ("init", "--store", shop.path / "store")
    for extra in (("--dry-run",), ()):
        made = run_cli(*words, *extra, home=tmp_path / "other")
        assert (made.code, said in made.err) == (0, True), made.err
    assert "in use" not in run_cli("init", home=tmp_path / "other").err  # it is this registry's own by now
    assert "in use" not in shop.cli("init").err
    for channel in ("a", "b", "c"):
        shop.cli("promote", "lenet:1", "--to", channel)
    assert "lenet@a, lenet@b, lenet@c and 1 more" in run_cli(*words, home=tmp_path / "third").err


def test_a_registry_does_not_change_its_store(tmp_path: Path) -> None:
    run_cli("init", home=tmp_path / "home")
    refused = run_cli("init", "--store", "other", home=tmp_path / "home")
    assert refused.code == 2
    assert "is a registry already" in refused.err
    assert not (tmp_path / "other").exists()


def test_a_dry_run_makes_nothing(tmp_path: Path) -> None:
    assert "would be made a registry" in run_cli("init", "--dry-run", home=tmp_path / "home").out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["s3://Bucket/prefix", "s3://bucket?what=1", "ftp://x"])
def test_a_store_of_a_kind_that_is_unknown_is_refused_before_the_home_counts(tmp_path: Path, url: str) -> None:
    refused = run_cli("init", "--store", url, home=tmp_path / "home")
    assert refused.code == 2
    assert len(refused.err.splitlines()) <= 2
    assert run_cli("list", home=tmp_path / "home").code == 1


def test_a_folder_with_other_things_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    refused = run_cli("init", "--store", "mine", home=tmp_path / "home")
    assert refused.code == 1
    assert "hint: " in refused.err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_a_path_of_any_characters_works(tmp_path: Path) -> None:
    home = tmp_path / "o'dd? %41 #1 ü"
    assert run_cli("init", home=home).code == 0
    assert run_cli("list", home=home).code == 0
    assert (home / "registry.db").is_file()


def test_a_home_that_cannot_be_made_is_one_line_with_exit_1(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    refused = run_cli("init", home=tmp_path / "file" / "home")
    assert refused.code == 1
    assert refused.err.startswith("modelreg: error: ")
    assert "Traceback" not in refused.err


def test_a_named_home_that_is_none_is_named_back_with_the_way_out(tmp_path: Path) -> None:
    result = run_cli("list", home=tmp_path / "nowhere")
    assert result.code == 1
    assert f"{tmp_path}/nowhere is not a registry" in result.err
    assert f"modelreg --home {tmp_path}/nowhere init" in result.err


def test_settings_with_a_typo_are_named_with_exit_2(tmp_path: Path) -> None:
    home = tmp_path / "home"
    run_cli("init", home=home)
    (home / "config.toml").write_text("[limits]\nlock_timeout = 5\n")
    result = run_cli("list", home=home)
    assert result.code == 2
    assert "lock_timeout" in result.err


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_disk_is_one_line_and_leaves_no_registry(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(small)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("tmpfs cannot be mounted here")
    try:
        refused = run_cli("init", home=small / "home")
        assert refused.code == 1
        assert refused.err.startswith("modelreg: error: ")
        assert "Traceback" not in refused.err
        assert "internal error" not in refused.err
        assert run_cli("list", home=small / "home").code == 1
    finally:
        subprocess.run(["umount", str(small)], check=True)
