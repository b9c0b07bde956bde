"""Many processes at one channel: every swap has one winner, and no reader sees anything but whole generations."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from modelreg.registry.errors import ActivationConflictError, BusyError
from modelreg.registry.pointers import Pointer
from modelreg.registry.storage import channels
from modelreg.registry.storage.local import LocalStorage
from modelreg_testing.storage import chain_of, pointer_after, published
from modelreg_testing.storage_faults import check_store, exit_code, in_child, start_child

PROCESSES, TRIES = 8, 25
SWAPS = 2_000


def swap_often(root: Path, release: str, outcome: Path) -> None:
    store = LocalStorage(root)
    won, lost = [], 0
    for _ in range(TRIES):
        current = store.read_pointer("lenet", "production")
        new = pointer_after(current, release=release, actor=str(os.getpid()))
        try:
            store.swap_pointer(new, expected=current)
        except ActivationConflictError:
            lost += 1
        else:
            won.append(new.generation)
    outcome.write_text(json.dumps([won, lost]))


def test_eight_processes_lose_no_swap_and_win_none_twice(in_memory: Path) -> None:
    store = LocalStorage.create(in_memory / "store")
    release = published(store)
    files = [in_memory / f"outcome-{number}" for number in range(PROCESSES)]
    children = [start_child(lambda file=file: swap_often(store.root, release, file)) for file in files]  # type: ignore[misc]
    assert [exit_code(child) for child in children] == [0] * PROCESSES
    outcomes = [json.loads(file.read_text()) for file in files]
    wins = sorted(generation for won, _ in outcomes for generation in won)
    assert wins == store.list_generations("lenet", "production")
    assert len(wins) + sum(lost for _, lost in outcomes) == PROCESSES * TRIES
    assert check_store(store.root).generations == {("lenet", "production"): len(wins)}


def read_until(root: Path, last: int) -> None:
    """Poll the pointer and what it names; end at generation `last`, raise at anything odd."""
    store = LocalStorage(root)
    seen, reads = 0, 0
    while seen < last:
        pointer = store.read_pointer("lenet", "production")
        reads += 1
        if pointer is None:
            assert seen == 0
            continue
        assert pointer.generation >= seen, "a reader went backwards"
        seen = pointer.generation
        assert pointer.actor == pointer.release, "a mixed pointer"
        store.read_manifest(pointer.release)
    assert reads >= 100


def test_a_polling_reader_sees_no_torn_mixed_or_older_generation(in_memory: Path) -> None:
    store = LocalStorage.create(in_memory / "store")
    releases = [published(store, note=str(number)) for number in range(5)]

    def write() -> None:
        current = None
        for number in range(SWAPS):
            release = releases[number % len(releases)]
            new = pointer_after(current, release=release, actor=release)
            store.swap_pointer(new, expected=current)
            current = new

    writer = start_child(write)
    read_until(store.root, SWAPS)
    assert exit_code(writer) == 0
    assert check_store(store.root).generations == {("lenet", "production"): SWAPS}


def test_a_reader_overtaken_by_the_first_swaps_sees_no_missing_pointer(
    in_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pointer is not there when it is opened, and the history is two long when that is looked at."""
    store = LocalStorage.create(in_memory / "store")
    release = published(store)
    read = channels._read_file
    chain: list[Pointer] = []

    def overtaken(path: Path) -> bytes | None:
        data = read(path)
        if not chain and path.name == "pointer.json":
            chain.append(pointer_after(None, release=release))  # what follows reads too: it must not start again
            chain[:] = chain_of(store, length=2, release=release)
        return data

    monkeypatch.setattr(channels, "_read_file", overtaken)
    assert store.read_pointer("lenet", "production") == chain[-1]


def test_the_reader_above_would_notice_a_copy_in_place(tmp_path: Path) -> None:
    """The negative control: written over in place, a pointer is seen torn or empty."""
    store = LocalStorage.create(tmp_path / "store")
    (pointer,) = chain_of(store, length=1, release=published(store))
    path = store.root / "channels" / "lenet" / "production" / "pointer.json"
    path.write_bytes(pointer.to_bytes()[:100])
    with pytest.raises(Exception, match=r"pointer\.json"):
        read_until(store.root, 2)


def test_the_lock_of_a_killed_holder_is_free_at_once(tmp_path: Path) -> None:
    store = LocalStorage.create(tmp_path / "store")
    release = published(store)

    def die_holding() -> None:
        with store.exclusive("lenet", "production", timeout_s=0):
            os.kill(os.getpid(), 9)

    assert in_child(die_holding) == -9
    with store.exclusive("lenet", "production", timeout_s=0):
        chain_of(store, length=1, release=release)
    assert (store.root / "locks" / "lenet" / "production" / "command.lock").exists()
    assert (store.root / "locks" / "lenet" / "production" / "swap.lock").exists()


def test_another_process_waits_for_the_lock_and_gives_up_in_time(tmp_path: Path) -> None:
    store = LocalStorage.create(tmp_path / "store")
    with store.exclusive("lenet", "production", timeout_s=0):

        def give_up() -> None:
            started = time.monotonic()
            with pytest.raises(BusyError), store.exclusive("lenet", "production", timeout_s=0.05):
                pass
            assert 0.05 <= time.monotonic() - started < 5

        assert in_child(give_up) == 0
