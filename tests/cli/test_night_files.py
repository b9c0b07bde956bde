"""Nights on disk: whole or not at all, whatever kills their writer; old ones go, other files stay."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from modelreg.cli import night_files
from modelreg.cli.night_files import LATEST, only_one, prune_nights, read_nights, require_place, write_night
from modelreg.registry.errors import BusyError, StorageError
from modelreg_testing.storage_faults import in_child

AT = datetime(2026, 11, 30, 2, 0, 0, tzinfo=timezone.utc)
ENGINE = {"plan": "p", "golden_set": "g", "target": "cpu"}
LATER = AT + timedelta(days=365)
STEPS = ("_write", "_name", "_point", "_sync")


def files(word: str) -> dict[str, bytes]:
    body = {"schema": 1, "kind": "modelreg-nightly", "word": word, "host": {"name": "lab"}, "channels": []}
    return {"nightly.json": json.dumps(body).encode(), "nightly.html": b"<p>" * 1000}


def words(folder: Path) -> list[str]:
    return [str(night["word"]) for night in read_nights(folder, newest=100, now=LATER).documents]


def killing(step: str, *, after: bool) -> Callable[[], None]:
    """Return what lets this process be killed before or after a step of writing a night."""
    real = getattr(night_files, step)

    def killed(*arguments: object) -> object:
        done = real(*arguments) if after else None
        os.kill(os.getpid(), signal.SIGKILL)
        return done

    return lambda: setattr(night_files, step, killed)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_nightly_that_is_killed_leaves_whole_nights_alone(tmp_path: Path, step: str, after: bool) -> None:
    write_night(tmp_path, files("first"), at=AT)

    def work() -> None:
        killing(step, after=after)()
        write_night(tmp_path, files("second"), at=AT + timedelta(days=1))

    assert in_child(work) == -signal.SIGKILL
    assert words(tmp_path) in (["first"], ["first", "second"])
    for night in (path for path in tmp_path.iterdir() if not path.name.startswith(".")):
        assert sorted(path.name for path in night.iterdir()) == ["nightly.html", "nightly.json"]
    assert json.loads((tmp_path / LATEST / "nightly.json").read_bytes())["word"] in words(tmp_path)
    third = write_night(tmp_path, files("third"), at=AT + timedelta(days=2))
    assert (tmp_path / LATEST).resolve() == third


def test_what_killed_nightlies_left_goes_once_it_is_old(tmp_path: Path) -> None:
    old, new = tmp_path / ".unfinished-a", tmp_path / ".unfinished-b"
    for place in (old, new):
        place.mkdir()
        (place / "nightly.json").write_text("{")
    os.utime(old, (0, 0))
    write_night(tmp_path, files("one"), at=AT)
    assert not old.exists()
    assert new.exists()


def test_two_nights_of_one_second_are_two_in_order(tmp_path: Path) -> None:
    for number in range(11):
        write_night(tmp_path, files(str(number)), at=AT)
    assert words(tmp_path) == [str(number) for number in range(11)]


def test_only_the_newest_nights_are_kept_and_nothing_else_is_touched(tmp_path: Path) -> None:
    (tmp_path / "20200101T000000Z").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    for day in range(4):
        write_night(tmp_path, files(str(day)), at=AT + timedelta(days=day))
    assert prune_nights(tmp_path, keep=2) == 2
    assert words(tmp_path) == ["2", "3"]
    assert (tmp_path / "20200101T000000Z").is_dir()
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"kind": "modelreg-nightly", "schema": 99}', b"\xff"])
def test_a_night_that_cannot_be_read_is_named(tmp_path: Path, content: bytes) -> None:
    write_night(tmp_path, files("good"), at=AT)
    bad = write_night(tmp_path, {"nightly.json": content}, at=AT + timedelta(days=1))
    found = read_nights(tmp_path, newest=30, now=LATER)
    assert ([night["word"] for night in found.documents], found.unreadable) == (["good"], (bad.name,))


@pytest.mark.parametrize(
    "channels",
    [
        None,
        [{"model": "lenet"}],
        [{"model": "lenet", "engines": [{"plan": "p", "golden_set": "g", "measured": {}}]}],
        [{"model": "lenet", "engines": [{**ENGINE, "measured": {"m": {}}}]}],
        [{"model": "lenet", "engines": [{**ENGINE, "measured": {"m": {"value": "x"}}}]}],
        [{"model": "lenet", "engines": [{**ENGINE, "measured": {"m": {"value": float("nan")}}}]}],
    ],
)
def test_a_night_that_cannot_be_compared_with_is_none_that_can_be_read(tmp_path: Path, channels: object) -> None:
    body = {"schema": 1, "kind": "modelreg-nightly", "host": {"name": "lab"}, "channels": channels}
    night = write_night(tmp_path, {"nightly.json": json.dumps(body).encode()}, at=AT)
    assert read_nights(tmp_path, newest=30, now=LATER).unreadable == (night.name,)


def test_nights_that_are_ahead_of_the_clock_are_set_apart(tmp_path: Path) -> None:
    for day in (-2, -1, 0, 300, 301):
        write_night(tmp_path, files(str(day)), at=AT + timedelta(days=day))
    found = read_nights(tmp_path, newest=2, now=AT)
    assert [night["word"] for night in found.documents] == ["-1", "0"]
    assert len(found.ahead) == 2


def test_tonight_stays_where_the_clock_went_back(tmp_path: Path) -> None:
    write_night(tmp_path, files("ahead"), at=AT + timedelta(days=300))
    write_night(tmp_path, files("old"), at=AT - timedelta(days=1))
    tonight = write_night(tmp_path, files("tonight"), at=AT)
    assert prune_nights(tmp_path, keep=1, but=tonight) == 1
    assert words(tmp_path) == ["tonight", "ahead"]
    assert (tmp_path / LATEST / "nightly.json").is_file()


def test_a_folder_that_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot write reports into"):
        require_place(tmp_path / "file" / "nights")
    with pytest.raises(StorageError, match="cannot write the report"):
        write_night(tmp_path / "nowhere", files("one"), at=AT)


def test_the_second_of_two_is_refused_and_the_lock_of_a_dead_one_is_free(tmp_path: Path) -> None:
    path = tmp_path / "nightly.lock"
    first, second = only_one(path, wait_s=0), only_one(path, wait_s=0)
    with first, pytest.raises(BusyError, match="locked by another") as caught, second:
        pass
    assert "--wait" in caught.value.hint()

    def die() -> None:
        with only_one(path, wait_s=0):
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(die) == -signal.SIGKILL
    with only_one(path, wait_s=0):
        pass
