"""`gc`, `pin`, `unpin` and `leases`, and what the other commands say of them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from modelreg.cli.gc import read_span, say_span
from modelreg.registry import events
from modelreg.registry.leases import Holder, hold, read_leases
from modelreg.registry.words import Precision
from modelreg_testing.cli import CliResult, Shop

BARE = ("--keep", "1", "--keep-versions", "1", "--grace", "0")


@pytest.fixture(scope="module")
def promoted(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    shop = Shop(tmp_path_factory.mktemp("gc"))
    for word in (1, 2, 3):
        shop.add_version(word=word, precisions=(Precision.FP32, Precision.FP16))
        cli(shop, "promote", f"lenet:{word}", "--to", "production")
    return shop


@pytest.fixture
def shop(promoted: Shop, tmp_path: Path) -> Shop:
    return Shop.copy_of(promoted, tmp_path)


def cli(shop: Shop, *words: object, code: int = 0) -> CliResult:
    result = shop.cli(*words)
    assert result.code == code, result.err
    return result


def kinds(shop: Shop) -> list[tuple[str, str]]:
    with shop.database() as database, database.read() as connection:
        return [(row.kind, row.subject) for row in events._rows(connection)]


def test_nothing_goes_by_default_while_there_is_little(shop: Shop) -> None:
    shop.storage.put_bytes(b"orphan")
    found = cli(shop, "gc", "--json").document
    assert (found["keep"], found["keep_versions"], found["grace_s"]) == (20, 3, 7 * 86400)
    assert [each["reason"] for each in found["garbage"]] == ["orphan"]
    assert (found["marked"]["things"], found["swept"]["things"]) == (1, 0)


def test_a_dry_run_says_what_would_go_and_changes_nothing(shop: Shop) -> None:
    before = sorted(str(path) for path in (shop.path / "store").rglob("*") if "lock" not in path.name)
    found = cli(shop, "gc", "--dry-run", *BARE, "--json").document
    assert sorted(str(path) for path in (shop.path / "store").rglob("*") if "lock" not in path.name) == before
    assert found["dry_run"]
    assert found["due"]["things"] == 4  # a release, its plan, and the plans of two versions that nobody promoted
    assert {each["reason"] for each in found["kept"]} == {"channel", "newest", "record"}
    text = cli(shop, "gc", "--dry-run", *BARE).out
    assert re.search(r"remove +plans that nothing needs +3 ", text)
    assert "would remove 4 things" in text


def test_what_goes_is_said_and_everything_else_still_works(shop: Shop) -> None:
    result = cli(shop, "gc", *BARE)
    assert "removed 4 things" in result.out
    assert "with so short a grace" in result.err
    assert "all is well" in cli(shop, "doctor").out
    assert "nothing damaged" in cli(shop, "verify").out
    assert "nothing damaged" in cli(shop, "verify", "lenet:1").out
    assert "removed nothing" in cli(shop, "gc", *BARE).out
    cli(shop, "rollback", "lenet@production")


def test_a_swept_engine_is_shown_as_such_refused_and_skipped_with_the_reason(shop: Shop) -> None:
    cli(shop, "gc", *BARE)
    text = cli(shop, "show", "lenet:1").out
    assert re.search(r"1 +cpu +fp32 +\S+ +removed", text)
    assert "its plan was removed by gc; `modelreg build lenet:1` makes it again" in text
    engines = cli(shop, "show", "lenet:1", "--json").document["engines"]
    assert [(engine["swept"], engine["usable"]) for engine in engines] == [(True, False), (True, False)]
    refused = cli(shop, "promote", "lenet:1", "--to", "production", code=3)
    assert "removed by gc" in refused.err
    assert "modelreg build lenet:1 --target cpu" in refused.err
    assert "--log" not in refused.err
    forced = cli(shop, "promote", "lenet:1", "--to", "production", "--override-gates", "-m", "now", code=3)
    assert "removed by gc" in forced.err
    assert "skipped, its plan was removed by gc" in cli(shop, "validate", "lenet:1", code=3).out
    for words in (("--dry-run",), ("--drill",), ()):
        rolled = cli(shop, "rollback", "lenet@production", "--to-generation", "1", *words, code=1)
        assert "was removed by `modelreg gc` of" in rolled.err
    assert len(cli(shop, "history", "lenet", "--json").document["generations"]) == 3


def test_an_old_database_refuses_with_the_code_of_integrity(shop: Shop) -> None:
    copy = shop.database_path.read_bytes()
    cli(shop, "promote", "lenet:1", "--to", "production")
    for path in shop.path.glob("registry.db-*"):
        path.unlink()
    shop.database_path.write_bytes(copy)
    assert "the store serves generation 4, the database knows 3" in cli(shop, "gc", code=6).err
    assert cli(shop, "gc", "--dry-run", "--json", code=6).document["error"]["exit_code"] == 6
    cli(shop, "doctor", "--fix")
    cli(shop, "gc")


def test_settings_say_what_stays_and_options_go_before_them(shop: Shop) -> None:
    config = shop.path / "config.toml"
    config.write_text("[gc]\nkeep_releases = 1\nkeep_versions = 0\ngrace_s = 0.5\n")
    found = cli(shop, "gc", "--dry-run", "--json").document
    assert (found["keep"], found["keep_versions"], found["grace_s"]) == (1, 0, 0.5)
    assert cli(shop, "gc", "--dry-run", "--json", "--keep", "7").document["keep"] == 7
    for wrong in ("keep_releases = 0", "keep_versions = true", 'grace_s = "1d"', "keep = 3"):
        config.write_text(f"[gc]\n{wrong}\n")
        assert "gc" in cli(shop, "gc", code=2).err


@pytest.mark.parametrize("wrong", ["", "7", "d", "-1d", "1y", "1 d", "1e3d", "\u0661d"])
def test_what_is_no_length_of_time_is_refused(shop: Shop, wrong: str) -> None:
    assert "length of time" in cli(shop, "gc", "--grace", wrong, code=2).err


@pytest.mark.parametrize("span", ["7d", "12h", "90m", "30s", "1.5s", "0s", "14d"])
def test_a_length_of_time_is_said_as_it_is_read(span: str) -> None:
    assert say_span(read_span(span)) == span


# -- pins --------------------------------------------------------------------------------------------------
def test_a_pin_keeps_a_version_and_is_shown_and_told(shop: Shop) -> None:
    assert "would be pinned" in cli(shop, "pin", "lenet:1", "--dry-run").out
    assert "lenet:1 is pinned\n" in cli(shop, "pin", "lenet:1", "-m", "certified").out
    assert "is pinned already" in cli(shop, "pin", "lenet:1").out
    assert cli(shop, "gc", *BARE, "--json").document["swept"]["things"] == 1  # the other version's second engine
    assert "pinned       " in cli(shop, "show", "lenet:1").out
    assert cli(shop, "show", "lenet:1", "--json").document["pinned"]["message"] == "certified"
    assert "pinned: version 1" in cli(shop, "show", "lenet").out
    listed = cli(shop, "list", "lenet", "--json").document["versions"]
    assert {row["version"]: row["pinned"] for row in listed} == {1: True, 2: False, 3: False}
    assert re.search(r"PIN", cli(shop, "list", "lenet").out)
    cli(shop, "rollback", "lenet@production", "--to-generation", "1", "--drill")
    assert "would no longer" in cli(shop, "unpin", "lenet:1", "--dry-run").out
    assert "is no longer pinned" in cli(shop, "unpin", "lenet:1").out
    assert "is not pinned" in cli(shop, "unpin", "lenet:1").out
    assert "PIN" not in cli(shop, "list", "lenet").out
    assert cli(shop, "gc", *BARE, "--json").document["swept"]["things"] == 3
    told = [each for each in kinds(shop) if "pinned" in each[0]]
    assert told == [("version.pinned", "lenet:1"), ("version.unpinned", "lenet:1")]


def test_a_pin_says_what_it_cannot_bring_back(shop: Shop) -> None:
    cli(shop, "gc", *BARE)
    result = cli(shop, "pin", "lenet:1")
    assert "engine 1 (cpu fp32) was removed by gc" in result.err
    assert cli(shop, "pin", "lenet:1", "--json").document["swept_engines"] == [1, 2]


def test_a_release_that_was_removed_is_no_damage_to_a_doctor_that_reads_all(shop: Shop) -> None:
    cli(shop, "gc", *BARE)
    assert "removed by `modelreg gc`" in cli(shop, "rollback", "lenet@production", "--to-generation", "1", code=1).err
    said = cli(shop, "doctor", "--deep", "-v", "--json").document
    assert [each for each in said["findings"] if each["level"] != "ok"] == []
    cli(shop, "verify")


# -- leases ------------------------------------------------------------------------------------------------
def test_leases_are_listed_shown_and_dropped(shop: Shop) -> None:
    assert "no serving host holds a lease" in cli(shop, "leases", "list").err
    served = shop.storage.read_history("lenet", "production", 2)
    lease = hold(shop.storage, served, Holder(host="gpu-7", pid=42, instance="/srv/lenet"))
    hold(shop.storage, served, Holder(host="dead", pid=1, instance="x"), ttl_s=-1)
    text = cli(shop, "leases", "list").out
    assert "gpu-7 pid 42" in text
    assert "dead" not in text
    assert "dead" in cli(shop, "leases", "list", "lenet", "--all").out
    assert cli(shop, "leases", "list", "resnet50", "--json").document["leases"] == []
    assert "gpu-7 (/srv/lenet) for @production, generation 2" in cli(shop, "show", "lenet:2").out
    assert "gpu-7" not in cli(shop, "show", "lenet:1").out
    assert "gpu-7" in cli(shop, "show", "lenet").out
    assert cli(shop, "show", "lenet", "--json").document["leases"][0]["id"] == lease.holder.key
    assert "would be dropped" in cli(shop, "leases", "drop", lease.holder.key[:6], "--dry-run").out
    assert lease.name in cli(shop, "leases", "drop", lease.holder.key[:6]).out
    assert read_leases(shop.storage).live == ()
    assert "there is no lease 'abcx'" in cli(shop, "leases", "drop", "abcx", code=1).err


def test_what_is_no_lease_is_warned_of_and_can_be_dropped(shop: Shop) -> None:
    name = "leases/lenet/production/odd.json"
    assert shop.storage.write_note(name, b"odd", replaces=None)
    assert "is no lease that this modelreg can read" in cli(shop, "leases", "list").err
    assert "modelreg leases drop" in cli(shop, "gc", code=6).err
    cli(shop, "leases", "drop", name)
    cli(shop, "gc")


@contextmanager
def following(shop: Shop, folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Follow a channel until SIGTERM at the end of the block; the release is current when it begins."""
    named = ["--home", str(shop.path), "pull", "lenet@production", "--into", str(folder), "--target", "cpu"]
    command = [sys.executable, "-m", "modelreg.cli", *named, "--watch", "--interval", "0.1", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        while "fetched" not in follower.stdout.readline():
            assert follower.poll() is None
        yield follower
        follower.send_signal(signal.SIGTERM)
        assert follower.wait() == 0


def test_following_holds_a_lease_and_gives_it_back(shop: Shop, tmp_path: Path) -> None:
    with following(shop, tmp_path / "served") as follower:
        while not (found := read_leases(shop.storage).live):
            assert follower.poll() is None
        assert (found[0].generation, found[0].holder.pid) == (3, follower.pid)
        assert found[0].holder.instance == str(tmp_path / "served")
    assert read_leases(shop.storage).live == ()


def test_following_without_a_lease_writes_nothing_into_the_store(shop: Shop, tmp_path: Path) -> None:
    with following(shop, tmp_path / "served", "--no-lease"):
        pass
    assert not (shop.path / "store" / "leases").exists()


# -- after an older database was restored ------------------------------------------------------------------
def test_a_database_from_before_a_sweep_is_led_back_to_health(shop: Shop, tmp_path: Path) -> None:
    cli(shop, "db", "backup", tmp_path / "backup.db")
    cli(shop, "gc", *BARE)
    cli(shop, "db", "restore", tmp_path / "backup.db", "--force")
    told = cli(shop, "doctor", code=6)
    assert "modelreg gc --accept-database" in told.out
    assert "3 plans that nothing needs and that are gone would be noted" in cli(shop, "gc", "--dry-run", *BARE).out
    assert cli(shop, "gc", "--accept-database", "--json").document["forgotten"] == 3
    assert "all is well" in cli(shop, "doctor").out
    assert "nothing damaged" in cli(shop, "verify").out
    assert "its plan was removed by gc" in cli(shop, "show", "lenet:1").out
    assert "removed by gc" in cli(shop, "promote", "lenet:1", "--to", "production", code=3).err


def test_a_database_older_than_a_collection_is_named_by_the_doctor_and_accepted(shop: Shop, tmp_path: Path) -> None:
    cli(shop, "db", "backup", tmp_path / "backup.db")
    shop.add_version(word=4)
    cli(shop, "gc")
    cli(shop, "db", "restore", tmp_path / "backup.db", "--force")
    told = cli(shop, "doctor", "--fix", code=1)
    assert "gc refuses to work" in told.out
    assert "modelreg gc --accept-database" in told.out
    cli(shop, "gc", code=6)
    cli(shop, "gc", "--accept-database")
    cli(shop, "doctor")


def test_a_pin_of_a_version_that_the_database_lost_can_be_lifted(shop: Shop, tmp_path: Path) -> None:
    cli(shop, "db", "backup", tmp_path / "backup.db")
    shop.add_version(word=4)
    cli(shop, "pin", "lenet:4")
    cli(shop, "db", "restore", tmp_path / "backup.db", "--force")
    assert "modelreg unpin lenet:4" in cli(shop, "doctor", "--fix", code=1).out
    assert "modelreg unpin lenet:4" in cli(shop, "gc", code=6).err
    cli(shop, "gc", "--dry-run", "--accept-database")
    assert "there is no lenet:5" in cli(shop, "unpin", "lenet:5", code=1).err
    assert "would no longer" in cli(shop, "unpin", "lenet:4", "--dry-run").out
    assert "is no longer pinned" in cli(shop, "unpin", "lenet:4").out
    cli(shop, "gc")
    assert "all is well" in cli(shop, "doctor").out


def test_a_pin_that_cannot_be_read_is_named_by_the_doctor_and_can_be_lifted(shop: Shop) -> None:
    assert shop.storage.write_note("pins/lenet/1.json", b"odd", replaces=None)
    assert shop.storage.write_note("leases/lenet/production/odd.json", b"odd", replaces=None)
    told = cli(shop, "doctor", code=6)
    assert "modelreg unpin lenet:1" in told.out
    assert "modelreg leases drop NAME" in told.out
    cli(shop, "unpin", "lenet:1")
    cli(shop, "leases", "drop", "leases/lenet/production/odd.json")
    cli(shop, "doctor")
    cli(shop, "gc")


@pytest.mark.parametrize("setting", ["gc.grace_s=1e300", "gc.grace_s=inf", "gc.grace_s=0", "gc.keep_releases=1.5"])
def test_a_setting_that_no_collection_can_go_by_is_refused(shop: Shop, setting: str) -> None:
    assert setting.partition("=")[0] in cli(shop, "--set", setting, "gc", code=2).err


def test_a_mark_that_cannot_be_read_is_removed_by_the_doctor_and_what_it_was_of_is_marked_anew(shop: Shop) -> None:
    shop.storage.put_bytes(b"orphan")
    cli(shop, "gc")
    (mark,) = (shop.path / "store" / "gc" / "marks").iterdir()
    for broken in (b"", b"{", mark.read_bytes().replace(b"marked", b"moved")):
        mark.write_bytes(broken)
        assert "modelreg doctor --fix" in cli(shop, "gc", code=6).err
        assert "modelreg doctor --fix" in cli(shop, "doctor", code=1).out
        cli(shop, "verify")
        assert "removed: what it was of is kept" in cli(shop, "doctor", "--fix").out
        assert cli(shop, "gc", "--json").document["marked"]["things"] == 1
    cli(shop, "gc", *BARE)
    swept = next(path for path in mark.parent.iterdir() if path.name.startswith("release-"))
    swept.write_bytes(b"{")
    assert "damaged" in cli(shop, "verify", code=6).out
    cli(shop, "doctor", "--fix")
    cli(shop, "gc", *BARE)
    cli(shop, "verify")
