"""A model of power loss: what was not synced may be lost or kept, in any combination.

`RecordingOps` does the work and writes it down; `crash_states` replays the record and gives every state of the disk
that a cut after each step could leave. Stricter than any real file system: names need an fsync of their folder, bytes
an fsync of their file, and unsynced names of one folder survive independently of each other.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from modelreg.registry.storage.files import FileOps


@dataclass(eq=False)
class File:
    """A file's bytes now, and those that are sure to survive."""

    data: bytes = b""
    durable: bytes = b""


@dataclass(eq=False)
class Link:
    points_to: str


@dataclass(eq=False)
class Folder:
    """A folder's names now, those sure to survive, and the changes between, in order."""

    names: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)
    pending: list[dict[str, Node | None]] = field(default_factory=list)


Node = File | Link | Folder


@dataclass(frozen=True)
class Event:
    """One recorded call: its name, its path below the root, and what else it needs."""

    name: str
    path: Path
    other: Path | None = None
    data: bytes = b""


class RecordingOps(FileOps):
    """Operations that write down what they did; `skip` is the number of a sync to leave out, for mutation tests.

    `syncs` names every sync; one for a folder that somebody else had made says so.
    """

    def __init__(self, *, skip: int = 0) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.syncs: list[str] = []
        self._skip = skip
        self._was_there = False

    def _note(self, name: str, path: Path, *, other: Path | None = None, data: bytes = b"") -> None:
        self.events.append(Event(name, path, other, data))

    def _is_skipped(self, name: str) -> bool:
        self.syncs.append(f"{name} (was there)" if self._was_there else name)
        self._was_there = False
        return len(self.syncs) == self._skip

    def create(self, path: Path) -> int:
        fd = super().create(path)
        self._note("create", path)
        return fd

    def write(self, fd: int, data: memoryview | bytes, path: Path) -> None:
        super().write(fd, data, path)
        self._note("write", path, data=bytes(data))

    def clone(self, source: int, target: int, path: Path) -> bool:
        return False

    def fsync(self, fd: int, path: Path) -> None:
        if not self._is_skipped("fsync"):
            super().fsync(fd, path)
            self._note("fsync", path)

    def fsync_dir(self, path: Path) -> None:
        if not self._is_skipped(f"fsync_dir {path.name}"):
            super().fsync_dir(path)
            self._note("fsync_dir", path)

    def link(self, source: Path, target: Path) -> None:
        super().link(source, target)
        self._note("link", target, other=source)

    def replace(self, source: Path, target: Path) -> None:
        super().replace(source, target)
        self._note("rename", target, other=source)

    def rename_folder(self, source: Path, target: Path) -> None:
        super().rename_folder(source, target)
        self._note("rename", target, other=source)

    def symlink(self, points_to: str, path: Path) -> None:
        super().symlink(points_to, path)
        self._note("symlink", path, data=points_to.encode())

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self._note("remove", path)

    def mkdir(self, path: Path) -> None:
        try:
            super().mkdir(path)
        except FileExistsError:
            self._was_there = True
            raise
        self._note("mkdir", path)

    def rmdir(self, path: Path) -> None:
        super().rmdir(path)
        self._note("remove", path)


class Disk:
    """The tree below `root` as it was when read, all durable, and then as the events change it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.top = _read(root)

    def apply(self, event: Event) -> None:
        folder = self._folder(event.path.parent) if event.path != self._root else self.top
        name = event.path.name
        if event.name == "create":
            _change(folder, {name: File()})
        elif event.name == "mkdir":
            _change(folder, {name: Folder()})
        elif event.name == "symlink":
            _change(folder, {name: Link(event.data.decode())})
        elif event.name == "remove":
            _change(folder, {name: None})
        elif event.name == "fsync_dir":
            synced = self._folder(event.path)
            synced.durable, synced.pending = dict(synced.names), []
        elif event.name in ("link", "rename"):
            self._give_name(folder, event)
        else:
            self._touch(folder.names[name], event)

    def _give_name(self, folder: Folder, event: Event) -> None:
        assert event.other is not None
        source = self._folder(event.other.parent)
        node = source.names[event.other.name]
        gone: dict[str, Node | None] = {event.other.name: None} if event.name == "rename" else {}
        if source is folder:
            _change(folder, {event.path.name: node, **gone})  # atomic inside of one folder
        else:
            _change(folder, {event.path.name: node})
            _change(source, gone)

    @staticmethod
    def _touch(node: Node, event: Event) -> None:
        assert isinstance(node, File)
        if event.name == "write":
            node.data += event.data
        else:
            node.durable = node.data

    def _folder(self, path: Path) -> Folder:
        node: Node = self.top
        for part in path.relative_to(self._root).parts:
            assert isinstance(node, Folder)
            node = node.names[part]
        assert isinstance(node, Folder)
        return node

    def states(self) -> Iterator[dict[str, bytes | None]]:
        """Yield every tree that a cut now could leave: path to bytes, None for a folder, links left out."""
        folders = list(_folders(self.top))
        choices = [list(_subsets(folder.pending)) for folder in folders]
        for picked in itertools.product(*choices):
            names = {id(folder): _applied(folder, changes) for folder, changes in zip(folders, picked, strict=True)}
            for kept in (True, False):
                yield dict(_tree(self.top, names, "", kept=kept))


def crash_states(before: Disk, events: list[Event]) -> Iterator[tuple[int, dict[str, bytes | None]]]:
    """Yield (number of events done, tree) for every distinct state; `before` is used up."""
    for done in range(len(events) + 1):
        if done:
            before.apply(events[done - 1])
        seen: set[tuple[tuple[str, bytes | None], ...]] = set()
        for tree in before.states():
            key = tuple(sorted(tree.items()))
            if key not in seen:
                seen.add(key)
                yield done, tree


def lay_out(tree: dict[str, bytes | None], root: Path) -> None:
    """Make the files of a tree below the new folder `root`."""
    root.mkdir()
    for path, data in sorted(tree.items()):
        if data is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(data)
            if path.startswith(("blobs/", "releases/")):
                (root / path).chmod(0o444)


def _change(folder: Folder, change: dict[str, Node | None]) -> None:
    if change:
        folder.names = _applied_to(folder.names, change)
        folder.pending.append(change)


def _applied(folder: Folder, changes: tuple[dict[str, Node | None], ...]) -> dict[str, Node]:
    names = dict(folder.durable)
    for change in changes:
        names = _applied_to(names, change)
    return names


def _applied_to(names: dict[str, Node], change: dict[str, Node | None]) -> dict[str, Node]:
    merged = {**names, **change}
    return {name: node for name, node in merged.items() if node is not None}


def _subsets(pending: list[dict[str, Node | None]]) -> Iterator[tuple[dict[str, Node | None], ...]]:
    for size in range(len(pending) + 1):
        yield from itertools.combinations(pending, size)


def _folders(top: Folder) -> Iterator[Folder]:
    """Yield every folder that may be reached after a cut, each once, if what is unsure in it can be seen."""
    seen: set[int] = set()
    waiting = [top]
    while waiting:
        folder = waiting.pop()
        if id(folder) not in seen:
            seen.add(id(folder))
            yield folder
            reachable = [*folder.durable.values(), *(n for change in folder.pending for n in change.values())]
            waiting += [node for node in reachable if isinstance(node, Folder)]


def _tree(
    folder: Folder, names: dict[int, dict[str, Node]], prefix: str, *, kept: bool
) -> Iterator[tuple[str, bytes | None]]:
    for name, node in names[id(folder)].items():
        if isinstance(node, Folder):
            yield prefix + name, None
            yield from _tree(node, names, f"{prefix}{name}/", kept=kept)
        elif isinstance(node, File):
            yield prefix + name, node.data if kept else node.durable


def _read(path: Path) -> Folder:
    names: dict[str, Node] = {}
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_symlink():
                names[entry.name] = Link(str(Path(entry.path).readlink()))
            elif entry.is_dir():
                names[entry.name] = _read(Path(entry.path))
            else:
                data = Path(entry.path).read_bytes()
                names[entry.name] = File(data, data)
    return Folder(names, dict(names))
