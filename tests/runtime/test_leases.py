"""A serving host's lease: written when something is new or due, never a reason to stop serving."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from modelreg.registry.errors import StorageError
from modelreg.registry.leases import Lease, read_leases
from modelreg.registry.storage.local import LocalStorage
from modelreg.registry.storage.notes import Note
from modelreg.registry.storage.s3 import S3Storage
from modelreg.runtime.following import follow
from modelreg.runtime.leases import LeaseKeeper, describe_holder
from modelreg.runtime.pull import PullFolder
from modelreg.runtime.pull_request import Pulled
from modelreg_testing.pulls import REQUEST, From, activate
from modelreg_testing.s3_server import LIMITS, READER, S3Server
from modelreg_testing.storage import MemoryStorage, pointer_after

RELEASE = "a" * 64


@dataclass
class Watch:
    """A clock to set, and what was told."""

    now_s: float = 0.0
    told: list[str] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now_s


class Counted(MemoryStorage):
    writes = 0
    is_read_only = False

    def write_note(self, name: str, data: bytes, *, replaces: Note | None) -> bool:
        if self.is_read_only:
            raise StorageError("the store is mounted read-only")
        self.writes += 1
        return super().write_note(name, data, replaces=replaces)


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def store() -> Counted:
    return Counted()


def keeper_of(store: Counted, watch: Watch) -> LeaseKeeper:
    return LeaseKeeper(store, instance="api", ttl_s=90, warn=watch.told.append, clock=watch)


def live(store: MemoryStorage) -> list[Lease]:
    return list(read_leases(store).live)


def test_it_writes_when_a_release_is_new_and_when_a_third_of_its_life_is_over(store: Counted, watch: Watch) -> None:
    keeper = keeper_of(store, watch)
    first = pointer_after(None, release=RELEASE)
    for watch.now_s, writes in ((0, 1), (29, 1), (30, 2), (31, 2), (59, 2), (60, 3)):
        keeper.hold(first)
        assert store.writes == writes, watch.now_s
    second = pointer_after(first, release=RELEASE)
    keeper.hold(second)
    assert store.writes == 4
    assert [lease.generation for lease in live(store)] == [2]
    assert keeper.lease is not None


def test_it_is_given_back_at_the_end(store: Counted, watch: Watch) -> None:
    with keeper_of(store, watch) as keeper:
        keeper.hold(pointer_after(None, release=RELEASE))
        assert len(live(store)) == 1
    assert live(store) == []
    keeper.drop()


def test_where_it_may_not_write_it_says_so_once_and_tries_again_later(store: Counted, watch: Watch) -> None:
    store.is_read_only = True
    keeper = keeper_of(store, watch)
    served = pointer_after(None, release=RELEASE)
    for watch.now_s in (0, 5, 30, 60):
        keeper.hold(served)
    (told,) = watch.told
    assert "no lease is held" in told
    assert "read-only" in told
    store.is_read_only = False
    watch.now_s = 61
    keeper.hold(served)
    assert store.writes == 0  # it is not due yet
    watch.now_s = 90
    keeper.hold(served)
    assert len(live(store)) == 1
    store.is_read_only = True
    watch.now_s = 200
    keeper.hold(served)
    assert len(watch.told) == 2
    keeper.drop()
    assert len(live(store)) == 1  # the store is not asked again: the lease runs out


def test_who_is_interrupted_when_it_has_written_gives_it_back(watch: Watch) -> None:
    class Interrupting(Counted):
        def write_note(self, name: str, data: bytes, *, replaces: Note | None) -> bool:
            super().write_note(name, data, replaces=replaces)
            raise KeyboardInterrupt

    store = Interrupting()
    with pytest.raises(KeyboardInterrupt), keeper_of(store, watch) as keeper:
        keeper.hold(pointer_after(None, release=RELEASE))
    assert live(store) == []


def test_a_keeper_that_goes_to_another_channel_leaves_no_lease_behind(store: Counted, watch: Watch) -> None:
    keeper = keeper_of(store, watch)
    served = pointer_after(None, release=RELEASE)
    keeper.hold(served)
    watch.now_s = 100
    keeper.hold(served._replace(channel="canary"))
    assert [lease.channel for lease in live(store)] == ["canary"]


def test_a_store_that_is_away_is_asked_for_again(watch: Watch) -> None:
    def away() -> Counted:
        raise StorageError("away")

    keeper = LeaseKeeper(away, warn=watch.told.append, clock=watch)
    keeper.hold(pointer_after(None, release=RELEASE))
    assert len(watch.told) == 1
    assert keeper.lease is None


def test_a_holder_is_the_same_after_a_restart_if_it_has_a_name() -> None:
    assert describe_holder("api").key == describe_holder("api").key
    assert describe_holder("api").key != describe_holder("other").key
    assert "pid" in describe_holder().instance
    assert len(describe_holder("x" * 9999).instance) == 200


class EndOfTestError(Exception):
    pass


class Deaf:
    def pulled(self, _pulled: Pulled) -> None: ...

    def failed(self, _error: object) -> None: ...

    def recovered(self) -> None: ...


def test_following_holds_what_is_current_here_also_while_the_store_is_away(in_memory: Path) -> None:
    storage = LocalStorage.create(in_memory / "store")
    activate(storage, "one")
    held: list[int] = []
    waits = 0

    def wait(_seconds: float) -> None:
        nonlocal waits
        waits += 1
        if waits == 1:
            activate(storage, "two")
        if waits == 2:
            (in_memory / "store" / "FORMAT").rename(in_memory / "store" / "gone")
            (in_memory / "store" / "channels").rename(in_memory / "store" / "elsewhere")
        if waits == 3:
            raise EndOfTestError

    with pytest.raises(EndOfTestError):
        follow(
            From(storage),
            PullFolder(in_memory / "served"),
            REQUEST,
            told=Deaf(),
            wait=wait,
            interval_s=1,
            hold=lambda pointer: held.append(pointer.generation),
        )
    assert held == [1, 2, 2]


def test_a_reader_in_s3_is_told_that_it_cannot_hold_a_lease(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, watch: Watch
) -> None:
    location = replace(s3_server.make_store().location, profile="")
    for name, value in READER.items():
        monkeypatch.setenv(name, value)
    reader = S3Storage(replace(location, addressing="path"), limits=replace(LIMITS, connect_timeout_s=2.5))
    keeper = LeaseKeeper(reader, warn=watch.told.append)
    keeper.hold(pointer_after(None, release=RELEASE))
    (told,) = watch.told
    assert "no lease is held" in told


def test_two_long_folders_that_begin_alike_are_two_holders() -> None:
    one, other = (describe_holder(f"/{'x' * 250}/{name}") for name in "ab")
    assert one.key != other.key
    assert len(one.instance) == len(other.instance) <= 200
    assert describe_holder("/srv/\udcff" + "x" * 250).instance.startswith("/srv/")


def test_a_folder_whose_name_is_no_text_holds_a_lease_too() -> None:
    keeper = LeaseKeeper(MemoryStorage(), instance="/srv/\udcff", warn=pytest.fail)
    keeper.hold(pointer_after(None, release=RELEASE))
    assert keeper.lease is not None
