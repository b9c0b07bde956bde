"""What a collector does to a local store: it removes, one at a time in the whole store, what nothing needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from modelreg.registry.errors import BusyError
from modelreg.registry.storage.failures import storage_errors
from modelreg.registry.storage.layout import Layout
from modelreg.registry.storage.notes import MayTake, Note
from modelreg.registry.storage.rules import MANIFEST_NAME


class LocalCollection:
    """Removal below a `Layout`."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._ops = layout.ops

    @contextmanager
    def collecting(self, *, timeout_s: float) -> Iterator[MayTake]:
        """Be the only collector: the kernel tells when another one is no more, so whatever it left may be taken."""
        with (
            storage_errors(self._lock),
            self._ops.lock(self._lock, timeout_s=timeout_s, what="the collection of the store"),
        ):
            yield lambda _note: True

    def is_left(self, _note: Note) -> bool:
        """Return whether no collector is at work."""
        try:
            with self.collecting(timeout_s=0.0):
                return True
        except BusyError:
            return False

    def delete_blob(self, digest: str) -> None:
        """Remove a blob; nothing happens where there is none."""
        path = self._layout.blob(digest)
        with storage_errors(path), suppress(FileNotFoundError):
            self._ops.unlink(path)
            self._ops.fsync_dir(path.parent)

    def delete_release(self, release: str) -> None:
        """Remove what a release holds but its manifest; nothing happens where there is none."""
        folder = self._layout.release(release)
        with storage_errors(folder):
            for path in _contents(folder):
                if path.is_dir() and not path.is_symlink():
                    self._ops.remove_tree(path)
                else:
                    self._ops.unlink(path)
            with suppress(FileNotFoundError):
                self._ops.fsync_dir(folder)

    def measure_release(self, release: str) -> int:
        """Return the bytes that `delete_release` would free."""
        folder = self._layout.release(release)
        with storage_errors(folder):
            return sum(
                file.lstat().st_size
                for path in _contents(folder)
                for file in (path.rglob("*") if path.is_dir() and not path.is_symlink() else (path,))
                if not file.is_dir()
            )

    @property
    def _lock(self) -> Path:
        return self._layout.root / "locks" / ".collection.lock"


def _contents(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.name != MANIFEST_NAME]
    except (FileNotFoundError, NotADirectoryError):
        return []
