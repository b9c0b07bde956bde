"""What a store promises, whatever it is made of. One contract suite holds every implementation to it.

Immutable things first, the pointer last: blobs and releases are written once under their digest, the pointer is
the only thing that changes, and moving it is one compare-and-swap, the commit point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol, runtime_checkable

from modelreg.registry.contents import StoredFile
from modelreg.registry.pointers import Pointer
from modelreg.registry.storage.notes import MayTake, Notes

if TYPE_CHECKING:
    from modelreg.registry.storage.marks import Mark

Progress = Callable[[int], None]
"""Called with the number of bytes done since the last call."""


def no_progress(_size_bytes: int) -> None:
    """Ignore progress."""


Trying = Callable[[str], None]
"""Called with the name of what is tried next."""


def not_told(_name: str) -> None:
    """Ignore what is tried."""


class BlobInfo(NamedTuple):  # and no dataclass: every command that opens a store makes it
    """A stored blob: its digest (SHA-256, hex) and size."""

    digest: str
    size_bytes: int


class News(NamedTuple):  # as `BlobInfo`
    """A pointer that was not seen before, and the mark by which its store tells it from the next."""

    pointer: Pointer
    mark: str


class Storage(Notes, Protocol):
    """Blobs, releases, pointers and notes under one root.

    Every method raises `StorageError` when the medium refuses (full, read-only, no permission, away), naming the
    path or key; `IntegrityError` when bytes do not match their digest; `NotFoundError` for what is not there.
    """

    @property
    def url(self) -> str:
        """Return where the store is, as the user would write it."""
        ...

    def require_writable(self) -> None:
        """Check that something can be written now, and leave nothing behind; cheap, so ask before long work."""
        ...

    # -- blobs ---------------------------------------------------------------------------------------------
    def put_file(self, path: Path, *, progress: Progress = no_progress) -> BlobInfo:
        """Store a regular file, hashed in the same pass as the copy; storing the same bytes again is a no-op."""
        ...

    def put_bytes(self, data: bytes) -> BlobInfo:
        """Store small bytes."""
        ...

    def has_blob(self, digest: str) -> bool:
        """Return whether the blob is there (size and digest unchecked)."""
        ...

    def open_blob(self, digest: str) -> BinaryIO:
        """Open a blob for reading, unverified."""
        ...

    def read_blob(self, digest: str) -> bytes:
        """Return a blob's bytes, verified against the digest."""
        ...

    def fetch_blob(self, digest: str, destination: Path, *, progress: Progress = no_progress) -> int:
        """Copy a blob to a new local file, verified on the way; return its size. Nothing is left on failure."""
        ...

    def verify_blob(self, digest: str, *, progress: Progress = no_progress) -> int:
        """Read the whole blob and compare its digest; return its size."""
        ...

    def iterate_blobs(self) -> Iterator[BlobInfo]:
        """Yield every blob, in no order, without reading contents."""
        ...

    def keep_blob(self, digest: str) -> bool:
        """Return whether a blob is there; if it is, no collector that has marked it removes it now.

        Storing a blob does the same, and so does publishing a release, for itself and its blobs.
        """
        ...

    # -- upkeep --------------------------------------------------------------------------------------------
    def count_leftovers(self) -> int:
        """Return how many temporary files of dead processes lie about."""
        ...

    def sweep_leftovers(self) -> int:
        """Remove the temporary files of dead processes; return how many."""
        ...

    # -- releases ------------------------------------------------------------------------------------------
    def publish_release(self, manifest: bytes, files: Sequence[StoredFile]) -> str:
        """Lay out `manifest.json` and `files` (from blobs, verified) side by side, whole or not at all; return the
        manifest's digest. A release that is already there is verified instead."""
        ...

    def read_manifest(self, release: str) -> bytes:
        """Return a release's manifest, verified against its digest."""
        ...

    def verify_release(self, release: str, *, progress: Progress = no_progress) -> int:
        """Re-hash the manifest and every file it names; return the bytes read."""
        ...

    def release_path(self, release: str) -> Path | None:
        """Return the local folder of a release, or None where a store has no local files."""
        ...

    def iterate_releases(self) -> Iterator[str]:
        """Yield the digest of every published release."""
        ...

    def keep_release(self, release: str) -> None:
        """
        See to it that no collector removes a release that is about to become active again, nor its blobs.

        Raises:
            NotFoundError: It was removed; by whom, when and why is said.
        """
        ...

    def find_swept(self, release: str) -> Mark | None:
        """Return what a collector noted of a release that it removed; the manifest is still there."""
        ...

    # -- collection ----------------------------------------------------------------------------------------
    def collecting(self, *, timeout_s: float) -> AbstractContextManager[MayTake]:
        """
        Be the only collector of the store, as far as it knows locks; raise `BusyError` after `timeout_s`.

        What it gives tells of the note of a *sweeping* mark whether whoever wrote it can no longer be at it.
        """
        ...

    def delete_blob(self, digest: str) -> None:
        """Remove a blob; for a collector that has moved its mark to *sweeping*. Nothing happens where there is none."""
        ...

    def delete_release(self, release: str) -> None:
        """Remove what a release holds beside its manifest; for a collector, as `delete_blob`."""
        ...

    def measure_release(self, release: str) -> int:
        """Return the bytes that `delete_release` would free."""
        ...

    # -- pointers ------------------------------------------------------------------------------------------
    def exclusive(self, model: str, channel: str, *, timeout_s: float) -> AbstractContextManager[None]:
        """Hold the channel against other processes of this host; raise `BusyError` after `timeout_s`.

        An optimisation where the store itself arbitrates, a necessity nowhere: `swap_pointer` is safe without it.
        """
        ...

    def read_pointer(self, model: str, channel: str) -> Pointer | None:
        """Return the verified pointer, read once, or None where the channel never had one."""
        ...

    def poll_pointer(self, model: str, channel: str, *, mark: str) -> News | None:
        """Return the verified pointer with its mark, None where it still has this one; cheap. One must be there."""
        ...

    def swap_pointer(self, new: Pointer, *, expected: Pointer | None) -> None:
        """
        Move the pointer from `expected` to `new`: history first, then one compare-and-swap.

        Raises:
            ActivationConflictError: The pointer is not `expected`; nothing changed.
            ActivationUnknownError: An error came after the commit point, or its answer was lost.
        """
        ...

    def complete_reserved(self, model: str, channel: str) -> Pointer | None:
        """Finish a swap whose writer died between history and pointer; return the pointer as it is then."""
        ...

    def read_history(self, model: str, channel: str, generation: int) -> Pointer:
        """Return one generation's pointer document, verified."""
        ...

    def list_generations(self, model: str, channel: str) -> list[int]:
        """Return the generations with a history document, ascending."""
        ...

    def list_channels(self) -> list[tuple[str, str]]:
        """Return (model, channel) of every channel that has a folder, sorted."""
        ...


@runtime_checkable
class Served(Protocol):
    """A store behind a server: somebody else's clock, and promises that were tried at some time."""

    @property
    def checked_at(self) -> datetime | None:
        """Return when the server was last tried (`modelreg store check`), None where nobody noted it."""
        ...

    def server_time(self) -> datetime | None:
        """Return what time it is on the server, or None if it does not say."""
        ...


@runtime_checkable
class KeepsFiles(Protocol):
    """A store whose blobs are files, which other programs can reach."""

    def unguarded_blobs(self) -> Iterator[tuple[str, str]]:
        """Yield the digest of each blob that can be changed in place, and how: it is writable, or has another name."""
        ...


@runtime_checkable
class RestoresHistory(Protocol):
    """A store that takes back a history document which it lost, and a pointer that is behind its history."""

    def restore_history(self, document: Pointer) -> None:
        """
        Write a generation's document again where it is gone or cannot be read; nothing happens if it is there.

        Raises:
            IntegrityError: It is no part of the channel's history: beyond the pointer, or not chained to what is there.
        """
        ...

    def advance_pointer(self, model: str, channel: str, generation: int) -> None:
        """
        Put the newest document of a channel's history in the place of a pointer that is lost, damaged or older.

        A person decided that: such a pointer was restored from elsewhere, or lost. It never goes back.

        Raises:
            IntegrityError: `generation` is not the newest of the history or damaged, or the pointer is at it or beyond.
            NotFoundError: Its release is not published.
        """
        ...
