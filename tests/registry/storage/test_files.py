from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from pathlib import Path

import pytest

from modelreg.registry.errors import BusyError
from modelreg.registry.storage import files
from modelreg.registry.storage.failures import storage_error
from modelreg.registry.storage.files import FileOps
from modelreg.registry.storage.local import LocalStorage
from modelreg_testing.storage import chain_of, manifest_of, published, stored_files
from modelreg_testing.storage_faults import check_store, counting_ops


def test_steps_are_numbered_in_order(tmp_path: Path) -> None:
    seen: list[tuple[int, str, Path]] = []
    ops = FileOps(lambda *step: seen.append(step))
    fd = ops.create(tmp_path / "a")
    ops.write(fd, b"x", tmp_path / "a")
    ops.fsync(fd, tmp_path / "a")
    ops.close(fd, tmp_path / "a")
    assert [(number, name) for number, name, _ in seen] == [
        (1, "create"),
        (2, "write"),
        (3, "fsync"),
        (4, "close"),
    ]


def test_an_error_without_a_path_gets_that_of_its_step(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="descriptor") as caught:
            FileOps().write(fd, b"x", tmp_path / "named")
    finally:
        os.close(fd)
    assert caught.value.filename == str(tmp_path / "named")


def test_create_follows_no_link_and_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "file").write_text("kept")
    for name in ("link", "file"):
        with pytest.raises(FileExistsError):
            FileOps().create(tmp_path / name)
    assert not (tmp_path / "target").exists()


def test_a_write_that_the_kernel_cuts_short_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:3]))
    fd = FileOps().create(tmp_path / "a")
    FileOps().write(fd, b"0123456789", tmp_path / "a")
    os.close(fd)
    assert (tmp_path / "a").read_bytes() == b"0123456789"


def test_a_tree_is_removed_without_following_links(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").write_text("")
    (tmp_path / "tree" / "deep").mkdir(parents=True)
    (tmp_path / "tree" / "deep" / "file").write_text("")
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "outside")
    FileOps().remove_tree(tmp_path / "tree")
    assert [path.name for path in tmp_path.rglob("*")] == ["outside", "kept"]


# -- file systems with less, or more -----------------------------------------------------------------------
def refuse_links(*_arguments: object, **_options: object) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


def test_without_hard_links_a_name_is_still_given_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", refuse_links)
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    FileOps().link(tmp_path / "a", tmp_path / "final")
    with pytest.raises(FileExistsError):
        FileOps().link(tmp_path / "b", tmp_path / "final")
    assert (tmp_path / "final").read_text() == "a"


def test_a_store_works_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", refuse_links)
    store = LocalStorage.create(tmp_path / "store")
    chain_of(store, length=3, release=published(store))
    assert check_store(store.root).generations == {("lenet", "production"): 3}
    assert store.leftovers() == []


def test_a_link_that_fails_for_another_reason_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FileOps().link(tmp_path / "missing", tmp_path / "final")


def copy_instead(target: int, _request: int, source: int) -> int:
    """Do what FICLONE does, on a file system that has none."""
    os.pwrite(target, os.pread(source, 1 << 24, 0), 0)
    return 0


def test_a_release_is_verified_where_blocks_are_shared_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ops, steps = counting_ops()
    store = LocalStorage.create(tmp_path / "store", ops=ops)
    files_of_release = stored_files(store, {"cpu/a": b"plan" * 1000})
    monkeypatch.setattr(fcntl, "ioctl", copy_instead)
    steps.clear()
    store.publish_release(manifest_of(files_of_release), files_of_release)
    assert steps.count("clone") == 1
    assert steps.count("write") == 1  # the manifest alone
    check_store(store.root)


@pytest.mark.parametrize(("code", "is_fatal"), [(errno.EOPNOTSUPP, False), (errno.EXDEV, False), (errno.ENOSPC, True)])
def test_a_clone_that_is_not_to_be_had_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, is_fatal: bool
) -> None:
    def refuse(*_arguments: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "ioctl", refuse)
    if is_fatal:
        with pytest.raises(OSError, match="space"):
            FileOps().clone(0, 1, tmp_path)
    else:
        assert not FileOps().clone(0, 1, tmp_path)


def test_early_write_back_is_left_out_where_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(files, "_ranged", [])
    monkeypatch.setattr("ctypes.CDLL", lambda *_arguments, **_options: object())
    FileOps().start_write_back(0, 0, 1)
    assert files._ranged == [None]


# -- locks -------------------------------------------------------------------------------------------------
def test_a_lock_waits_for_its_holder(tmp_path: Path) -> None:
    ops, order = FileOps(), []
    entered = threading.Event()

    def hold() -> None:
        with ops.lock(tmp_path / "lock", timeout_s=0, what="it"):
            entered.set()
            time.sleep(0.03)
            order.append("first")

    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait()
    with ops.lock(tmp_path / "lock", timeout_s=10, what="it"):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]


def test_a_lock_that_stays_taken_is_busy(tmp_path: Path) -> None:
    ops = FileOps()
    with (
        ops.lock(tmp_path / "lock", timeout_s=0, what="it"),
        pytest.raises(BusyError, match=r"it stayed locked .* 0\.02 s"),
        ops.lock(tmp_path / "lock", timeout_s=0.02, what="it"),
    ):
        raise AssertionError("two holders")


def test_a_lock_file_that_was_cleared_away_while_we_waited_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    flock = fcntl.flock
    cleared: list[int] = []

    def flock_and_clear(fd: int, operation: int) -> None:
        flock(fd, operation)
        if len(cleared) < 2:
            cleared.append(fd)
            path.unlink()
            if len(cleared) == 2:
                path.write_text("")

    monkeypatch.setattr(fcntl, "flock", flock_and_clear)
    with FileOps().lock(path, timeout_s=0, what="it"):
        monkeypatch.undo()
        with pytest.raises(BusyError), FileOps().lock(path, timeout_s=0, what="it"):
            pass
    assert len(cleared) == 2


def test_a_lock_that_cannot_be_had_leaks_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    before = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match="No locks"), FileOps().lock(tmp_path / "lock", timeout_s=0, what="it"):
        pass
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# -- failures ----------------------------------------------------------------------------------------------
def test_a_failure_names_path_reason_and_next_step(tmp_path: Path) -> None:
    error = storage_error(OSError(errno.EROFS, "Read-only file system", str(tmp_path / "x")), tmp_path)
    assert str(error) == f"store path {tmp_path / 'x'}: Read-only file system"
    assert "writable mount" in error.hint()


def test_a_full_disk_says_how_much_is_free(tmp_path: Path) -> None:
    error = storage_error(OSError(errno.ENOSPC, "No space left on device"), tmp_path / "not" / "made" / "yet")
    assert "bytes free" in str(error)


def test_a_full_disk_that_tells_nothing_is_still_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "statvfs", refuse)
    assert str(storage_error(OSError(errno.ENOSPC, "No space left"), tmp_path)).endswith("No space left")


def test_a_failure_without_a_reason_still_says_something(tmp_path: Path) -> None:
    assert str(storage_error(OSError(), tmp_path)) == f"store path {tmp_path}: OSError"
    assert storage_error(OSError("odd"), tmp_path).hint() == ""
