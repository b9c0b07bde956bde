"""What writers that died left in a local store, and how it goes away."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from modelreg.registry.storage.failures import storage_errors
from modelreg.registry.storage.layout import Layout
from modelreg.registry.storage.writing import TEMPORARY_SUFFIX, host_name

_SWEEP_PATIENCE_S = 1.0
_OTHER_HOSTS_AGE_S = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """Something temporary: what a dead writer left, or what a living one is at (`in_use`)."""

    path: Path
    age_s: float
    size_bytes: int
    in_use: bool

    @property
    def is_abandoned(self) -> bool:
        """Return whether its writer is dead. Another host's lock may not reach us, so there its age must speak."""
        ours = self.path.name.lstrip(".").startswith(f"{host_name()}.")
        return not self.in_use and (ours or self.age_s >= _OTHER_HOSTS_AGE_S)


def list_leftovers(layout: Layout) -> list[Leftover]:
    """Return what lies in `tmp/` and the temporary files of the root and of channels, sorted by path."""
    with storage_errors(layout.root):
        paths = sorted([*_listed(layout.tmp), *_temporary_files(layout.root), *_temporary_pointers(layout)])
        seen = [_look_at(path) for path in paths]
    return [leftover for leftover in seen if leftover is not None]


def sweep_leftovers(layout: Layout) -> int:
    """Remove what is abandoned; return how many."""
    removed = 0
    for leftover in list_leftovers(layout):
        if leftover.is_abandoned:
            with storage_errors(leftover.path), suppress(FileNotFoundError):
                _remove(layout, leftover.path)
                removed += 1
    return removed


def _temporary_pointers(layout: Layout) -> Iterator[Path]:
    for model in _listed(layout.channels):
        for folder in _listed(model):
            yield from _temporary_files(folder)


def _temporary_files(folder: Path) -> list[Path]:
    return [path for path in _listed(folder) if path.name.endswith(TEMPORARY_SUFFIX)]


def _remove(layout: Layout, path: Path) -> None:
    if layout.channels in path.parents:
        # A channel's temporary file belongs to whoever holds the swap lock, and only while it is held.
        place = layout.channel(path.parent.parent.name, path.parent.name)
        with layout.swap_lock(place, timeout_s=_SWEEP_PATIENCE_S):
            layout.ops.unlink(path)
    elif path.is_dir() and not path.is_symlink():
        layout.ops.remove_tree(path)
    else:
        layout.ops.unlink(path)


def _look_at(path: Path) -> Leftover | None:
    """Look at one leftover, or return None if it went away meanwhile."""
    newest, size_bytes = 0.0, 0
    try:
        for part in _with_contents(path):
            state = part.lstat()
            newest = max(newest, state.st_mtime)
            size_bytes += 0 if part.is_dir() else state.st_size
        in_use = _is_held(path)
    except FileNotFoundError:
        return None
    return Leftover(path=path, age_s=max(0.0, time.time() - newest), size_bytes=size_bytes, in_use=in_use)


def _with_contents(path: Path) -> Iterator[Path]:
    yield path
    if path.is_dir() and not path.is_symlink():
        for part in _listed(path):
            yield from _with_contents(part)


def _is_held(path: Path) -> bool:
    """Return whether a living process holds a folder of `tmp/`; the kernel lets go when it dies."""
    if not path.is_dir() or path.is_symlink():
        return False
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # no locks on this file system: age alone decides
    finally:
        os.close(fd)
    return False


def _listed(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries]
    except (FileNotFoundError, NotADirectoryError):
        return []
