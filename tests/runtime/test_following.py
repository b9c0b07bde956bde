"""Following a channel: what is new comes, what fails is told once, what is here stays."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

import pytest

from modelreg.registry.errors import (
    IntegrityError,
    ModelregError,
    NotFoundError,
    StorageError,
    StoreAbsentError,
    UsageError,
)
from modelreg.registry.storage.interface import Storage
from modelreg.registry.storage.local import LocalStorage
from modelreg.registry.storage.s3 import S3Storage
from modelreg.runtime.following import follow, next_wait_s, pull_once
from modelreg.runtime.pull import PullFolder
from modelreg.runtime.pull_request import Pulled
from modelreg_testing.pulls import REQUEST, SPOILED, From, activate, blob_of, check_folder, pull, released
from modelreg_testing.s3_server import BUCKET, LIMITS, S3Server
from modelreg_testing.storage import pointer_after
from modelreg_testing.storage_faults import overwrite


@pytest.fixture
def local(in_memory: Path) -> LocalStorage:
    return LocalStorage.create(in_memory / "store")


def remove_all(server: S3Server, store: S3Storage, below: str) -> None:
    found = server.boto.list_objects_v2(Bucket=BUCKET, Prefix=store.location.key(below))["Contents"]
    for each in found:
        server.boto.delete_object(Bucket=BUCKET, Key=each["Key"])


class StopError(Exception):
    """The end of a test's patience."""


@dataclass
class Listener:
    generations: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    recoveries: int = 0

    def pulled(self, pulled: Pulled) -> None:
        self.generations.append(pulled.pointer.generation)

    def failed(self, error: ModelregError) -> None:
        self.errors.append(str(error))

    def recovered(self) -> None:
        self.recoveries += 1


class Flaky(From):
    """A source that is away from time to time."""

    is_away = False
    looks = 0

    def connect(self) -> Storage:
        if Flaky.is_away:
            Flaky.looks += 1
            raise StorageError(f"away, said in {Flaky.looks} ways", hint="Check the network.")
        return self.storage


def run(storage: Storage, root: Path, script: Sequence[Callable[[], object]], source: type[From] = Flaky) -> Listener:
    """Follow while `script` happens, one thing in each wait."""
    listener, left = Listener(), list(script)

    def wait(seconds: float) -> None:
        listener.waits.append(seconds)
        if not left:
            raise StopError
        left.pop(0)()

    with pytest.raises(StopError):
        follow(source(storage), PullFolder(root), REQUEST, told=listener, wait=wait, interval_s=5)
    return listener


def test_a_look_at_a_store_in_s3_that_has_no_news_is_one_small_request(s3_server: S3Server, tmp_path: Path) -> None:
    store = s3_server.make_store()
    activate(store, "one")
    sent: list[str] = []

    class Counted(From):
        def connect(self) -> Storage:
            return S3Storage.connect(store.location, limits=LIMITS, on_step=lambda *step: sent.append(step[1]))

    heard = run(store, tmp_path / "into", [sent.clear], source=Counted)
    assert heard.generations == [1]
    assert sent == ["get_object"]


def test_following_mends_what_was_damaged_before_it_began(local: LocalStorage, tmp_path: Path) -> None:
    activate(local, "one")
    overwrite(pull(local, tmp_path / "into").plans["cpu"], b"plan one cpX")
    assert run(local, tmp_path / "into", []).generations == [1]
    assert check_folder(tmp_path / "into") == 1


@pytest.mark.parametrize("place", ["channels/lenet/production", "."], ids=["channel", "store"])
def test_what_vanishes_from_a_folder_is_told_and_what_is_here_stays(
    local: LocalStorage, tmp_path: Path, place: str
) -> None:
    activate(local, "one")
    root = tmp_path / "into"

    def vanish() -> None:
        shutil.move(local.root / place, tmp_path / "away")

    class Opening(From):
        def connect(self) -> Storage:
            return LocalStorage(local.root)

        open = connect

    heard = run(local, root, [vanish, lambda: None, lambda: None], source=Opening)
    assert (heard.generations, len(heard.errors)) == ([1], 1)
    assert check_folder(root) == 1
    with pytest.raises(NotFoundError if place != "." else StoreAbsentError):
        pull_once(Opening(local), PullFolder(root), REQUEST)
    assert check_folder(root) == 1


@pytest.mark.parametrize("below", ["channels/", ""], ids=["channel", "store"])
def test_what_vanishes_from_a_store_in_s3_is_told_and_what_is_here_stays(
    s3_server: S3Server, tmp_path: Path, below: str
) -> None:
    store = s3_server.make_store()
    activate(store, "one")
    root = tmp_path / "into"

    class Opening(From):
        def connect(self) -> Storage:
            return S3Storage.connect(store.location, limits=LIMITS)

        def open(self) -> Storage:
            return S3Storage(store.location, limits=LIMITS)

    heard = run(store, root, [lambda: remove_all(s3_server, store, below), lambda: None, lambda: None], source=Opening)
    assert (heard.generations, len(heard.errors)) == ([1], 1)
    with pytest.raises(NotFoundError if below else StoreAbsentError):
        pull_once(Opening(store), PullFolder(root), REQUEST)
    assert check_folder(root) == 1


def test_a_lost_pointer_in_s3_is_told_as_damage_with_a_hint_for_this_host(s3_server: S3Server, tmp_path: Path) -> None:
    store = s3_server.make_store()
    activate(store, "one")
    pull(store, tmp_path / "into")
    activate(store, "two")
    remove_all(s3_server, store, "channels/lenet/production/pointer.json")
    with pytest.raises(IntegrityError, match="pointer is missing"):
        pull(store, tmp_path / "into")
    assert check_folder(tmp_path / "into") == 1


def test_following_brings_the_fix_of_a_damaged_release_at_the_next_look(local: LocalStorage, tmp_path: Path) -> None:
    activate(local, "one")
    tries: list[str] = []

    class Counted(From):
        def open(self) -> Storage:
            tries.append("open")
            return self.storage

    def damage() -> None:
        activate(local, "two")
        overwrite(blob_of(local, b"plan two cpu"), b"plan two cpU")

    heard = run(
        local, tmp_path / "into", [damage, tries.clear, *[lambda: None] * 3, lambda: activate(local, "three")], Counted
    )
    assert heard.generations == [1, 3]
    assert (len(heard.errors), heard.recoveries) == (1, 1)
    assert max(heard.waits) <= 6
    assert len(tries) == 3  # every second look while nothing is new, and the fix


def test_following_brings_each_release_once_and_outlives_a_store_that_is_away(
    local: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Flaky, "is_away", False)
    monkeypatch.setattr(Flaky, "looks", 0)
    activate(local, "one")
    root = tmp_path / "into"

    def away() -> None:
        Flaky.is_away = True

    def back() -> None:
        assert check_folder(root) == 2
        Flaky.is_away = False
        activate(local, "three")

    def nothing() -> None:
        pass

    heard = run(local, root, [nothing, lambda: activate(local, "two"), away, nothing, nothing, back, nothing])
    assert heard.generations == [1, 2, 3]
    assert heard.errors == ["away, said in 1 ways"]
    assert heard.recoveries == 1
    assert 8 <= max(heard.waits) <= 12
    assert heard.waits[-1] <= 6
    assert check_folder(root) == 3


def test_following_waits_for_a_channel_that_is_not_there_yet(local: LocalStorage, tmp_path: Path) -> None:
    heard = run(local, tmp_path / "into", [lambda: activate(local, "one")])
    assert (len(heard.errors), heard.generations, heard.recoveries) == (1, [1], 0)


def test_following_ends_at_a_mistake_that_no_waiting_mends(local: LocalStorage, tmp_path: Path) -> None:
    def never(_seconds: float) -> NoReturn:
        raise AssertionError("it waited")

    activate(local, "one")
    pull(local, tmp_path / "into")
    other = replace(REQUEST, channel="staging")
    local.swap_pointer(pointer_after(None, release=released(local, "x"), channel="staging"), expected=None)
    with pytest.raises(UsageError):
        follow(From(local), PullFolder(tmp_path / "into"), other, told=Listener(), wait=never, interval_s=1)


def test_another_failure_is_told_though_the_first_has_not_ended(
    local: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Flaky, "is_away", False)
    activate(local, "one")

    def away() -> None:
        Flaky.is_away = True

    def back_and_damaged() -> None:
        Flaky.is_away = False
        (tmp_path / "into" / "pointer.json").write_text("damaged")

    heard = run(local, tmp_path / "into", [away, back_and_damaged])
    assert [("away" in error, "pointer.json" in error) for error in heard.errors] == [(True, False), (False, True)]
    assert heard.recoveries == 0


def test_waits_differ_a_little() -> None:
    waits = {next_wait_s(5) for _ in range(50)}
    assert len(waits) > 1
    assert 4 <= min(waits) <= max(waits) <= 6


@pytest.mark.parametrize("spoil", SPOILED)
def test_following_looks_again_at_what_is_no_longer_complete(
    local: LocalStorage, tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    activate(local, "one")
    heard = run(local, tmp_path / "into", [lambda: spoil(tmp_path / "into")])
    assert heard.errors == []
    assert check_folder(tmp_path / "into") == 1
