from __future__ import annotations

import errno
import fcntl
import os
import signal
from pathlib import Path

import pytest

from modelreg.registry.errors import BusyError, StorageError
from modelreg.registry.storage.files import FileOps
from modelreg.registry.storage.local import LocalStorage
from modelreg_testing.storage import chain_of, pointer_after, published
from modelreg_testing.storage_faults import Stopped, counting_ops, in_child, killing_ops, stopping_ops

DAY_S = 24 * 3600


@pytest.fixture
def store(in_memory: Path) -> LocalStorage:
    return LocalStorage.create(in_memory / "store")


def die_while_storing(store: LocalStorage) -> None:
    """Kill a process that has written a blob and not yet named it."""
    ops, steps = counting_ops()
    LocalStorage(store.root, ops=ops).put_bytes(b"counted")
    at = steps.index("replace") + 1
    assert in_child(lambda: LocalStorage(store.root, ops=killing_ops(at)).put_bytes(b"lost")) == -signal.SIGKILL


def test_what_a_killed_writer_left_is_counted_and_swept(store: LocalStorage) -> None:
    die_while_storing(store)
    (leftover,) = store.leftovers()
    assert leftover.path.parent == store.root / "tmp"
    assert not leftover.in_use
    assert leftover.is_abandoned
    assert leftover.size_bytes == len(b"lost")
    assert 0 <= leftover.age_s < 60
    assert store.count_leftovers() == 1
    assert store.sweep_leftovers() == 1
    assert store.leftovers() == []


def test_a_name_says_host_process_and_chance(store: LocalStorage) -> None:
    die_while_storing(store)
    host, pid, chance = store.leftovers()[0].path.name.rsplit(".", 2)
    assert host
    assert int(pid) > 0
    assert len(chance) == 16


def test_what_a_living_writer_is_at_is_left_alone(store: LocalStorage) -> None:
    swept = []

    def sweep_meanwhile(_number: int, name: str, _path: Path) -> None:
        if name == "replace":
            swept.append((store.count_leftovers(), store.sweep_leftovers(), len(store.leftovers())))

    info = LocalStorage(store.root, ops=FileOps(sweep_meanwhile)).put_bytes(b"kept")
    assert swept == [(0, 0, 1)]
    assert store.read_blob(info.digest) == b"kept"


def test_what_another_host_left_is_swept_when_it_is_old(store: LocalStorage) -> None:
    folder = store.root / "tmp" / "elsewhere.12.0123456789abcdef"
    folder.mkdir()
    (folder / "blob").write_bytes(b"x")
    assert store.sweep_leftovers() == 0
    for path in (folder / "blob", folder):
        moment = path.stat().st_mtime - DAY_S - 1
        os.utime(path, (moment, moment))
    assert store.sweep_leftovers() == 1
    assert not folder.exists()


def test_a_pointer_that_was_being_written_is_swept(store: LocalStorage) -> None:
    release = published(store)
    (before,) = chain_of(store, length=1, release=release)
    steps_ops, steps = counting_ops()
    new = pointer_after(before, release=release)
    with pytest.raises(Stopped):
        LocalStorage(store.root, ops=stopping_ops("link")).swap_pointer(new, expected=before)
    assert store.leftovers() == []  # stopped in order, it tidied up; killed, it cannot
    LocalStorage(store.root, ops=steps_ops).swap_pointer(new, expected=before)
    after = pointer_after(new, release=release)
    at = steps.index("link") + 1
    in_child(lambda: LocalStorage(store.root, ops=killing_ops(at)).swap_pointer(after, expected=new))
    assert store.count_leftovers() == 2
    assert store.sweep_leftovers() == 2
    assert store.read_pointer("lenet", "production") == new


def test_a_pointer_is_not_swept_from_under_a_swap(store: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    release = published(store)
    monkeypatch.setattr("modelreg.registry.storage.leftovers._SWEEP_PATIENCE_S", 0.0)
    refused = []

    def sweep_meanwhile(_number: int, name: str, _path: Path) -> None:
        if name == "link":
            with pytest.raises(BusyError):
                store.sweep_leftovers()
            refused.append(name)

    swapping = LocalStorage(store.root, ops=FileOps(sweep_meanwhile))
    chain_of(swapping, length=1, release=release)
    assert refused == ["link"]


def test_what_an_interrupted_create_left_is_swept(store: LocalStorage) -> None:
    (store.root / f".{os.uname().nodename}.1.abc.tmp").write_bytes(b"{}")
    assert store.sweep_leftovers() == 1


def test_strange_things_in_tmp_are_looked_at_without_following_them(store: LocalStorage) -> None:
    host = os.uname().nodename
    (store.root / "tmp" / f"{host}.1.a").write_bytes(b"file")
    (store.root / "tmp" / f"{host}.1.b").symlink_to(store.root / "blobs")
    assert [leftover.in_use for leftover in store.leftovers()] == [False, False]
    assert store.sweep_leftovers() == 2
    assert (store.root / "blobs").is_dir()


def test_without_folder_locks_a_leftover_counts_as_nobodys(
    store: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    die_while_storing(store)
    monkeypatch.setattr(fcntl, "flock", refuse)
    assert [leftover.in_use for leftover in store.leftovers()] == [False]


def test_a_leftover_that_goes_away_while_we_look_is_none(store: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    die_while_storing(store)
    monkeypatch.setattr(Path, "lstat", lambda path: (_ for _ in ()).throw(FileNotFoundError(2, "gone", str(path))))
    assert store.leftovers() == []


def test_a_leftover_that_cannot_be_removed_is_named(store: LocalStorage) -> None:
    die_while_storing(store)

    def fail(_number: int, name: str, _path: Path) -> None:
        if name == "rmdir":
            raise PermissionError(13, "Permission denied")

    with pytest.raises(StorageError, match="tmp"):
        LocalStorage(store.root, ops=FileOps(fail)).sweep_leftovers()


def test_a_store_whose_empty_folders_were_not_copied_works(store: LocalStorage) -> None:
    (store.root / "tmp").rmdir()
    (store.root / "locks").rmdir()
    (store.root / "releases").rmdir()
    assert store.leftovers() == []
    copied = LocalStorage(store.root)
    chain_of(copied, length=1, release=published(copied))
