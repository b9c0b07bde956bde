"""The power cut at every step: what was acknowledged survives, and what survives is whole.

The mutation check keeps the model honest: leave out any one sync, and some cut breaks an invariant.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from modelreg.registry.storage.local import LocalStorage
from modelreg_testing.power_loss import Disk, RecordingOps, crash_states, lay_out
from modelreg_testing.storage import chain_of, manifest_of, pointer_after, published, stored_files
from modelreg_testing.storage_faults import Found, check_store

Operation = Callable[[LocalStorage], object]


def put(store: LocalStorage) -> object:
    return store.put_bytes(b"new bytes")


def publish(store: LocalStorage) -> object:
    files = stored_files(LocalStorage(store.root), {"cpu/a": b"plan of old"})
    return store.publish_release(manifest_of(files), files)


def swap(store: LocalStorage) -> object:
    current = store.read_pointer("lenet", "production")
    assert current is not None
    new = pointer_after(current, release=current.release)
    store.swap_pointer(new, expected=current)
    return new


def swap_first(store: LocalStorage) -> object:
    release = next(store.iterate_releases())
    store.swap_pointer(pointer_after(None, release=release, channel="staging"), expected=None)
    return release


def has_new_blob(found: Found) -> bool:
    return len(found.blobs) == 2


def has_new_release(found: Found) -> bool:
    return len(found.releases) == 2


def has_moved(found: Found) -> bool:
    return found.generations["lenet", "production"] == 2


def has_begun(found: Found) -> bool:
    return found.generations.get(("lenet", "staging")) == 1


CASES = [(put, has_new_blob), (publish, has_new_release), (swap, has_moved), (swap_first, has_begun)]
IDS = [operation.__name__ for operation, _ in CASES]


@pytest.fixture
def template(in_memory: Path) -> Path:
    store = LocalStorage.create(in_memory / "template")
    chain_of(store, length=1, release=published(store, note="old"))
    return store.root


def broken_by_a_cut(operation: Operation, is_new: Callable[[Found], bool], template: Path, *, skip: int = 0) -> str:
    """Cut the power everywhere in `operation`; return what broke first, or an empty string."""
    root = Path(shutil.copytree(template, template.parent / "live", symlinks=True))
    disk, ops = Disk(root), RecordingOps(skip=skip)
    try:
        operation(LocalStorage(root, ops=ops))
    finally:
        shutil.rmtree(root)
    outcomes = set()
    for done, tree in crash_states(disk, ops.events):
        lay_out(tree, root)
        try:
            found = check_store(root)
            assert found.generations["lenet", "production"] >= 1, "a channel is lost"
            assert done < len(ops.events) or is_new(found), "what was acknowledged is lost"
            outcomes.add(is_new(found))
            for model, channel in LocalStorage(root).list_channels():
                LocalStorage(root).complete_reserved(model, channel)
            swap(LocalStorage(root))
            put(LocalStorage(root))
            check_store(root)
        except Exception as error:
            return f"after {done} steps: {error}"
        finally:
            shutil.rmtree(root)
    assert outcomes == {False, True}
    return ""


@pytest.mark.parametrize(("operation", "is_new"), CASES, ids=IDS)
def test_a_power_cut_at_any_step_leaves_the_old_or_the_new(
    operation: Operation, is_new: Callable[[Found], bool], template: Path
) -> None:
    assert broken_by_a_cut(operation, is_new, template) == ""


@pytest.mark.parametrize(("operation", "is_new"), CASES, ids=IDS)
@pytest.mark.slow
def test_leaving_out_any_sync_is_noticed(operation: Operation, is_new: Callable[[Found], bool], template: Path) -> None:
    counted = RecordingOps()
    copy = Path(shutil.copytree(template, template.parent / "counted", symlinks=True))
    operation(LocalStorage(copy, ops=counted))
    assert counted.syncs
    for number, name in enumerate(counted.syncs, start=1):
        if "was there" not in name:  # that one is for a folder which another process may have made a moment ago
            assert broken_by_a_cut(operation, is_new, template, skip=number), f"nobody misses {name}"
