"""Leases on a folder and in S3: who holds what since when, judged by the store's clock."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from modelreg.registry import leases
from modelreg.registry.errors import InvalidReferenceError, StorageError
from modelreg.registry.leases import Holder, Lease, hold, lease_name, read_leases
from modelreg.registry.pointers import Pointer
from modelreg.registry.storage.interface import Storage
from modelreg_testing.s3_server import S3Server
from modelreg_testing.storage import MemoryStorage, pointer_after

HOLDER = Holder(host="gpu-7", pid=11, instance="/srv/lenet")


@pytest.fixture(params=["memory", "s3"])
def store(request: pytest.FixtureRequest) -> Storage:
    if request.param == "memory":
        return MemoryStorage()
    server: S3Server = request.getfixturevalue("s3_server")
    return server.make_store()


class LaterStorage(MemoryStorage):
    """A store whose clock is what a test sets."""

    time = datetime(2026, 1, 1, tzinfo=timezone.utc)

    def store_time(self) -> datetime:
        return self.time


def pointer(*, release: str = "a" * 64, current: Pointer | None = None, channel: str = "production") -> Pointer:
    return pointer_after(current, release=release, channel=channel)


def test_a_lease_says_who_holds_what_since_when(store: Storage) -> None:
    held = pointer()
    written = hold(store, held, HOLDER)
    (found,) = read_leases(store).live
    assert (found.holder, found.release, found.generation, found.channel) == (HOLDER, "a" * 64, 1, "production")
    assert abs(found.since - written.since) < timedelta(seconds=2)
    assert abs(found.renewed_at - store.store_time()) < timedelta(seconds=60)


def test_a_renewal_keeps_since_and_a_new_release_begins_anew() -> None:
    store = LaterStorage()
    first = pointer()
    begun = hold(store, first, HOLDER).since
    store.time += timedelta(minutes=5)
    hold(store, first, HOLDER)
    (renewed,) = read_leases(store).live
    assert (renewed.since, renewed.renewed_at) == (begun, store.time)
    hold(store, pointer(release="b" * 64, current=first), HOLDER)
    (moved,) = read_leases(store).live
    assert (moved.since, moved.release) == (store.time, "b" * 64)


def test_a_lease_runs_out_by_the_clock_of_the_store() -> None:
    store = LaterStorage()
    hold(store, pointer(), HOLDER, ttl_s=60)
    store.time += timedelta(seconds=60)
    assert len(read_leases(store).live) == 1
    store.time += timedelta(seconds=1)
    found = read_leases(store)
    assert (len(found.live), len(found.expired)) == (0, 1)


def test_a_host_and_its_folder_have_one_lease_on_a_channel_whatever_its_process(store: Storage) -> None:
    for pid in (1, 2, 3):
        hold(store, pointer(), replace(HOLDER, pid=pid))
    hold(store, pointer(), replace(HOLDER, instance="/srv/other"))
    found = read_leases(store).live
    assert sorted(lease.holder.pid for lease in found) == [3, 11]


def test_a_lease_that_is_given_back_is_gone(store: Storage) -> None:
    store.remove_note(hold(store, pointer(), HOLDER).name)
    assert read_leases(store) == leases.LeaseList(live=(), expired=(), unreadable=())


def test_leases_of_one_model_are_those_of_its_channels(store: Storage) -> None:
    hold(store, pointer(), HOLDER)
    hold(store, pointer(channel="canary"), HOLDER)
    hold(store, pointer()._replace(model="resnet50"), HOLDER)
    assert {lease.channel for lease in read_leases(store, model="lenet").live} == {"production", "canary"}


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"format": 1}', b"\xff", b'{"format": 2, "model": "lenet"}', b"[" * 100_000]
)
def test_what_is_no_lease_is_listed_as_such(data: bytes) -> None:
    store = MemoryStorage()
    name = lease_name("lenet", "production", "abc")
    assert store.write_note(name, data, replaces=None)
    assert read_leases(store).unreadable == (name,)


def test_a_lease_under_a_name_that_is_not_its_own_is_none() -> None:
    store = MemoryStorage()
    hold(store, pointer(), HOLDER)
    ((name, (data, _)),) = store.notes.items()
    other = name.replace("production", "canary")
    assert store.write_note(other, data, replaces=None)
    assert read_leases(store).unreadable == (other,)


def test_a_damaged_lease_of_our_own_is_written_again() -> None:
    store = MemoryStorage()
    assert store.write_note(lease_name("lenet", "production", HOLDER.key), b"damaged", replaces=None)
    hold(store, pointer(), HOLDER)
    assert len(read_leases(store).live) == 1


def test_where_the_store_cannot_tell_its_time_this_hosts_clock_is_asked_and_that_is_said() -> None:
    class ReadOnly(MemoryStorage):
        def store_time(self) -> datetime:
            raise StorageError("read-only")

    store, readable = ReadOnly(), MemoryStorage()
    hold(readable, pointer(), HOLDER)
    store.notes = readable.notes
    found = read_leases(store)
    assert (len(found.live), found.is_time_known) == (1, False)


def test_who_always_loses_against_somebody_else_says_so() -> None:
    class Contested(MemoryStorage):
        def write_note(self, *_: object, **__: object) -> bool:
            return False

    with pytest.raises(StorageError, match="somebody else"):
        hold(Contested(), pointer(), HOLDER)


def test_names_that_no_channel_has_never_become_a_path(tmp_path: Path) -> None:
    with pytest.raises(InvalidReferenceError):
        lease_name("../x", "production", "abc")


def test_a_lease_is_what_it_was_written_as() -> None:
    store = MemoryStorage()
    written = hold(store, pointer(), HOLDER)
    (found,) = read_leases(store).live
    assert isinstance(found, Lease)
    assert replace(found, renewed_at=written.renewed_at, since=written.since) == written
