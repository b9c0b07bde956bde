"""A writer killed, or failed by the system, at every single step: the store is the old or the new one, whole."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from modelreg.registry.errors import ActivationUnknownError, ModelregError, StorageError
from modelreg.registry.storage.local import LocalStorage
from modelreg_testing.storage import chain_of, manifest_of, pointer_after, published, stored_files
from modelreg_testing.storage_faults import (
    STEP_ERRORS,
    Found,
    check_store,
    counting_ops,
    failing_ops,
    in_child,
    killing_ops,
)

Operation = Callable[[LocalStorage], object]
LARGE = bytes(range(256)) * (9 << 12)


@pytest.fixture
def template(in_memory: Path) -> Path:
    """Make a store at generation 2, with the blobs of a release that is not published."""
    store = LocalStorage.create(in_memory / "template")
    chain_of(store, length=2, release=published(store, note="old"))
    stored_files(store, {"cpu/a": b"one", "b": b"two"})
    (in_memory / "source").write_bytes(LARGE)
    return store.root


def put_large(store: LocalStorage) -> object:
    return store.put_file(store.root.parent / "source")


def put_small(store: LocalStorage) -> object:
    return store.put_bytes(b"small")


def publish(store: LocalStorage) -> object:
    files = stored_files(store, {"cpu/a": b"one", "cpu/deep/b": b"two"})
    return store.publish_release(manifest_of(files), files)


def mend(store: LocalStorage) -> object:
    """Publish the old release again after its file was lost."""
    release = next(store.iterate_releases())
    (store.root / "releases" / release / "cpu" / "model.onnx").unlink(missing_ok=True)
    return published(store, note="old")


def swap(store: LocalStorage) -> object:
    current = store.read_pointer("lenet", "production")
    assert current is not None
    new = pointer_after(current, release=current.release, txn="the-swap")
    store.swap_pointer(new, expected=current)
    return new


def first_swap(store: LocalStorage) -> object:
    release = next(store.iterate_releases())
    new = pointer_after(None, release=release, model="fresh")
    store.swap_pointer(new, expected=None)
    return new


OPERATIONS: list[Operation] = [put_large, put_small, publish, swap, first_swap]


def steps_of(operation: Operation, template: Path) -> list[str]:
    ops, steps = counting_ops()
    root = fresh_copy(template, "counted")
    operation(LocalStorage(root, ops=ops))
    shutil.rmtree(root)
    return steps


def fresh_copy(template: Path, name: str) -> Path:
    return Path(shutil.copytree(template, template.parent / name, symlinks=True))


def use_again(root: Path) -> Found:
    """Go on with a store as the next command would, and check it once more."""
    store = LocalStorage(root)
    for model, channel in store.list_channels():
        current = store.complete_reserved(model, channel)
        release = next(store.iterate_releases()) if current is None else current.release
        new = pointer_after(current, release=release, model=model, channel=channel)
        store.swap_pointer(new, expected=current)
    publish(store)
    put_small(store)
    store.sweep_leftovers()
    assert store.leftovers() == []
    assert list((root / "tmp").iterdir()) == []
    return check_store(root)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
@pytest.mark.slow
def test_a_kill_at_any_step_leaves_a_whole_store(operation: Operation, template: Path) -> None:
    steps = steps_of(operation, template)
    outcomes = set()
    for at in range(1, len(steps) + 1):
        root = fresh_copy(template, f"killed-{at}")
        code = in_child(lambda root=root, at=at: operation(LocalStorage(root, ops=killing_ops(at))))  # type: ignore[misc]
        assert code == -signal.SIGKILL
        found = check_store(root)
        outcomes.add((len(found.blobs), len(found.releases), found.reserved, *found.generations.values()))
        use_again(root)
        shutil.rmtree(root)
    assert len(outcomes) >= 2, "no kill left the old state, or none the new one"


def test_a_killed_swap_is_seen_before_during_and_after_its_commit(template: Path) -> None:
    seen = {}
    steps = steps_of(swap, template)
    for at in range(1, len(steps) + 1):
        root = fresh_copy(template, f"killed-{at}")
        in_child(lambda root=root, at=at: swap(LocalStorage(root, ops=killing_ops(at))))  # type: ignore[misc]
        found = check_store(root)
        seen[at] = (found.generations["lenet", "production"], found.reserved)
    assert list(dict.fromkeys(seen.values())) == [(2, 0), (2, 1), (3, 0)]


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("operation", [*OPERATIONS, mend], ids=lambda operation: operation.__name__)
def test_an_error_at_any_step_is_told_as_it_is(operation: Operation, template: Path, lasting: bool) -> None:
    steps = steps_of(operation, template)
    for at in range(1, len(steps) + 1):
        code = STEP_ERRORS[at % len(STEP_ERRORS)]
        root = fresh_copy(template, f"failed-{at}")
        before = check_store(root)
        told: ModelregError | None = None
        try:
            operation(LocalStorage(root, ops=failing_ops(at, code, lasting=lasting)))
        except StorageError as error:
            told = error
            if operation is not mend:
                LocalStorage(root).complete_reserved("lenet", "production")
                LocalStorage(root).complete_reserved("fresh", "production")
                after = check_store(root)
                assert {k: g for k, g in after.generations.items() if g} == before.generations
                assert after.releases >= before.releases  # one more may be there, whole, and be found again
        except ActivationUnknownError as error:
            told = error
        assert told is None or ((told.hint() and "production" in str(told)) or str(root) in str(told))
        published(LocalStorage(root), note="old")
        use_again(root)
        shutil.rmtree(root)


def test_an_error_after_the_replace_is_an_unknown_outcome(template: Path) -> None:
    steps = steps_of(swap, template)
    at = steps.index("replace") + 2
    assert steps[at - 1] == "fsync_dir"
    with pytest.raises(ActivationUnknownError, match="generation 3") as caught:
        swap(LocalStorage(template, ops=failing_ops(at, STEP_ERRORS[0])))
    assert caught.value.exit_code == 5
    found = LocalStorage(template).read_pointer("lenet", "production")
    assert found is not None
    assert found.txn == "the-swap"


def test_a_reservation_that_cannot_be_taken_back_is_an_unknown_outcome(template: Path) -> None:
    at = steps_of(swap, template).index("replace") + 1
    with pytest.raises(ActivationUnknownError):
        swap(LocalStorage(template, ops=failing_ops(at, STEP_ERRORS[0], lasting=True)))
    found = LocalStorage(template).complete_reserved("lenet", "production")
    assert found is not None
    assert found.txn == "the-swap"


@pytest.mark.slow
def test_a_document_that_is_restored_is_there_whole_or_not_at_all(template: Path) -> None:
    """Killed at any step; the next attempt finishes it."""
    store = LocalStorage(template)
    document = store.read_history("lenet", "production", 1)
    path = Path("channels/lenet/production/history/000000000001.json")
    whole = (template / path).read_bytes()
    (template / path).unlink()
    steps = steps_of(lambda store: store.restore_history(document), template)
    assert steps.count("fsync") == steps.count("fsync_dir") - 4 == 1  # four folders on the way are made sure of
    seen = set()
    for at in range(1, len(steps) + 1):
        root = fresh_copy(template, f"killed-{at}")
        in_child(lambda root=root, at=at: LocalStorage(root, ops=killing_ops(at)).restore_history(document))  # type: ignore[misc]
        seen.add((root / path).exists())
        assert not (root / path).exists() or (root / path).read_bytes() == whole
        LocalStorage(root).restore_history(document)
        assert (root / path).read_bytes() == whole
        use_again(root)
        shutil.rmtree(root)
    assert seen == {True, False}


def test_no_file_is_synced_again_after_its_fsync_failed(template: Path) -> None:
    for operation in OPERATIONS:
        for at in (i for i, step in enumerate(steps_of(operation, template), start=1) if step == "fsync"):
            root = fresh_copy(template, "failed")
            ops = failing_ops(at, STEP_ERRORS[0])
            synced: list[Path] = []
            sync = ops.fsync

            def watch(fd: int, path: Path, synced: list[Path] = synced, sync: Callable[..., None] = sync) -> None:
                synced.append(path)
                sync(fd, path)

            ops.fsync = watch  # type: ignore[method-assign]
            with pytest.raises(StorageError):
                operation(LocalStorage(root, ops=ops))
            assert len(synced) == len(set(synced))
            shutil.rmtree(root)
