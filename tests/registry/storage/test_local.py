"""What only a store in a folder has: its layout, modes and links, its format, and a file system that refuses."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import modelreg_testing.memory
from modelreg.registry.errors import (
    ActivationConflictError,
    ActivationUnknownError,
    IntegrityError,
    SourceError,
    StorageError,
)
from modelreg.registry.storage.files import FileOps
from modelreg.registry.storage.local import LocalStorage
from modelreg_testing.storage import chain_of, manifest_of, pointer_after, published, stored_files
from modelreg_testing.storage_faults import check_store, overwrite

LARGE = os.urandom(1 << 10) * (9 << 10)


@pytest.fixture
def store(tmp_path: Path) -> LocalStorage:
    return LocalStorage.create(tmp_path / "store")


# -- the root ----------------------------------------------------------------------------------------------
def test_a_new_store_is_opened_by_its_folder(tmp_path: Path) -> None:
    made = LocalStorage.create(tmp_path / "deep" / "store")
    assert made.url == str(tmp_path / "deep" / "store")
    body = json.loads((made.root / "FORMAT").read_text())
    assert body["format"] == 1
    assert len(body["uuid"]) == 32
    assert LocalStorage(made.root).root == made.root
    assert check_store(made.root).generations == {}


def test_a_relative_folder_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    chain_of(LocalStorage.create(Path("deep/store")), length=1, release=published(LocalStorage(Path("deep/store"))))
    assert check_store(tmp_path / "deep" / "store").generations == {("lenet", "production"): 1}


def test_where_no_store_is_none_is_opened(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing", Path(__file__)):
        with pytest.raises(StorageError, match="no store") as caught:
            LocalStorage(folder)
        assert "init" in caught.value.hint()


@pytest.mark.parametrize("body", ["", "{}", "[]", "{", '"x"'])
def test_a_damaged_format_is_refused(store: LocalStorage, body: str) -> None:
    (store.root / "FORMAT").write_text(body)
    with pytest.raises(StorageError, match="FORMAT"):
        LocalStorage(store.root)


def test_a_newer_format_is_refused(store: LocalStorage) -> None:
    (store.root / "FORMAT").write_text('{"format": 2}')
    with pytest.raises(StorageError, match="format 2") as caught:
        LocalStorage(store.root)
    assert "upgrade" in caught.value.hint()


def test_a_format_that_cannot_be_read_is_not_taken_for_an_absent_store(store: LocalStorage) -> None:
    (store.root / "FORMAT").unlink()
    (store.root / "FORMAT").mkdir()
    with pytest.raises(StorageError, match="Is a directory"):
        LocalStorage(store.root)


def test_a_store_is_not_made_twice(store: LocalStorage) -> None:
    before = (store.root / "FORMAT").read_bytes()
    with pytest.raises(StorageError, match="already"):
        LocalStorage.create(store.root)
    assert (store.root / "FORMAT").read_bytes() == before


def test_a_store_is_not_made_among_other_things(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(StorageError, match=r"thesis\.tex"):
        LocalStorage.create(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_interrupted_create_is_finished_by_the_next(store: LocalStorage) -> None:
    (store.root / "FORMAT").rename(store.root / ".host.1.abc.tmp")
    assert LocalStorage.create(store.root).root == store.root


def test_of_two_creators_one_wins(tmp_path: Path) -> None:
    root = tmp_path / "store"

    def other_is_first(_number: int, name: str, path: Path) -> None:
        if name == "link":
            path.write_text('{"format": 1, "uuid": "other"}')

    with pytest.raises(StorageError, match="already"):
        LocalStorage.create(root, ops=FileOps(other_is_first))
    assert "other" in (root / "FORMAT").read_text()


def test_an_unmounted_store_is_not_taken_for_an_empty_one(store: LocalStorage) -> None:
    chain_of(store, length=1, release=published(store))
    store.root.rename(store.root.with_name("away"))
    uses: list[Callable[[], object]] = [
        lambda: store.read_pointer("lenet", "production"),
        lambda: store.list_generations("lenet", "production"),
        lambda: store.read_history("lenet", "production", 1),
        lambda: store.complete_reserved("lenet", "production"),
        lambda: store.has_blob("0" * 64),
        lambda: store.read_blob("0" * 64),
        lambda: store.read_manifest("0" * 64),
        store.list_channels,
        lambda: list(store.iterate_blobs()),
        lambda: list(store.iterate_releases()),
        lambda: store.put_bytes(b"x"),
    ]
    for use in uses:
        with pytest.raises(StorageError, match="store"):
            use()
    assert not store.root.exists()


# -- the layout --------------------------------------------------------------------------------------------
def test_things_lie_where_servers_look_for_them(store: LocalStorage) -> None:
    release = published(store)
    chain_of(store, length=2, release=release)
    channel = store.root / "channels" / "lenet" / "production"
    assert store.release_path(release) == store.root / "releases" / release
    assert sorted(path.name for path in (channel / "history").iterdir()) == [
        "000000000001.json",
        "000000000002.json",
    ]
    assert (channel / "current").resolve() == (store.root / "releases" / release).resolve()
    assert sorted(path.name for path in channel.iterdir()) == ["current", "history", "pointer.json"]


def test_current_follows_every_swap(store: LocalStorage) -> None:
    first, second = published(store, note="1"), published(store, note="2")
    (before,) = chain_of(store, length=1, release=first)
    store.swap_pointer(pointer_after(before, release=second), expected=before)
    assert (store.root / "channels" / "lenet" / "production" / "current").readlink().name == second


def test_a_swap_does_not_need_current(store: LocalStorage) -> None:
    release = published(store)
    (before,) = chain_of(store, length=1, release=release)
    current = store.root / "channels" / "lenet" / "production" / "current"
    current.unlink()
    current.mkdir()
    store.swap_pointer(pointer_after(before, release=release), expected=before)
    assert store.leftovers() == []


def test_what_is_immutable_is_read_only_and_has_one_name(store: LocalStorage, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(LARGE)
    large = store.put_file(tmp_path / "source")
    small = store.put_bytes(b"small")
    store.put_bytes(b"small")
    release = published(store)
    chain_of(store, length=1, release=release)
    blobs = [store.root / "blobs" / "sha256" / info.digest[:2] / info.digest for info in (large, small)]
    history = store.root / "channels" / "lenet" / "production" / "history" / "000000000001.json"
    files = [path for path in (store.root / "releases" / release).rglob("*") if path.is_file()]
    for path in [*blobs, history, *files]:
        state = path.stat()
        assert (stat.S_IMODE(state.st_mode), state.st_nlink) == (0o444, 1), path


def test_a_blob_that_somebody_linked_or_made_writable_is_made_our_own_again(store: LocalStorage) -> None:
    info = store.put_bytes(b"bytes")
    path = store.root / "blobs" / "sha256" / info.digest[:2] / info.digest
    os.link(path, store.root.parent / "other")
    store.put_bytes(b"bytes")
    assert path.stat().st_nlink == 1
    path.chmod(0o644)
    store.put_bytes(b"bytes")
    assert stat.S_IMODE(path.stat().st_mode) == 0o444


def test_strangers_among_blobs_and_releases_are_not_listed(store: LocalStorage) -> None:
    info = store.put_bytes(b"bytes")
    release = published(store)
    (store.root / "blobs" / "sha256" / "README").write_text("")
    (store.root / "blobs" / "sha256" / info.digest[:2] / "notes").write_text("")
    (store.root / "blobs" / "sha256" / info.digest[:2] / ("f" * 64)).write_text("")
    (store.root / "releases" / "notes").mkdir()
    (store.root / "releases" / ("0" * 64)).write_text("")
    (store.root / "channels" / "Not-Ours" / "x").mkdir(parents=True)
    (store.root / "channels" / "file").write_text("")
    assert info in set(store.iterate_blobs())
    assert {blob.digest for blob in store.iterate_blobs()} == check_blobs(store.root)
    assert list(store.iterate_releases()) == [release]
    assert store.list_channels() == []


def check_blobs(root: Path) -> set[str]:
    return {path.name for path in (root / "blobs" / "sha256").glob("*/*") if path.name.startswith(path.parent.name)} - {
        "notes"
    }


def test_strangers_in_a_history_are_not_generations(store: LocalStorage) -> None:
    chain_of(store, length=1, release=published(store))
    history = store.root / "channels" / "lenet" / "production" / "history"
    for name in ("1.json", "00000000000x.json", "000000000002.txt", "000000000003.json~"):
        (history / name).write_text("")
    assert store.list_generations("lenet", "production") == [1]


# -- damage ------------------------------------------------------------------------------------------------
def test_a_lost_pointer_of_a_channel_with_a_history_is_not_a_new_channel(store: LocalStorage) -> None:
    release = published(store)
    chain_of(store, length=2, release=release)
    (store.root / "channels" / "lenet" / "production" / "pointer.json").unlink()
    with pytest.raises(IntegrityError, match="missing"):
        store.read_pointer("lenet", "production")
    with pytest.raises(IntegrityError, match="missing"):
        store.swap_pointer(pointer_after(None, release=release), expected=None)


def test_a_pointer_restored_from_a_backup_is_not_moved_on(store: LocalStorage) -> None:
    release = published(store)
    first, second, _ = chain_of(store, length=3, release=release)
    overwrite(store.root / "channels" / "lenet" / "production" / "pointer.json", first.to_bytes())
    with pytest.raises(IntegrityError, match="generation 1") as caught:
        store.complete_reserved("lenet", "production")
    assert "backup" in caught.value.hint()
    with pytest.raises(IntegrityError):
        store.swap_pointer(pointer_after(first, release=release), expected=first)
    assert second.generation == 2


def test_a_reservation_whose_release_is_gone_is_named_and_not_completed(store: LocalStorage) -> None:
    first, second = published(store, note="1"), published(store, note="2")
    (before,) = chain_of(store, length=1, release=first)
    store.swap_pointer(pointer_after(before, release=second), expected=before)
    overwrite(store.root / "channels" / "lenet" / "production" / "pointer.json", before.to_bytes())
    shutil.rmtree(store.root / "releases" / second)
    with pytest.raises(IntegrityError, match="generation 2"):
        store.complete_reserved("lenet", "production")
    assert store.read_pointer("lenet", "production") == before


def test_a_document_longer_than_one_read_is_whole(store: LocalStorage) -> None:
    release = published(store)
    for length in (1 << 16, 200_000):
        current = store.read_pointer("lenet", "production")
        store.swap_pointer(pointer_after(current, release=release, actor="x" * length), expected=current)
        found = store.read_pointer("lenet", "production")
        assert found is not None
        assert len(found.actor) == length


def test_a_release_that_another_publishes_meanwhile_is_accepted(store: LocalStorage) -> None:
    files = stored_files(store, {"cpu/a": b"plan"})
    raced: list[str] = []

    def other_is_first(_number: int, name: str, _path: Path) -> None:
        if name == "rename_folder" and not raced:
            raced.append(LocalStorage(store.root).publish_release(manifest_of(files), files))

    release = LocalStorage(store.root, ops=FileOps(other_is_first)).publish_release(manifest_of(files), files)
    assert raced == [release]
    assert check_store(store.root).releases == {release}


def test_the_name_of_a_release_is_synced_before_its_first_use_and_after_another_took_its_place(
    store: LocalStorage,
) -> None:
    """Whoever gave it may have died before the sync; and one made anew by another process is not the one we know."""
    release = published(store)
    synced: list[str] = []
    ours = LocalStorage(store.root, ops=FileOps(lambda _number, name, path: synced.append(f"{name} {path.name}")))

    def syncs_of_publishing() -> int:
        synced.clear()
        assert published(ours) == release
        return synced.count("fsync_dir releases")

    assert [syncs_of_publishing() for _ in range(3)] == [1, 0, 0]
    shutil.rmtree(store.root / "releases" / release)
    published(store)
    assert [syncs_of_publishing() for _ in range(2)] == [1, 0]
    shutil.rmtree(store.root / "releases" / release)
    assert [syncs_of_publishing() for _ in range(2)] == [1, 0]


def test_a_lost_document_is_taken_back_once_and_read_only(store: LocalStorage) -> None:
    chain = chain_of(store, length=3, release=published(store))
    path = store.root / "channels/lenet/production/history/000000000002.json"
    before = path.read_bytes()
    path.unlink()
    for _ in range(2):
        store.restore_history(chain[1])
        assert path.read_bytes() == before
    state = path.stat()
    assert (stat.S_IMODE(state.st_mode), state.st_nlink) == (0o444, 1)
    assert store.count_leftovers() == 0


@pytest.mark.parametrize("generation", [1, 2, 3, 4])
def test_a_document_of_another_history_is_not_taken(store: LocalStorage, generation: int, tmp_path: Path) -> None:
    chain_of(store, length=3, release=published(store))
    foreign = LocalStorage.create(tmp_path / "other")
    stranger = chain_of(foreign, length=4, release=published(foreign))[generation - 1]
    (store.root / f"channels/lenet/production/history/{generation:012d}.json").unlink(missing_ok=True)
    with pytest.raises(IntegrityError, match=f"generation {generation} is no part of the history"):
        store.restore_history(stranger)


def test_both_documents_of_a_swap_are_written_before_either_is_waited_for(store: LocalStorage) -> None:
    """What the disk gets together it writes together."""
    steps: list[str] = []
    ours = LocalStorage(store.root, ops=FileOps(lambda _number, name, _path: steps.append(name)))
    chain_of(ours, length=1, release=published(ours))
    swap = steps[len(steps) - steps[::-1].index("link") - 10 :]
    assert [step for step in swap if step in ("write", "fsync", "link")][:5] == [
        "write",
        "write",
        "fsync",
        "fsync",
        "link",
    ]


def test_a_generation_taken_by_a_host_without_our_lock_is_a_conflict(store: LocalStorage) -> None:
    release = published(store)
    (before,) = chain_of(store, length=1, release=release)
    other = pointer_after(before, release=release)

    def other_is_first(_number: int, name: str, path: Path) -> None:
        if name == "link":
            path.write_bytes(other.to_bytes())

    with pytest.raises(ActivationConflictError):
        LocalStorage(store.root, ops=FileOps(other_is_first)).swap_pointer(
            pointer_after(before, release=release), expected=before
        )
    assert store.complete_reserved("lenet", "production") == other


class LyingOps(FileOps):
    """A network file system that reports a failure for a rename that it did."""

    def replace(self, source: Path, target: Path) -> None:
        super().replace(source, target)
        if target.name == "pointer.json":
            raise FileNotFoundError(2, "No such file or directory", str(source))


class UnreadableOps(FileOps):
    """A disk that fails at the replace, and leaves the pointer unreadable."""

    def replace(self, source: Path, target: Path) -> None:
        if target.name == "pointer.json":
            overwrite(target, b"damaged")
            raise OSError(5, "Input/output error", str(source))
        super().replace(source, target)


def test_a_failed_replace_that_cannot_be_settled_is_an_unknown_outcome(store: LocalStorage) -> None:
    release = published(store)
    (before,) = chain_of(store, length=1, release=release)
    with pytest.raises(ActivationUnknownError, match="generation 2"):
        LocalStorage(store.root, ops=UnreadableOps()).swap_pointer(
            pointer_after(before, release=release), expected=before
        )


def test_a_replace_that_happened_though_it_failed_is_a_swap(store: LocalStorage) -> None:
    release = published(store)
    chain_of(LocalStorage(store.root, ops=LyingOps()), length=3, release=release)
    assert check_store(store.root).generations == {("lenet", "production"): 3}


# -- sources -----------------------------------------------------------------------------------------------
def test_a_pipe_is_refused_without_waiting_for_it(store: LocalStorage, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SourceError, match="pipe"):
        store.put_file(tmp_path / "pipe")


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null"])
def test_a_device_is_refused(store: LocalStorage, path: str) -> None:
    with pytest.raises(SourceError, match="device"):
        store.put_file(Path(path))


@pytest.mark.parametrize("size_bytes", [100, len(LARGE)], ids=["small", "large"])
@pytest.mark.parametrize("change", ["longer", "shorter", "other bytes"])
def test_a_source_that_changes_while_it_is_read_is_refused(
    store: LocalStorage, tmp_path: Path, size_bytes: int, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.write_bytes(LARGE[:size_bytes])
    read = os.readv
    changed: list[str] = []

    def read_and_change(fd: int, buffers: list[memoryview]) -> int:
        count = read(fd, buffers)
        if not changed:
            changed.append(change)
            if change == "longer":
                with source.open("ab") as file:
                    file.write(b"more")
            elif change == "shorter":
                os.truncate(source, size_bytes // 2)
            else:
                source.write_bytes(bytes(size_bytes))
                os.utime(source, ns=(1, 1))
        return count

    monkeypatch.setattr(os, "readv", read_and_change)
    with pytest.raises(SourceError, match="changed"):
        store.put_file(source)
    assert list(store.iterate_blobs()) == []
    assert store.leftovers() == []


@pytest.mark.parametrize("size_bytes", [100, len(LARGE)], ids=["small", "large"])
def test_a_source_that_cannot_be_read_is_not_the_stores_fault(
    store: LocalStorage, tmp_path: Path, size_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "source").write_bytes(LARGE[:size_bytes])

    def fail(_fd: int, _buffers: list[memoryview]) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "readv", fail)
    with pytest.raises(SourceError, match="Input/output"):
        store.put_file(tmp_path / "source")
    assert store.leftovers() == []


# -- file systems that refuse ------------------------------------------------------------------------------
@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mount things below the test's folder, or skip where that is not allowed."""
    mounted: list[Path] = []

    def run(*arguments: str, at: Path) -> Path:
        at.mkdir(exist_ok=True)
        command = ["mount", *arguments, str(at)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"cannot mount here: {done.stderr.strip()}")
        mounted.append(at)
        return at

    yield run
    for at in reversed(mounted):
        subprocess.run(["umount", str(at)], check=True)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_a_full_disk_changes_nothing_and_is_usable_when_there_is_room(
    mount: Callable[..., Path], tmp_path: Path
) -> None:
    disk = mount("-t", "tmpfs", "-o", "size=12m", "modelreg-test", at=tmp_path / "disk")
    store = LocalStorage.create(disk / "store")
    release = published(store)
    (before,) = chain_of(store, length=1, release=release)
    (tmp_path / "large").write_bytes(LARGE)
    with pytest.raises(OSError, match="No space"):
        fill(disk / "filler")
    for use in (
        lambda: store.put_file(tmp_path / "large"),
        lambda: store.put_bytes(b"x" * 100_000),
        lambda: published(store, note="more"),
        lambda: store.swap_pointer(pointer_after(before, release=release), expected=before),
    ):
        with pytest.raises(StorageError, match="bytes free") as caught:
            use()
        assert "space" in caught.value.hint()
    assert store.read_pointer("lenet", "production") == before
    assert store.list_generations("lenet", "production") == [1]
    store.verify_release(release)
    (disk / "filler").unlink()
    store.swap_pointer(pointer_after(before, release=release), expected=before)
    store.put_file(tmp_path / "large")
    assert store.leftovers() == []
    check_store(store.root)


def test_a_disk_that_fills_up_in_the_middle_of_a_copy_leaves_nothing(
    mount: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = mount("-t", "tmpfs", "-o", "size=6m", "modelreg-test", at=tmp_path / "disk")
    store = LocalStorage.create(disk / "store")
    (tmp_path / "large").write_bytes(LARGE)
    monkeypatch.setattr(os, "statvfs", lambda _path: os.statvfs_result((4096, 4096) + (1 << 20,) * 3 + (0,) * 6))
    with pytest.raises(StorageError, match="No space"):
        store.put_file(tmp_path / "large")
    assert store.leftovers() == []
    assert list(store.iterate_blobs()) == []


def test_a_read_only_store_is_read_and_says_so_when_written(mount: Callable[..., Path], tmp_path: Path) -> None:
    writable = LocalStorage.create(tmp_path / "store")
    release = published(writable)
    before, last = chain_of(writable, length=2, release=release)
    (tmp_path / "source").write_bytes(LARGE)
    root = mount("--bind", "-o", "ro", str(writable.root), at=tmp_path / "mounted")
    if os.access(root, os.W_OK):
        pytest.skip("a bind mount does not become read-only here")
    store = LocalStorage(root)
    assert store.read_pointer("lenet", "production") == last
    assert store.complete_reserved("lenet", "production") == last
    assert store.read_history("lenet", "production", 1) == before
    store.verify_release(release)
    blob = next(store.iterate_blobs())
    assert store.fetch_blob(blob.digest, tmp_path / "out") == blob.size_bytes
    assert store.count_leftovers() == 0
    for use in (
        lambda: store.put_file(tmp_path / "source"),
        lambda: store.put_bytes(b"new"),
        store.require_writable,
        lambda: published(store, note="new"),
        lambda: store.swap_pointer(pointer_after(last, release=release), expected=last),
        lambda: store.exclusive("lenet", "production", timeout_s=0).__enter__(),
    ):
        with pytest.raises(StorageError, match="Read-only") as caught:
            use()
        assert "read-only" in caught.value.hint()


# -- cost --------------------------------------------------------------------------------------------------
def test_opening_a_store_imports_nothing_heavy() -> None:
    code = (
        "import sys; before = set(sys.modules); import modelreg.registry.storage.open;print(*set(sys.modules) - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"numpy", "onnx", "sqlalchemy", "asyncio", "multiprocessing", "tempfile", "shutil", "ctypes", "uuid"}
    assert heavy.isdisjoint(done.stdout.split())


def test_storing_a_large_file_needs_little_memory(store: LocalStorage, tmp_path: Path) -> None:
    with (tmp_path / "source").open("wb") as file:
        file.truncate(256 << 20)
    code = (
        "import sys, pathlib; from modelreg.registry.storage.local import LocalStorage;"
        "from modelreg_testing.memory import peak_bytes;"
        "store = LocalStorage(pathlib.Path(sys.argv[1])); before = peak_bytes();"
        "store.put_file(pathlib.Path(sys.argv[2])); print((peak_bytes() - before) >> 20)"
    )
    command = [sys.executable, "-c", code, str(store.root), str(tmp_path / "source")]
    environment = {**os.environ, "PYTHONPATH": str(Path(modelreg_testing.memory.__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert int(done.stdout) <= 32  # MiB: eight buffers of one, and ctypes
