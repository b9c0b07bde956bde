"""Where things lie below the root of a local store, and how folders are made there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from modelreg.registry.errors import StorageError, StoreAbsentError, StoreFormatError
from modelreg.registry.storage.failures import storage_errors
from modelreg.registry.storage.files import FileOps
from modelreg.registry.storage.rules import MANIFEST_NAME, check_channel, check_digest
from modelreg.registry.storage.writing import TEMPORARY_SUFFIX, nonce, temporary_file

FORMAT = 1
FORMAT_NAME = "FORMAT"
_FOLDERS = ("blobs/sha256", "releases", "channels", "locks", "tmp")


class ChannelPlace:
    """The files of one channel. `pointer` is the only one that ever changes, `history` the folder beside it."""

    __slots__ = ("channel", "folder", "history", "locks", "model", "name", "pointer")

    def __init__(self, root: Path, model: str, channel: str) -> None:
        self.model = model
        self.channel = channel
        self.name = f"{model}@{channel}"
        self.folder = root / "channels" / model / channel
        self.locks = root / "locks" / model / channel
        self.pointer = self.folder / "pointer.json"
        self.history = self.folder / "history"

    def generation(self, number: int) -> Path:
        """Return the document of one generation."""
        return self.history / f"{number:012d}.json"


class Layout:
    """The paths of a store, and how folders and workspaces are made in it."""

    def __init__(self, root: Path, ops: FileOps) -> None:
        self.root = root
        self.ops = ops
        self.blobs = root / "blobs" / "sha256"
        self.releases = root / "releases"
        self.channels = root / "channels"
        self.tmp = root / "tmp"
        self._durable: set[Path] = set()
        self._places: dict[tuple[str, str], ChannelPlace] = {}

    # -- paths ---------------------------------------------------------------------------------------------
    def blob(self, digest: str) -> Path:
        """Return where a blob lies."""
        return self.blobs / check_digest(digest)[:2] / digest

    def release(self, digest: str) -> Path:
        """Return where a release lies."""
        return self.releases / check_digest(digest)

    def manifest(self, release: str) -> Path:
        """Return where a release's manifest lies."""
        return self.release(release) / MANIFEST_NAME

    def channel(self, model: str, channel: str) -> ChannelPlace:
        """Return where a channel lies."""
        place = self._places.get((model, channel))
        if place is None:
            check_channel(model, channel)
            place = self._places[model, channel] = ChannelPlace(self.root, model, channel)
        return place

    # -- the root ------------------------------------------------------------------------------------------
    def create(self) -> None:
        """
        Make an empty store; `FORMAT` comes last, so a store is there whole or not at all.

        Raises:
            StorageError: There is a store already, or a folder with other things in it.
        """
        with storage_errors(self.root):
            self._require_free()
            self._make_root()
            for name in _FOLDERS:
                self.make_folder(self.root / name)
            with temporary_file(self.ops, self.root, _new_format()) as temporary:
                try:
                    self.ops.link(temporary, self.root / FORMAT_NAME)
                except FileExistsError:
                    raise _exists(self.root) from None
            self.ops.fsync_dir(self.root)

    def _require_free(self) -> None:
        names = {entry.name for entry in self.root.iterdir()} if self.root.exists() else set()
        if FORMAT_NAME in names:
            raise _exists(self.root)
        # What an interrupted `create` left is ours to finish.
        ours = {name.partition("/")[0] for name in _FOLDERS}
        if foreign := {name for name in names - ours if not name.endswith(TEMPORARY_SUFFIX)}:
            raise StorageError(
                f"{self.root} is not empty: it holds {min(foreign)!r}", hint="Name a new or an empty folder."
            )

    def _make_root(self) -> None:
        missing = [path for path in (self.root, *self.root.absolute().parents) if not path.exists()]
        for path in reversed(missing):
            with suppress(FileExistsError):
                self.ops.mkdir(path)
            self.ops.fsync_dir(path.parent)

    def check(self) -> None:
        """
        Check that there is a store of a format we know.

        Raises:
            StorageError: There is none, it cannot be read, or it is of another format.
        """
        path = self.root / FORMAT_NAME
        try:
            with storage_errors(path):
                found = json.loads(path.read_bytes())["format"]
        except StorageError as error:
            if isinstance(error.__cause__, (FileNotFoundError, NotADirectoryError)):
                raise _absent(self.root) from None
            raise
        except (ValueError, KeyError, TypeError):
            raise StoreFormatError(f"{path} cannot be read: the store is damaged, or not one of ours") from None
        if found != FORMAT:
            raise StorageError(
                f"the store at {self.root} has format {found!r}, this modelreg knows {FORMAT}",
                hint="It was made by a newer modelreg; upgrade this one.",
            )

    def has_folders(self) -> bool:
        """Return whether the folders of a store are there, whatever `FORMAT` says."""
        return all((self.root / name).is_dir() for name in _FOLDERS[:3])

    def write_format(self) -> None:
        """Put a new `FORMAT` in the place of one that is gone or cannot be read."""
        with storage_errors(self.root):
            with temporary_file(self.ops, self.root, _new_format()) as temporary:
                self.ops.replace(temporary, self.root / FORMAT_NAME)
            self.ops.fsync_dir(self.root)

    def require_mounted(self) -> None:
        """
        Check that the root is still there, before something missing is taken for something that never was.

        Raises:
            StorageError: It is away, an unmounted disk perhaps.
        """
        if not (self.root / FORMAT_NAME).exists():
            raise _absent(self.root)

    # -- folders -------------------------------------------------------------------------------------------
    def make_folder(self, folder: Path) -> None:
        """Make a folder below the root with all its parents, durably.

        A folder that somebody else made a moment ago may not be durable yet, so the first use of each in this
        process syncs its parent, whoever made it.
        """
        if folder in self._durable or folder == self.root:
            return
        self.make_folder(folder.parent)
        with suppress(FileExistsError):
            self.ops.mkdir(folder)
        self.ops.fsync_dir(folder.parent)
        self._durable.add(folder)

    @contextmanager
    def workspace(self) -> Iterator[Path]:
        """Make a folder below `tmp/` that is gone afterwards; if we die, a sweep finds that nobody holds it."""
        if not self.tmp.exists():
            self.make_folder(self.tmp)
        folder = self.tmp / nonce()
        self.ops.mkdir(folder)
        fd = self.ops.hold(folder)
        try:
            yield folder
        finally:
            with suppress(OSError):
                self.ops.remove_tree(folder)
            os.close(fd)

    @contextmanager
    def swap_lock(self, place: ChannelPlace, *, timeout_s: float) -> Iterator[None]:
        """Hold the lock under which a channel's files change."""
        with self._lock(place, "swap.lock", timeout_s=timeout_s):
            yield

    @contextmanager
    def command_lock(self, place: ChannelPlace, *, timeout_s: float) -> Iterator[None]:
        """Hold the lock of a whole command on a channel."""
        with self._lock(place, "command.lock", timeout_s=timeout_s):
            yield

    @contextmanager
    def _lock(self, place: ChannelPlace, name: str, *, timeout_s: float) -> Iterator[None]:
        if not place.locks.exists():
            # Locks mean nothing after a power cut, so these folders need not be durable.
            for folder in (place.locks.parent.parent, place.locks.parent, place.locks):
                with suppress(FileExistsError):
                    self.ops.mkdir(folder)
        with self.ops.lock(place.locks / name, timeout_s=timeout_s, what=f"channel {place.name}"):
            yield


def _new_format() -> bytes:
    return (json.dumps({"format": FORMAT, "uuid": os.urandom(16).hex()}) + "\n").encode()


def _exists(root: Path) -> StorageError:
    return StorageError(f"there is a store at {root} already")


def _absent(root: Path) -> StorageError:
    return StoreAbsentError(
        f"there is no store at {root}",
        hint="Mount it or restore it; a new registry is made with `modelreg init`.",
    )
