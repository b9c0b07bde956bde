"""What every store must do, taken from the interface's words. A new kind of store is one line in `kind`."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from modelreg.registry.clock import utc_now
from modelreg.registry.contents import StoredFile
from modelreg.registry.digests import sha256_hex
from modelreg.registry.errors import (
    ActivationConflictError,
    BusyError,
    IntegrityError,
    InvalidReferenceError,
    NotFoundError,
    SourceError,
    StorageError,
)
from modelreg.registry.storage.interface import BlobInfo, Storage
from modelreg.registry.storage.marks import Mark, MarkedKind, MarkState, mark_name, parse_mark
from modelreg_testing.s3_server import LIMITS, S3Server
from modelreg_testing.storage import chain_of, manifest_of, pointer_after, published, stored_files
from modelreg_testing.storage_faults import LocalKind, MemoryKind, S3Kind, StorageKind

KINDS = ("local", "memory", "s3", "s3 in parts")
IN_PARTS = replace(LIMITS, look_first_bytes=0, single_bytes=1 << 20, part_bytes=5 << 20, workers=3)
ABSENT = "0" * 64
LARGE = bytes(range(256)) * (9 << 12)  # 9 MiB: past the size from which files are copied in pieces
HOSTILE_NAMES = ["", ".", "..", "../x", "/etc/x", "a/b", "A", "latest", "a\0", "a\n", "é", "x" * 129, "%2e", ".hidden"]
HOSTILE_DIGESTS = ["", "..", "A" * 64, "0" * 63, "0" * 65, "../" + "0" * 61, "g" * 64, "0" * 63 + "/", "\u0660" * 64]
HOSTILE_PATHS = ["", ".", "..", "/x", "../x", "a/../x", "a//x", "a/", "./x", "a\0b", "a\\b", "a\nb", "x" * 256]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> StorageKind:
    if request.param == "local":
        return LocalKind()
    if request.param == "memory":
        return MemoryKind()
    server: S3Server = request.getfixturevalue("s3_server")
    return S3Kind(server, limits=IN_PARTS if "parts" in request.param else LIMITS)


@pytest.fixture
def store(kind: StorageKind, tmp_path: Path) -> Storage:
    return kind.make(tmp_path)


def source_file(folder: Path, data: bytes) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(data)
    return path


def test_asking_whether_it_can_be_written_leaves_nothing(store: Storage) -> None:
    store.require_writable()
    assert store.count_leftovers() == 0
    assert list(store.iterate_blobs()) == []


# -- blobs -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("data", [b"", b"x", LARGE], ids=["empty", "one byte", "large"])
def test_a_stored_file_comes_back_by_its_digest(store: Storage, tmp_path: Path, data: bytes) -> None:
    done: list[int] = []
    info = store.put_file(source_file(tmp_path, data), progress=done.append)
    assert info == BlobInfo(digest=sha256_hex(data), size_bytes=len(data))
    assert sum(done) == len(data)
    assert store.read_blob(info.digest) == data
    with store.open_blob(info.digest) as blob:
        assert blob.read() == data
    assert list(store.iterate_blobs()) == [info]


def test_storing_the_same_bytes_again_is_a_no_op(store: Storage, tmp_path: Path) -> None:
    first = store.put_file(source_file(tmp_path, LARGE))
    assert store.put_file(tmp_path / "model.onnx") == first
    assert store.put_bytes(LARGE) == first
    assert list(store.iterate_blobs()) == [first]


@pytest.mark.parametrize("wrong", [b"wrong", b"kept byteZ", b""], ids=["another size", "same size", "cut to nothing"])
def test_storing_the_right_bytes_again_heals_a_damaged_blob(kind: StorageKind, store: Storage, wrong: bytes) -> None:
    info = store.put_bytes(b"kept bytes")
    kind.damage_blob(store, info.digest, wrong)
    with pytest.raises(IntegrityError, match=info.digest):
        store.read_blob(info.digest)
    store.put_bytes(b"kept bytes")
    assert store.read_blob(info.digest) == b"kept bytes"


def test_storing_a_large_file_again_heals_a_damaged_blob(kind: StorageKind, store: Storage, tmp_path: Path) -> None:
    info = store.put_file(source_file(tmp_path, LARGE))
    kind.damage_blob(store, info.digest, LARGE[:-1] + b"!")
    store.put_file(tmp_path / "model.onnx")
    assert store.verify_blob(info.digest) == len(LARGE)


def test_what_is_no_regular_file_is_no_source(store: Storage, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="missing"):
        store.put_file(tmp_path / "missing")
    with pytest.raises(SourceError, match="regular"):
        store.put_file(tmp_path)
    assert list(store.iterate_blobs()) == []


def test_a_blob_that_is_not_there_is_not_found(store: Storage, tmp_path: Path) -> None:
    assert not store.has_blob(ABSENT)
    with pytest.raises(NotFoundError, match=ABSENT):
        store.open_blob(ABSENT)
    with pytest.raises(NotFoundError):
        store.read_blob(ABSENT)
    with pytest.raises(NotFoundError):
        store.verify_blob(ABSENT)
    with pytest.raises(NotFoundError):
        store.fetch_blob(ABSENT, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("digest", HOSTILE_DIGESTS)
def test_what_is_no_digest_never_becomes_a_path(store: Storage, tmp_path: Path, digest: str) -> None:
    for use in (store.has_blob, store.open_blob, store.read_blob, store.verify_blob, store.read_manifest):
        with pytest.raises(IntegrityError):
            use(digest)
    for use_release in (store.release_path, store.verify_release):
        with pytest.raises(IntegrityError):
            use_release(digest)
    with pytest.raises(IntegrityError):
        store.fetch_blob(digest, tmp_path / "out")


def test_has_blob_says_yes_for_what_was_stored(store: Storage) -> None:
    assert store.has_blob(store.put_bytes(b"x").digest)


@pytest.mark.parametrize("data", [b"small", LARGE], ids=["small", "large"])
def test_a_fetched_blob_is_whole(store: Storage, tmp_path: Path, data: bytes) -> None:
    done: list[int] = []
    info = store.put_bytes(data)
    assert store.fetch_blob(info.digest, tmp_path / "out", progress=done.append) == len(data)
    assert (tmp_path / "out").read_bytes() == data
    assert sum(done) == len(data)


def test_a_damaged_blob_is_fetched_by_nobody(kind: StorageKind, store: Storage, tmp_path: Path) -> None:
    info = store.put_bytes(b"kept bytes")
    kind.damage_blob(store, info.digest, b"kept byteZ")
    folder = tmp_path / "empty"
    folder.mkdir()
    with pytest.raises(IntegrityError):
        store.fetch_blob(info.digest, folder / "out")
    with pytest.raises(IntegrityError):
        store.verify_blob(info.digest)
    assert list(folder.iterdir()) == []


def test_fetching_never_overwrites(store: Storage, tmp_path: Path) -> None:
    info = store.put_bytes(b"new")
    (tmp_path / "out").write_bytes(b"old")
    with pytest.raises(StorageError, match="out"):
        store.fetch_blob(info.digest, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"old"


def test_verifying_reports_size_and_progress(store: Storage) -> None:
    done: list[int] = []
    assert store.verify_blob(store.put_bytes(LARGE).digest, progress=done.append) == len(LARGE)
    assert sum(done) == len(LARGE)


# -- releases ----------------------------------------------------------------------------------------------
def test_a_release_is_published_under_the_digest_of_its_manifest(store: Storage) -> None:
    files = stored_files(store, {"cpu/model.onnx": b"plan", "cpu/deep/er/weights": LARGE, "sm_90/model.plan": b"p"})
    manifest = manifest_of(files)
    release = store.publish_release(manifest, files)
    assert release == sha256_hex(manifest)
    assert store.read_manifest(release) == manifest
    done: list[int] = []
    total = len(manifest) + len(LARGE) + len(b"planp")
    assert store.verify_release(release, progress=done.append) == total == sum(done)
    assert list(store.iterate_releases()) == [release]
    if (folder := store.release_path(release)) is not None:
        assert (folder / "cpu" / "deep" / "er" / "weights").read_bytes() == LARGE


def test_publishing_again_changes_nothing(store: Storage) -> None:
    assert published(store, note="a") == published(store, note="a")
    assert len(list(store.iterate_releases())) == 1


@pytest.mark.parametrize("data", [b"wrong", None, b"plan of b"], ids=["another size", "missing", "same size"])
@pytest.mark.parametrize("path", ["cpu/model.onnx", "manifest.json"])
def test_a_damaged_release_is_noticed_and_mended_by_publishing_it(
    kind: StorageKind, store: Storage, path: str, data: bytes | None
) -> None:
    release = published(store, note="a")
    kind.damage_release(store, release, path, data)
    # Where a release is nothing but its manifest, one that lost it is not there.
    with pytest.raises((IntegrityError, NotFoundError), match=release):
        store.verify_release(release)
    assert published(store, note="a") == release
    store.verify_release(release)


def test_a_release_needs_all_its_blobs(store: Storage) -> None:
    files = (StoredFile(path="cpu/model.onnx", digest=ABSENT, size_bytes=1),)
    with pytest.raises(NotFoundError, match=ABSENT):
        store.publish_release(manifest_of(files), files)
    assert list(store.iterate_releases()) == []


def test_a_release_of_a_damaged_blob_is_not_published(kind: StorageKind, store: Storage) -> None:
    files = stored_files(store, {"cpu/a": b"fine", "cpu/b": b"plan"})
    kind.damage_blob(store, files[1].digest, b"pLan")
    with pytest.raises(IntegrityError, match=files[1].digest):
        store.publish_release(manifest_of(files), files)
    assert list(store.iterate_releases()) == []


def test_a_release_with_a_wrong_size_is_not_published(store: Storage) -> None:
    info = store.put_bytes(b"plan")
    files = (StoredFile(path="cpu/a", digest=info.digest, size_bytes=5),)
    with pytest.raises(IntegrityError, match="cpu/a"):
        store.publish_release(manifest_of(files), files)
    assert list(store.iterate_releases()) == []


@pytest.mark.parametrize("path", [*HOSTILE_PATHS, "manifest.json"])
def test_a_release_file_stays_inside_the_release(store: Storage, path: str) -> None:
    info = store.put_bytes(b"plan")
    files = (StoredFile(path=path, digest=info.digest, size_bytes=4),)
    with pytest.raises(IntegrityError):
        store.publish_release(manifest_of(files), files)
    assert list(store.iterate_releases()) == []


@pytest.mark.parametrize("paths", [("a", "a"), ("a", "a/b"), ("manifest.json/a", "b")])
def test_release_files_do_not_meet(store: Storage, paths: tuple[str, str]) -> None:
    info = store.put_bytes(b"plan")
    files = tuple(StoredFile(path=path, digest=info.digest, size_bytes=4) for path in paths)
    with pytest.raises(IntegrityError):
        store.publish_release(manifest_of(files), files)


def test_publishing_other_files_than_the_manifest_names_is_a_mistake_in_code(store: Storage) -> None:
    files = stored_files(store, {"cpu/a": b"fine", "cpu/b": b"plan"})
    with pytest.raises(ValueError, match="manifest"):
        store.publish_release(manifest_of(files), files[:1])


@pytest.mark.parametrize(
    "manifest", [b"", b"[]", b"{}", b'{"engines":[{}]}', b'{"engines":[{"files":[1]}]}', b"[" * 9999]
)
def test_what_is_no_manifest_is_not_published(store: Storage, manifest: bytes) -> None:
    with pytest.raises(IntegrityError):
        store.publish_release(manifest, ())


def test_a_release_that_is_not_there_is_not_found(store: Storage) -> None:
    for use in (store.read_manifest, store.verify_release, store.release_path):
        with pytest.raises(NotFoundError, match=ABSENT):
            use(ABSENT)


# -- pointers ----------------------------------------------------------------------------------------------
def test_a_channel_that_never_had_a_pointer_has_none(store: Storage) -> None:
    assert store.read_pointer("lenet", "production") is None
    assert store.complete_reserved("lenet", "production") is None
    assert store.list_generations("lenet", "production") == []
    assert store.list_channels() == []
    with pytest.raises(NotFoundError):
        store.read_history("lenet", "production", 1)


def test_swaps_build_a_history(store: Storage) -> None:
    pointers = chain_of(store, length=3, release=published(store))
    assert store.read_pointer("lenet", "production") == pointers[-1]
    assert store.list_generations("lenet", "production") == [1, 2, 3]
    assert [store.read_history("lenet", "production", g) for g in (1, 2, 3)] == pointers
    with pytest.raises(NotFoundError, match="4"):
        store.read_history("lenet", "production", 4)


def test_polling_tells_what_is_new_and_nothing_else(store: Storage) -> None:
    for mark in ("", "seen"):
        with pytest.raises(NotFoundError, match="lenet@production has no active release"):
            store.poll_pointer("lenet", "production", mark=mark)
    release = published(store)
    (first,) = chain_of(store, length=1, release=release)
    news = store.poll_pointer("lenet", "production", mark="")
    assert news is not None
    assert news.pointer == first
    assert store.poll_pointer("lenet", "production", mark=news.mark) is None
    second = pointer_after(first, release=release)
    store.swap_pointer(second, expected=first)
    after = store.poll_pointer("lenet", "production", mark=news.mark)
    assert after is not None
    assert after.pointer == second
    assert after.mark != news.mark


def test_channels_do_not_touch_each_other(store: Storage) -> None:
    release = published(store)
    for model, channel in [("b", "x"), ("a", "y"), ("a", "x")]:
        store.swap_pointer(pointer_after(None, release=release, model=model, channel=channel), expected=None)
    assert store.list_channels() == [("a", "x"), ("a", "y"), ("b", "x")]
    found = store.read_pointer("a", "y")
    assert found is not None
    assert (found.model, found.channel, found.generation) == ("a", "y", 1)


def test_a_swap_from_a_stale_generation_changes_nothing(store: Storage) -> None:
    release = published(store)
    first, second = chain_of(store, length=2, release=release)
    with pytest.raises(ActivationConflictError, match="ada") as caught:
        store.swap_pointer(pointer_after(first, release=release), expected=first)
    assert (caught.value.expected, caught.value.found) == (1, 2)
    with pytest.raises(ActivationConflictError):
        store.swap_pointer(pointer_after(None, release=release), expected=None)
    assert store.read_pointer("lenet", "production") == second
    assert store.list_generations("lenet", "production") == [1, 2]


def test_a_swap_from_a_generation_that_is_not_there_changes_nothing(store: Storage) -> None:
    release = published(store)
    imagined = pointer_after(None, release=release)
    with pytest.raises(ActivationConflictError):
        store.swap_pointer(pointer_after(imagined, release=release), expected=imagined)
    assert store.read_pointer("lenet", "production") is None


def test_the_same_generation_of_another_writer_is_a_conflict(store: Storage) -> None:
    release = published(store)
    (mine,) = chain_of(store, length=1, release=release)
    other = pointer_after(None, release=release)
    assert other.generation == mine.generation
    with pytest.raises(ActivationConflictError):
        store.swap_pointer(pointer_after(other, release=release), expected=other)
    assert store.read_pointer("lenet", "production") == mine


def test_repeating_a_swap_that_was_done_is_no_conflict(store: Storage) -> None:
    (done,) = chain_of(store, length=1, release=published(store))
    store.swap_pointer(done, expected=None)
    assert store.list_generations("lenet", "production") == [1]


def test_a_pointer_that_does_not_follow_is_a_mistake_in_code(store: Storage) -> None:
    release = published(store)
    first, second = chain_of(store, length=2, release=release)
    with pytest.raises(ValueError, match="follow"):
        store.swap_pointer(pointer_after(second, release=release), expected=first)
    with pytest.raises(ValueError, match="follow"):
        store.swap_pointer(pointer_after(second, release=release, channel="staging"), expected=second)
    with pytest.raises(ValueError, match="follow"):
        store.swap_pointer(first, expected=second)


def test_a_pointer_never_names_a_release_that_is_not_published(store: Storage) -> None:
    with pytest.raises(NotFoundError, match=ABSENT):
        store.swap_pointer(pointer_after(None, release=ABSENT), expected=None)
    with pytest.raises(IntegrityError):
        store.swap_pointer(pointer_after(None, release="../" + "0" * 61), expected=None)
    assert store.read_pointer("lenet", "production") is None


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_hostile_names_are_refused(store: Storage, name: str) -> None:
    release = published(store)
    for model, channel in [(name, "production"), ("lenet", name)]:
        for use in (store.read_pointer, store.complete_reserved, store.list_generations):
            with pytest.raises(InvalidReferenceError):
                use(model, channel)
        with pytest.raises(InvalidReferenceError):
            store.read_history(model, channel, 1)
        with pytest.raises(InvalidReferenceError), store.exclusive(model, channel, timeout_s=0):
            pass
        with pytest.raises(InvalidReferenceError):
            store.swap_pointer(pointer_after(None, release=release, model=model, channel=channel), expected=None)
    assert store.list_channels() == []


def test_the_longest_names_work(store: Storage) -> None:
    name = "x" * 128
    store.swap_pointer(pointer_after(None, release=published(store), model=name, channel=name), expected=None)
    with store.exclusive(name, name, timeout_s=0):
        assert store.list_channels() == [(name, name)]


# -- swaps cut short ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("length", [0, 1, 3])
def test_a_reserved_generation_is_completed_with_the_same_body(kind: StorageKind, store: Storage, length: int) -> None:
    release = published(store)
    chain = chain_of(store, length=length, release=release)
    before = chain[-1] if chain else None
    cut = pointer_after(before, release=release)
    kind.die_before_pointer(store, cut, expected=before)
    assert store.read_pointer("lenet", "production") == before
    assert store.complete_reserved("lenet", "production") == cut
    assert store.complete_reserved("lenet", "production") == cut
    assert store.read_pointer("lenet", "production") == cut


def test_a_swap_completes_what_was_reserved_and_conflicts_with_it(kind: StorageKind, store: Storage) -> None:
    release = published(store)
    (before,) = chain_of(store, length=1, release=release)
    cut = pointer_after(before, release=release)
    kind.die_before_pointer(store, cut, expected=before)
    with pytest.raises(ActivationConflictError):
        store.swap_pointer(pointer_after(before, release=release), expected=before)
    after = pointer_after(cut, release=release)
    store.swap_pointer(after, expected=cut)
    assert store.list_generations("lenet", "production") == [1, 2, 3]


def test_a_writer_that_comes_back_finds_its_own_swap_completed(kind: StorageKind, store: Storage) -> None:
    cut = pointer_after(None, release=published(store))
    kind.die_before_pointer(store, cut, expected=None)
    store.swap_pointer(cut, expected=None)
    assert store.read_pointer("lenet", "production") == cut


@pytest.mark.parametrize("cut_at", [0, 1, 40, -2])
def test_a_damaged_reservation_is_named_and_not_completed(kind: StorageKind, store: Storage, cut_at: int) -> None:
    release = published(store)
    (before,) = chain_of(store, length=1, release=release)
    cut = pointer_after(before, release=release)
    kind.die_before_pointer(store, cut, expected=before)
    kind.damage_history(store, cut, cut.to_bytes()[:cut_at])
    with pytest.raises(IntegrityError, match="2"):
        store.complete_reserved("lenet", "production")
    assert store.read_pointer("lenet", "production") == before


def test_a_reservation_that_does_not_go_on_from_the_pointer_is_not_completed(kind: StorageKind, store: Storage) -> None:
    release = published(store)
    (before,) = chain_of(store, length=1, release=release)
    cut = pointer_after(before, release=release)
    kind.die_before_pointer(store, cut, expected=before)
    stranger = pointer_after(pointer_after(None, release=release), release=release)
    kind.damage_history(store, cut, stranger.to_bytes())
    with pytest.raises(IntegrityError):
        store.complete_reserved("lenet", "production")
    assert store.read_pointer("lenet", "production") == before


# -- damage ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"sha256":"","format":1}'])
def test_a_damaged_pointer_is_an_integrity_error(kind: StorageKind, store: Storage, data: bytes) -> None:
    chain_of(store, length=1, release=published(store))
    kind.damage_pointer(store, "lenet", "production", data)
    with pytest.raises(IntegrityError):
        store.read_pointer("lenet", "production")


@pytest.mark.slow
def test_every_flipped_bit_of_a_pointer_is_noticed(kind: StorageKind, store: Storage) -> None:
    (pointer,) = chain_of(store, length=1, release=published(store))
    data = pointer.to_bytes()
    for position in range(0, len(data) * 8, 7):
        changed = bytearray(data)
        changed[position // 8] ^= 1 << position % 8
        kind.damage_pointer(store, "lenet", "production", bytes(changed))
        try:
            found = store.read_pointer("lenet", "production")
        except IntegrityError:
            continue
        assert found == pointer  # white space between the fields may change, and nothing else


def test_a_pointer_copied_from_another_channel_is_refused(kind: StorageKind, store: Storage) -> None:
    release = published(store)
    chain_of(store, length=1, release=release)
    other = pointer_after(None, release=release, channel="staging")
    kind.damage_pointer(store, "lenet", "production", other.to_bytes())
    with pytest.raises(IntegrityError, match="staging"):
        store.read_pointer("lenet", "production")


def test_history_of_another_generation_is_refused(kind: StorageKind, store: Storage) -> None:
    first, second = chain_of(store, length=2, release=published(store))
    kind.damage_history(store, first, second.to_bytes())
    with pytest.raises(IntegrityError):
        store.read_history("lenet", "production", 1)


# -- locks and races ---------------------------------------------------------------------------------------
def test_exclusive_keeps_others_out_until_it_is_left(store: Storage) -> None:
    with (
        store.exclusive("lenet", "production", timeout_s=0),
        store.exclusive("lenet", "staging", timeout_s=0),
        pytest.raises(BusyError, match="lenet@production"),
        store.exclusive("lenet", "production", timeout_s=0.01),
    ):
        raise AssertionError("two holders")
    with store.exclusive("lenet", "production", timeout_s=0):
        pass


def test_exclusive_is_left_after_an_error_which_stays_as_it_is(store: Storage) -> None:
    with pytest.raises(OSError, match="mine"), store.exclusive("lenet", "production", timeout_s=0):
        raise OSError("mine")
    with store.exclusive("lenet", "production", timeout_s=0):
        pass


def test_a_swap_works_inside_and_outside_of_exclusive(store: Storage) -> None:
    release = published(store)
    with store.exclusive("lenet", "production", timeout_s=0):
        chain_of(store, length=2, release=release)
    assert store.list_generations("lenet", "production") == [1, 2]


@pytest.mark.slow
def test_sixteen_threads_lose_no_swap_and_win_none_twice(store: Storage) -> None:
    release = published(store)
    wins: Counter[int] = Counter()
    conflicts = 0
    start = threading.Barrier(16)

    def swap(actor: int) -> None:
        nonlocal conflicts
        start.wait()
        for _ in range(6):
            current = store.read_pointer("lenet", "production")
            new = pointer_after(current, release=release, actor=f"thread-{actor}")
            try:
                store.swap_pointer(new, expected=current)
            except ActivationConflictError:
                conflicts += 1
            else:
                wins[new.generation] += 1

    threads = [threading.Thread(target=swap, args=(actor,)) for actor in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(wins) == store.list_generations("lenet", "production")
    assert set(wins.values()) == {1}
    assert len(wins) + conflicts == 16 * 6


def test_nothing_is_left_over_after_work(store: Storage, tmp_path: Path) -> None:
    store.put_file(source_file(tmp_path, LARGE))
    chain_of(store, length=2, release=published(store))
    assert store.count_leftovers() == 0
    assert store.sweep_leftovers() == 0


# -- notes -------------------------------------------------------------------------------------------------
NOTE = "leases/lenet/production/0123.json"
HOSTILE_NOTES = [
    "",
    "leases",
    "blobs/x",
    "leases/../x",
    "/leases/x",
    "leases//x",
    "gc/.x",
    "leases/x\n",
    "pins/X",
    "gc/é",
]


def test_a_note_says_what_was_written_and_when_by_the_stores_clock(store: Storage) -> None:
    before = store.store_time()
    assert store.write_note(NOTE, b"one", replaces=None)
    note = store.read_note(NOTE)
    assert note is not None
    assert (note.name, note.data) == (NOTE, b"one")
    assert before - timedelta(seconds=1) <= note.written_at <= store.store_time() + timedelta(seconds=1)


def test_a_note_is_written_once_where_none_is_and_then_only_over_the_one_that_was_seen(store: Storage) -> None:
    assert store.write_note(NOTE, b"one", replaces=None)
    first = store.read_note(NOTE)
    assert not store.write_note(NOTE, b"two", replaces=None)
    assert store.write_note(NOTE, b"three", replaces=first)
    assert not store.write_note(NOTE, b"four", replaces=first)
    found = store.read_note(NOTE)
    assert found is not None
    assert found.data == b"three"


def test_a_note_that_is_gone_is_not_replaced(store: Storage) -> None:
    assert store.write_note(NOTE, b"one", replaces=None)
    first = store.read_note(NOTE)
    store.remove_note(NOTE)
    assert store.read_note(NOTE) is None
    assert not store.write_note(NOTE, b"two", replaces=first)
    store.remove_note(NOTE)
    assert store.read_note(NOTE) is None


def test_notes_below_a_folder_are_listed_and_no_others(store: Storage) -> None:
    names = {NOTE, "leases/lenet/staging/0123.json", "leases/lenet2/production/4567.json", "pins/lenet/1.json"}
    for name in names:
        assert store.write_note(name, name.encode(), replaces=None)
    assert {note.name for note in store.list_notes("leases")} == names - {"pins/lenet/1.json"}
    assert {note.name for note in store.list_notes("leases/lenet")} == {NOTE, "leases/lenet/staging/0123.json"}
    assert list(store.list_notes("gc")) == []


def test_of_many_who_replace_a_note_at_once_one_wins_each_time(store: Storage) -> None:
    assert store.write_note(NOTE, b"start", replaces=None)
    wins: list[str] = []

    def race(who: int) -> None:
        for turn in range(5):
            seen = store.read_note(NOTE)
            assert seen is not None
            if store.write_note(NOTE, f"{who} {turn} after {seen.data.decode()}".encode(), replaces=seen):
                wins.append(f"{who} {turn}")

    threads = [threading.Thread(target=race, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    last = store.read_note(NOTE)
    assert last is not None
    chain = last.data.decode().split(" after ")
    assert sorted(chain[:-1]) == sorted(wins)
    assert len(wins) >= 5


@pytest.mark.parametrize("name", HOSTILE_NOTES)
def test_what_is_no_name_of_a_note_never_becomes_a_path(store: Storage, name: str) -> None:
    with pytest.raises(InvalidReferenceError):
        store.read_note(name)
    with pytest.raises(InvalidReferenceError):
        store.write_note(name, b"x", replaces=None)
    with pytest.raises(InvalidReferenceError):
        store.remove_note(name)


# -- collection --------------------------------------------------------------------------------------------
def set_mark(store: Storage, kind: MarkedKind, digest: str, state: MarkState) -> None:
    mark = Mark(kind=kind, digest=digest, state=state, at=utc_now(), reason="test", size_bytes=1, actor="ada")
    assert store.write_note(mark.name, mark.to_bytes(), replaces=store.read_note(mark.name))


def state_of(store: Storage, kind: MarkedKind, digest: str) -> MarkState | None:
    note = store.read_note(mark_name(kind, digest))
    return None if note is None else parse_mark(note).state


def test_storing_a_marked_blob_again_takes_it_back_from_the_collector(store: Storage, tmp_path: Path) -> None:
    for data in (b"small", LARGE):
        digest = store.put_bytes(data).digest
        set_mark(store, MarkedKind.BLOB, digest, MarkState.MARKED)
        assert store.put_file(source_file(tmp_path, data)).digest == digest
        assert state_of(store, MarkedKind.BLOB, digest) is MarkState.KEPT
        assert store.read_blob(digest) == data


def test_asking_to_keep_a_blob_takes_it_back_and_says_whether_it_is_there(store: Storage) -> None:
    digest = store.put_bytes(b"x").digest
    set_mark(store, MarkedKind.BLOB, digest, MarkState.MARKED)
    assert store.keep_blob(digest)
    assert state_of(store, MarkedKind.BLOB, digest) is MarkState.KEPT
    store.delete_blob(digest)
    assert not store.keep_blob(digest)


def test_publishing_takes_a_release_and_its_blobs_back(store: Storage) -> None:
    release = published(store, note="1")
    (blob,) = store.iterate_blobs()
    for kind, digest in ((MarkedKind.RELEASE, release), (MarkedKind.BLOB, blob.digest)):
        set_mark(store, kind, digest, MarkState.MARKED)
    published(store, note="1")
    assert state_of(store, MarkedKind.RELEASE, release) is MarkState.KEPT
    assert state_of(store, MarkedKind.BLOB, blob.digest) is MarkState.KEPT


def test_keeping_a_release_keeps_its_blobs_too(store: Storage) -> None:
    release = published(store, note="1")
    (blob,) = store.iterate_blobs()
    for kind, digest in ((MarkedKind.RELEASE, release), (MarkedKind.BLOB, blob.digest)):
        set_mark(store, kind, digest, MarkState.MARKED)
    store.keep_release(release)
    assert state_of(store, MarkedKind.RELEASE, release) is MarkState.KEPT
    assert state_of(store, MarkedKind.BLOB, blob.digest) is MarkState.KEPT


@pytest.mark.parametrize("state", [MarkState.SWEEPING, MarkState.SWEPT])
def test_a_release_that_was_swept_cannot_be_kept_and_says_by_whom(store: Storage, state: MarkState) -> None:
    release = published(store, note="1")
    assert store.find_swept(release) is None
    set_mark(store, MarkedKind.RELEASE, release, state)
    with pytest.raises(NotFoundError, match="removed by `modelreg gc` of ada"):
        store.keep_release(release)
    mark = store.find_swept(release)
    assert mark is not None
    assert mark.state is state


def test_a_swept_release_can_be_published_again_whole(store: Storage) -> None:
    release = published(store, note="1")
    set_mark(store, MarkedKind.RELEASE, release, MarkState.SWEPT)
    size_bytes = store.measure_release(release)
    store.delete_release(release)
    assert store.measure_release(release) == 0
    assert store.read_manifest(release)
    assert published(store, note="1") == release
    assert store.verify_release(release)
    assert store.measure_release(release) == size_bytes
    assert store.find_swept(release) is None


def test_what_is_being_swept_is_waited_for_and_then_stored_anew(store: Storage) -> None:
    digest = store.put_bytes(b"wanted again").digest
    with store.collecting(timeout_s=5):
        set_mark(store, MarkedKind.BLOB, digest, MarkState.SWEEPING)
        writer = threading.Thread(target=store.put_bytes, args=(b"wanted again",))
        writer.start()
        writer.join(0.3)
        assert writer.is_alive()
        store.delete_blob(digest)
        store.remove_note(mark_name(MarkedKind.BLOB, digest))
        writer.join()
    assert store.read_blob(digest) == b"wanted again"
    assert state_of(store, MarkedKind.BLOB, digest) is None


def test_a_mark_that_is_none_says_so_and_nothing_is_stored_over_it(store: Storage) -> None:
    digest = sha256_hex(b"x")
    assert store.write_note(mark_name(MarkedKind.BLOB, digest), b"{}", replaces=None)
    with pytest.raises(IntegrityError, match="is no mark"):
        store.put_bytes(b"x")


def test_removing_what_is_not_there_is_no_error(store: Storage) -> None:
    store.delete_blob(ABSENT)
    store.delete_release(ABSENT)
    assert store.measure_release(ABSENT) == 0


def test_what_a_collector_removes_is_no_digest_never_becomes_a_path(store: Storage) -> None:
    for digest in HOSTILE_DIGESTS:
        for use in (store.delete_blob, store.delete_release, store.measure_release, store.keep_blob):
            with pytest.raises(IntegrityError):
                use(digest)


def test_there_is_one_collector_at_a_time_on_a_host(store: Storage) -> None:
    with store.collecting(timeout_s=5), pytest.raises(BusyError), store.collecting(timeout_s=0.05):
        pass
    with store.collecting(timeout_s=0.05):
        pass
