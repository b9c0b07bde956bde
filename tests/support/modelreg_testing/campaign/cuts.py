"""Part 3: the power cut at every step of what a register stores and of what a pull brings; each sync is needed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from modelreg.registry.sources.ingest import ingest_source
from modelreg.registry.sources.inspect import inspect_source
from modelreg.registry.storage.files import FileOps
from modelreg.registry.storage.local import LocalStorage
from modelreg.runtime.following import pull_once
from modelreg.runtime.pull import PullFolder
from modelreg_testing import onnx_models
from modelreg_testing.campaign.checker import check_pulled, read_folder
from modelreg_testing.campaign.results import Tally, spread
from modelreg_testing.power_loss import Disk, Event, Folder, RecordingOps, crash_states, lay_out
from modelreg_testing.pulls import REQUEST, From, activate
from modelreg_testing.storage_faults import check_store

ONE_TARGET = replace(REQUEST, host_targets=("cpu",))


@dataclass(frozen=True)
class Act:
    """
    Something that has to survive a cut whole.

    Args:
        name: Its word in the table.
        make: Makes what is there before, below a folder.
        run: Does it, through the operations given.
        is_new: Checks what is there, raises where it is not whole, and returns whether it was done.
        spare: Returns which syncs (from 1 on) are a convenience that nothing relies on, and why they are.
    """

    name: str
    make: Callable[[Path], None]
    run: Callable[[Path, FileOps], None]
    is_new: Callable[[Path], bool]
    spare: Callable[[list[str]], dict[int, str]] = lambda _syncs: {}


class TidyDisk(Disk):
    """A disk on which names in `tmp/` are always as they were last: nobody looks there."""

    def apply(self, event: Event) -> None:
        super().apply(event)
        self._tidy(self.top)

    def _tidy(self, folder: Folder) -> None:
        for name, node in folder.names.items():
            if isinstance(node, Folder):
                if name == "tmp":
                    _settle(node)
                else:
                    self._tidy(node)


def _settle(folder: Folder) -> None:
    folder.durable, folder.pending = dict(folder.names), []
    for node in folder.names.values():
        if isinstance(node, Folder):
            _settle(node)


def _make_store(root: Path) -> None:
    LocalStorage.create(root / "store")
    onnx_models.save_with_external_data(onnx_models.mlp(), root.parent / "network" / "mlp.onnx")


def _register(root: Path, ops: FileOps) -> None:
    source = inspect_source(root.parent / "network" / "mlp.onnx")
    ingest_source(source, LocalStorage(root / "store", ops=ops))


def _is_registered(root: Path) -> bool:
    return len(check_store(root / "store").blobs) == 3  # the model, its external data, and the list of both


def _make_host(root: Path) -> None:
    store = LocalStorage.create(root / "store")
    activate(store, "one")
    pull_once(From(store), PullFolder(root / "served"), ONE_TARGET)
    activate(store, "two")


def _pull(root: Path, ops: FileOps) -> None:
    pull_once(From(LocalStorage(root / "store", ops=ops)), PullFolder(root / "served", ops=ops), ONE_TARGET)


def _is_pulled(root: Path) -> bool:
    found = check_pulled(root / "served")
    assert found in (1, 2), f"the host serves generation {found}"
    return found == 2


def _note_of_a_pull(syncs: list[str]) -> dict[int, str]:
    """Return the sync of the note for the next pull, which comes before the pointer's."""
    *_, note, _pointer = [number for number, name in enumerate(syncs, start=1) if name == "fsync"]
    return {note: "a note that saves the next pull some reading"}


ACTS = (
    Act("register", _make_store, _register, _is_registered),
    Act("pull", _make_host, _pull, _is_pulled, _note_of_a_pull),
)


def cut_everywhere(act: Act, folder: Path, *, skip: int = 0) -> tuple[str, int]:
    """Cut the power after every step of an act; return what broke first (empty: nothing), and the number of states."""
    template = folder / "template"
    if not template.exists():
        template.mkdir(parents=True)
        act.make(template)
    root = Path(shutil.copytree(template, folder / "live", symlinks=True))
    disk, ops = TidyDisk(root), RecordingOps(skip=skip)
    try:
        act.run(root, ops)
    finally:
        shutil.rmtree(root)
    outcomes, states = set(), 0
    for done, tree in crash_states(disk, ops.events):
        states += 1
        lay_out(tree, root)
        try:
            is_new = act.is_new(root)
            assert done < len(ops.events) or is_new, "what was acknowledged is lost"
            outcomes.add(is_new)
            act.run(root, FileOps())
            assert act.is_new(root), "it cannot be done again"
            read_folder(root / "store")
        except Exception as error:
            return f"after {done} steps: {error}", states
        finally:
            shutil.rmtree(root)
    assert outcomes == {False, True}
    return "", states


def count_syncs(act: Act, folder: Path) -> list[str]:
    """Return the name of every sync of an act."""
    counted = folder / "counted"
    counted.mkdir(parents=True)
    act.make(counted)
    ops = RecordingOps()
    act.run(counted, ops)
    shutil.rmtree(counted)
    return ops.syncs


def needed_syncs(act: Act, folder: Path) -> list[tuple[int, str]]:
    """Return the syncs whose absence somebody has to miss: number and name.

    Not those for a folder that another process may have made a moment ago, of `tmp/`, or of a folder that is synced
    once more before the act is acknowledged.
    """
    syncs = count_syncs(act, folder)
    spare = act.spare(syncs)
    return [
        (number, name)
        for number, name in enumerate(syncs, start=1)
        if "was there" not in name
        and name != "fsync_dir tmp"
        and number not in spare
        and (name == "fsync" or name not in syncs[number:])
    ]


def run_cuts(folder: Path, *, limit_mutants: int = 0) -> list[Tally]:
    """Cut the power in every act, then leave each sync out in turn: somebody has to miss it."""
    tallies = []
    for act in ACTS:
        started = time.monotonic()
        whole = Tally("cuts", f"{act.name}, every state of the disk", "local")
        broken, states = cut_everywhere(act, folder / act.name)
        whole.trials, whole.outcomes["whole"] = states, states
        whole.violations += [f"{act.name}: {broken}"] if broken else []
        whole.seconds = time.monotonic() - started
        started = time.monotonic()
        mutants = Tally("cuts", f"{act.name}, one sync left out", "local")
        for number, name in spread(needed_syncs(act, folder / f"{act.name}-syncs"), limit_mutants):
            broken, _ = cut_everywhere(act, folder / act.name, skip=number)
            mutants.count("noticed" if broken else "NOT NOTICED")
            mutants.violations += [] if broken else [f"{act.name}: nobody misses {name}, sync {number}"]
        mutants.seconds = time.monotonic() - started
        tallies += [whole, mutants]
    return tallies
