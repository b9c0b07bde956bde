"""Bringing releases to a folder that somebody serves from: whole or not at all, from any store, after any crash."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from modelreg.registry.contents import StoredFile
from modelreg.registry.errors import (
    ActivationUnknownError,
    IntegrityError,
    NotFoundError,
    StorageError,
    UsageError,
)
from modelreg.registry.manifest import make_manifest
from modelreg.registry.storage import s3_client
from modelreg.registry.storage.interface import Storage
from modelreg.registry.storage.local import LocalStorage
from modelreg.registry.storage.s3 import S3Storage
from modelreg.runtime.following import preview_pull, pull_once
from modelreg.runtime.pull import PullFolder
from modelreg.runtime.pull_request import choose_engines
from modelreg_testing.pulls import REQUEST, SPOILED, From, activate, blob_of, check_folder, pull, released
from modelreg_testing.records import make_engine, make_version
from modelreg_testing.s3_server import BUCKET, LIMITS, READER, S3Server, reopened
from modelreg_testing.storage import MemoryStorage, pointer_after
from modelreg_testing.storage_faults import counting_ops, failing_ops, in_child, killing_ops, overwrite


@pytest.fixture(params=["local", "memory", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        return server.make_store()
    return MemoryStorage() if request.param == "memory" else LocalStorage.create(tmp_path / "store")


@pytest.fixture
def local(in_memory: Path) -> LocalStorage:
    return LocalStorage.create(in_memory / "store")


# -- what comes --------------------------------------------------------------------------------------------
def test_what_is_active_comes_whole_and_is_current(storage: Storage, tmp_path: Path) -> None:
    pointer = activate(storage, "one")
    done: list[int] = []
    pulled = pull_once(From(storage), PullFolder(tmp_path / "into"), REQUEST, progress=done.append)
    assert (pulled.pointer, pulled.changed, pulled.reused_bytes) == (pointer, True, 0)
    assert pulled.fetched_bytes == sum(done) > 8000
    assert (tmp_path / "into" / "current" / "cpu" / "plan").read_bytes() == b"plan one cpu"
    assert pulled.plans["sm_90"].read_bytes() == b"plan one sm_90"
    assert check_folder(tmp_path / "into") == 1


def test_what_is_here_is_not_fetched_again(storage: Storage, tmp_path: Path) -> None:
    activate(storage, "one")
    first = pull(storage, tmp_path / "into")
    again = pull(storage, tmp_path / "into")
    assert (again.changed, again.fetched_bytes, again.plans) == (False, 0, first.plans)
    activate(storage, "two")
    second = pull(storage, tmp_path / "into")
    assert second.reused_bytes == len(b"weights " * 999)
    assert second.fetched_bytes == len(b"plan two cpu") + len(b"plan two sm_90")
    assert check_folder(tmp_path / "into") == 2


def test_a_new_generation_of_what_is_here_fetches_nothing(storage: Storage, tmp_path: Path) -> None:
    pointer = activate(storage, "one")
    fetched_bytes = pull(storage, tmp_path / "into").fetched_bytes
    storage.swap_pointer(pointer_after(pointer, release=pointer.release), expected=pointer)
    again = pull(storage, tmp_path / "into")
    assert (again.changed, again.fetched_bytes, again.reused_bytes) == (True, 0, fetched_bytes)


def test_a_preview_tells_what_a_pull_then_does_and_writes_nothing(storage: Storage, tmp_path: Path) -> None:
    root = tmp_path / "into"
    with pytest.raises(NotFoundError):
        preview_pull(From(storage), PullFolder(root), REQUEST)
    for word in ("one", "two"):
        activate(storage, word)
        before = sorted(root.rglob("*"))
        seen = preview_pull(From(storage), PullFolder(root), REQUEST)
        assert sorted(root.rglob("*")) == before
        assert seen == pull(storage, root)
        assert seen.changed
    seen = preview_pull(From(storage), PullFolder(root), REQUEST)
    assert (seen.changed, seen.fetched_bytes) == (False, 0)


def test_a_serving_host_needs_no_right_to_write(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = s3_server.make_store()
    pointer = activate(store, "one")
    monkeypatch.setattr(s3_client, "_clients", type(s3_client._clients)())
    for name, value in READER.items():
        monkeypatch.setenv(name, value)
    reading = reopened(store)
    assert pull(reading, tmp_path / "into").changed
    assert check_folder(tmp_path / "into") == 1
    for use in (reading.require_writable, lambda: reading.put_bytes(b"x")):
        with pytest.raises(StorageError, match="AccessDenied") as caught:
            use()
        assert "access" in caught.value.hint()
    with pytest.raises(StorageError, match="AccessDenied"):
        reading.swap_pointer(pointer_after(pointer, release=pointer.release), expected=pointer)
    assert reading.complete_reserved("lenet", "production") == pointer


def test_only_the_targets_of_this_host_come_unless_others_are_named(storage: Storage, tmp_path: Path) -> None:
    activate(storage, "one")
    cpu = replace(REQUEST, host_targets=("cpu",))
    assert list(pull(storage, tmp_path / "into", cpu).plans) == ["cpu"]
    assert not (tmp_path / "into" / "current" / "sm_90").exists()
    named = replace(cpu, wanted=("sm_90",))
    assert list(pull(storage, tmp_path / "into", named).plans) == ["sm_90"]
    assert check_folder(tmp_path / "into") == 1


@pytest.mark.parametrize(
    ("wanted", "host", "said"),
    [(("sm_75",), (), "no engine for sm_75"), ((), ("sm_75", "vax"), "this host has sm_75, vax")],
)
def test_a_release_without_an_engine_for_what_is_wanted_is_told(
    local: LocalStorage, tmp_path: Path, wanted: tuple[str, ...], host: tuple[str, ...], said: str
) -> None:
    activate(local, "one")
    with pytest.raises(NotFoundError, match=said) as caught:
        pull(local, tmp_path / "into", replace(REQUEST, wanted=wanted, host_targets=host))
    assert caught.value.hint()
    assert not (tmp_path / "into" / "current").exists()


def test_a_release_without_engines_serves_nothing() -> None:
    with pytest.raises(NotFoundError, match="serves nothing"):
        choose_engines(make_manifest(make_version(), {}), REQUEST)


def test_a_channel_without_a_release_is_told(storage: Storage, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="lenet@production"):
        pull(storage, tmp_path / "into")


def test_the_release_before_stays_and_older_ones_go(local: LocalStorage, tmp_path: Path) -> None:
    for word in ("one", "two", "three"):
        activate(local, word)
        pull(local, tmp_path / "into")
    kept = {path.name for path in (tmp_path / "into" / "releases").iterdir()}
    assert len(kept) == 2
    assert {local.read_history("lenet", "production", g).release for g in (2, 3)} == kept


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_was_current_a_moment_ago_stays_though_it_was_pulled_long_ago(local: LocalStorage, tmp_path: Path) -> None:
    root = tmp_path / "into"
    first = activate(local, "one")
    pull(local, root)
    for release in (released(local, "two"), first.release, released(local, "three")):
        current = local.read_pointer("lenet", "production")
        local.swap_pointer(pointer_after(current, release=release), expected=current)
        pull(local, root)
    assert names_in(root / "releases") == {first.release, released(local, "three")}


def test_a_new_generation_of_what_is_current_removes_no_release(local: LocalStorage, tmp_path: Path) -> None:
    root = tmp_path / "into"
    first = activate(local, "one")
    pull(local, root)
    second = activate(local, "two")
    pull(local, root)
    local.swap_pointer(pointer_after(second, release=second.release), expected=second)
    pull(local, root)
    for state in ("nonsense", json.dumps({"txn": "of a switch that never came", "previous": second.release})):
        (root / "state.json").write_text(state)
        pull(local, root)
    assert names_in(root / "releases") == {first.release, second.release}


def test_a_release_that_never_became_current_is_not_the_one_before(local: LocalStorage, tmp_path: Path) -> None:
    root = tmp_path / "into"
    first = activate(local, "one")
    pull(local, root)
    activate(local, "two")
    overwrite(blob_of(local, b"plan two cpu"), b"plan two cpU")
    with pytest.raises(IntegrityError):
        pull(local, root)
    third = activate(local, "three")
    pull(local, root)
    assert names_in(root / "releases") == {first.release, third.release}


# -- what is refused ---------------------------------------------------------------------------------------


def tree_of(root: Path) -> dict[str, bytes]:
    """Return every file and link below a folder with what it holds."""
    found = {}
    for path in sorted(root.rglob("*")):
        held = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        found[str(path)] = held
    return found


def capistrano(root: Path) -> None:
    for folder in ("releases/2024", "releases/2025", "tmp/session"):
        (root / folder).mkdir(parents=True)
    (root / "state.json").write_text("theirs")
    (root / "current").symlink_to("releases/2025")


@pytest.mark.parametrize(
    "fill",
    [
        LocalStorage.create,
        capistrano,
        lambda root: (root.mkdir(), (root / "config.toml").write_text("")),
        lambda root: root.write_text("a file"),
        lambda root: root.symlink_to("nowhere"),
    ],
    ids=["store", "deployment", "home", "file", "dangling"],
)
def test_what_no_pull_made_is_refused_and_stays(
    local: LocalStorage, tmp_path: Path, fill: Callable[[Path], object]
) -> None:
    activate(local, "one")
    fill(tmp_path / "into")
    before = tree_of(tmp_path)
    for act in (pull, lambda storage, root: preview_pull(From(storage), PullFolder(root), REQUEST)):
        with pytest.raises(UsageError, match="into") as caught:
            act(local, tmp_path / "into")
        assert caught.value.hint() == "Name a new or an empty folder."
    assert tree_of(tmp_path) == before


def test_a_store_is_not_pulled_into_itself(local: LocalStorage) -> None:
    for word in ("one", "two", "three"):
        activate(local, word)
    before = tree_of(local.root)
    with pytest.raises(UsageError, match="is not empty"):
        pull(local, local.root)
    assert tree_of(local.root) == before


def test_an_empty_folder_and_the_root_of_a_new_disk_can_be_pulled_into(local: LocalStorage, tmp_path: Path) -> None:
    activate(local, "one")
    (tmp_path / "empty").mkdir()
    (tmp_path / "disk" / "lost+found").mkdir(parents=True)
    (tmp_path / "linked").symlink_to("disk")
    for name in ("empty", "linked"):
        assert pull(local, tmp_path / name).changed
        assert check_folder(tmp_path / name) == 1


@pytest.mark.parametrize("part", ["releases", "tmp", "pointer.json", "current"])
def test_a_part_that_is_something_else_is_refused_before_anything_changes(
    local: LocalStorage, tmp_path: Path, part: str
) -> None:
    root = tmp_path / "into"
    activate(local, "one")
    pull(local, root)
    activate(local, "two")
    elsewhere = tmp_path / "elsewhere"
    shutil.move(root / part, elsewhere)
    if part == "current":
        (root / part).mkdir()
    else:
        (root / part).symlink_to(elsewhere)
    before = tree_of(tmp_path)
    with pytest.raises(UsageError, match=f"into/{part} is not what a pull makes there") as caught:
        pull(local, root)
    assert caught.value.hint() == "Move it away and pull again."
    assert tree_of(tmp_path) == before


def test_what_others_left_among_the_releases_stays(local: LocalStorage, tmp_path: Path) -> None:
    root = tmp_path / "into"
    kept = {"2024", "0" * 64}
    for word in ("one", "two", "three"):
        activate(local, word)
        pull(local, root)
        (root / "releases" / "2024").mkdir(exist_ok=True)
        if word == "one":
            (root / "releases" / ("0" * 64)).symlink_to(tmp_path)
    assert kept < names_in(root / "releases")
    assert len(names_in(root / "releases")) == 4


def test_a_folder_in_tmp_is_no_obstacle(local: LocalStorage, tmp_path: Path) -> None:
    root = tmp_path / "into"
    activate(local, "one")
    pull(local, root)
    (root / "tmp" / "folder" / "inside").mkdir(parents=True)
    (root / "README").write_text("theirs")
    activate(local, "two")
    assert pull(local, root).changed
    assert names_in(root / "tmp") == set()


def test_a_refused_pull_leaves_no_folder(local: LocalStorage, tmp_path: Path) -> None:
    activate(local, "one")
    with pytest.raises(NotFoundError):
        pull(local, tmp_path / "into", replace(REQUEST, wanted=("sm_75",)))
    assert not (tmp_path / "into").exists()


def test_trouble_with_the_folder_names_no_store(local: LocalStorage, in_memory: Path) -> None:
    activate(local, "one")
    with pytest.raises(StorageError, match=r"^folder path .*into") as caught:
        pull_once(From(local), PullFolder(in_memory / "into", ops=failing_ops(1, errno.ENAMETOOLONG)), REQUEST)
    assert caught.value.hint() == "Put the folder under a shorter path."


def test_a_channel_never_goes_back_unless_a_person_says_so(local: LocalStorage, tmp_path: Path) -> None:
    first = activate(local, "one")
    activate(local, "two")
    root = tmp_path / "into"
    pull(local, root)
    folder = PullFolder(root)
    with pytest.raises(IntegrityError, match="generation 1") as caught:
        folder.pull(local, REQUEST, first)
    assert check_folder(root) == 2
    assert "Remove" in caught.value.hint()
    (root / "pointer.json").unlink()
    assert folder.pull(local, REQUEST, first).changed
    assert check_folder(root) == 1


def test_a_folder_holds_one_channel(local: LocalStorage, tmp_path: Path) -> None:
    activate(local, "one")
    pull(local, tmp_path / "into")
    other = pointer_after(None, release=released(local, "x"), channel="staging")
    local.swap_pointer(other, expected=None)
    with pytest.raises(UsageError, match="holds lenet@production"):
        pull(local, tmp_path / "into", replace(REQUEST, channel="staging"))


def test_what_arrives_damaged_is_never_current(local: LocalStorage, tmp_path: Path) -> None:
    activate(local, "one")
    pull(local, tmp_path / "into")
    new = activate(local, "two")
    blob = blob_of(local, b"plan two cpu")
    overwrite(blob, b"plan two cpU")
    with pytest.raises(IntegrityError, match=blob.name):
        pull(local, tmp_path / "into")
    assert check_folder(tmp_path / "into") == new.generation - 1
    assert list((tmp_path / "into" / "tmp").iterdir()) == []


def test_a_blob_of_another_size_than_the_manifest_says_is_refused(local: LocalStorage, tmp_path: Path) -> None:
    pointer = activate(local, "one")

    class Lying(From):
        def open(self) -> Storage:
            lying = LocalStorage(local.root)
            lying.fetch_blob = lambda _digest, destination, **_: destination.write_bytes(b"?")  # type: ignore[method-assign]
            return lying

    with pytest.raises(IntegrityError, match="manifest says"):
        pull_once(Lying(local), PullFolder(tmp_path / "into"), REQUEST)
    assert pointer.generation == 1
    assert check_folder(tmp_path / "into") == 0


# -- what is here is damaged -------------------------------------------------------------------------------
@pytest.mark.parametrize("data", [b"", b"plan one cpX", None], ids=["cut", "changed", "gone"])
def test_a_damaged_file_is_mended_when_something_is_pulled(
    local: LocalStorage, tmp_path: Path, data: bytes | None
) -> None:
    activate(local, "one")
    root = tmp_path / "into"
    pulled = pull(local, root)
    overwrite(pulled.plans["cpu"], data)
    assert pull(local, root).changed
    assert check_folder(root) == 1
    assert not pull(local, root).changed


def test_what_answers_with_a_page_is_told_to_be_no_store(s3_server: S3Server, tmp_path: Path) -> None:
    store = s3_server.make_store()
    activate(store, "one")
    for name in ("FORMAT", "channels/lenet/production/pointer.json"):
        s3_server.boto.put_object(Bucket=BUCKET, Key=store.location.key(name), Body=b"<html>Welcome</html>")

    class Opening(From):
        def open(self) -> Storage:
            return S3Storage(store.location, limits=LIMITS)

    with pytest.raises(StorageError, match="not one of ours"):
        pull_once(Opening(store), PullFolder(tmp_path / "into"), REQUEST)
    assert not (tmp_path / "into").exists()


def test_a_hint_for_what_is_damaged_can_be_followed_on_this_host(local: LocalStorage, tmp_path: Path) -> None:
    activate(local, "one")
    overwrite(local.root / "channels" / "lenet" / "production" / "pointer.json", b"{}")
    with pytest.raises(IntegrityError, match="cannot be read") as caught:
        pull(local, tmp_path / "into")
    assert caught.value.hint() == (
        "Where the registry is, `modelreg doctor --fix --roll-forward lenet@production` puts the newest of its history"
        " there; what is current here stays so."
    )


@pytest.mark.parametrize("spoil", SPOILED)
def test_what_is_no_longer_complete_is_looked_at_again(
    local: LocalStorage, tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    activate(local, "one")
    root = tmp_path / "into"
    pull(local, root)
    spoil(root)
    pull(local, root)
    assert check_folder(root) == 1
    assert not pull(local, root).changed


def test_a_damaged_pointer_here_is_named_with_what_to_do(local: LocalStorage, tmp_path: Path) -> None:
    activate(local, "one")
    pull(local, tmp_path / "into")
    (tmp_path / "into" / "pointer.json").write_text("{}")
    with pytest.raises(IntegrityError, match=r"pointer\.json") as caught:
        pull(local, tmp_path / "into")
    assert "Remove" in caught.value.hint()


def test_a_shared_file_that_was_damaged_here_is_fetched(local: LocalStorage, tmp_path: Path) -> None:
    activate(local, "one")
    pulled = pull(local, tmp_path / "into")
    overwrite(pulled.path / "cpu" / "data" / "weights", b"weights?" * 999)
    activate(local, "two")
    assert pull(local, tmp_path / "into").reused_bytes == 0
    assert check_folder(tmp_path / "into") == 2


# -- crashes -----------------------------------------------------------------------------------------------
def steps_of_pull(local: LocalStorage, root: Path) -> int:
    ops, steps = counting_ops()
    pull_once(From(local), PullFolder(root, ops=ops), REQUEST)
    return len(steps)


@pytest.mark.slow
def test_a_kill_at_any_step_leaves_the_old_or_the_new_release_current(local: LocalStorage, in_memory: Path) -> None:
    activate(local, "one")
    root = in_memory / "into"
    pull(local, root)
    activate(local, "two")
    shutil.copytree(root, in_memory / "counted", symlinks=True)
    steps = steps_of_pull(local, in_memory / "counted")
    seen = set()
    for at in range(1, steps + 1):
        copy = Path(shutil.copytree(root, in_memory / f"killed-{at}", symlinks=True))

        def die(copy: Path = copy, at: int = at) -> None:
            pull_once(From(local), PullFolder(copy, ops=killing_ops(at)), REQUEST)

        assert in_child(die) == -signal.SIGKILL
        seen.add(check_folder(copy))
        pull(local, copy)
        assert check_folder(copy) == 2
        assert list((copy / "tmp").iterdir()) == []
        shutil.rmtree(copy)
    assert seen == {1, 2}


def test_an_error_at_any_step_is_told_and_the_next_pull_goes_on(local: LocalStorage, in_memory: Path) -> None:
    activate(local, "one")
    steps = steps_of_pull(local, in_memory / "counted")
    for at in range(1, steps + 1):
        root = in_memory / f"failed-{at}"
        try:
            pull_once(From(local), PullFolder(root, ops=failing_ops(at, 28)), REQUEST)
        except StorageError:
            assert check_folder(root) == 0, "told as failed, and it happened"
        except ActivationUnknownError:
            assert check_folder(root) == 1
        else:
            assert check_folder(root) == 1
        pull(local, root)
        assert check_folder(root) == 1
        shutil.rmtree(root)


def test_a_file_of_a_release_cannot_leave_its_folder(local: LocalStorage, tmp_path: Path) -> None:
    made = make_manifest(make_version(), {"cpu": make_engine(1)})
    engine = made.engines[0]._replace(files=(StoredFile(path="../../out", digest="0" * 64, size_bytes=1),))
    document = made._replace(engines=(engine,)).to_bytes()
    release = hashlib.sha256(document).hexdigest()
    (local.root / "releases" / release).mkdir()
    (local.root / "releases" / release / "manifest.json").write_bytes(document)
    pointer = pointer_after(None, release=release)
    local.swap_pointer(pointer, expected=None)
    with pytest.raises(IntegrityError, match="relative path"):
        pull(local, tmp_path / "into")
