"""A store in a local folder: the file system's own guarantees, and nothing that needs a server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from modelreg.registry.contents import StoredFile
from modelreg.registry.pointers import Pointer
from modelreg.registry.storage.blobs import LocalBlobs
from modelreg.registry.storage.channels import LocalChannels
from modelreg.registry.storage.failures import storage_errors
from modelreg.registry.storage.files import FileOps
from modelreg.registry.storage.interface import BlobInfo, News, Progress, no_progress
from modelreg.registry.storage.layout import Layout
from modelreg.registry.storage.noted import NotedStorage
from modelreg.registry.storage.releases import LocalReleases
from modelreg.registry.storage.rules import no_pointer

if TYPE_CHECKING:
    from modelreg.registry.storage.collection import LocalCollection
    from modelreg.registry.storage.leftovers import Leftover
    from modelreg.registry.storage.local_notes import LocalNotes


class LocalStorage(NotedStorage):
    """`Storage` below a folder.

    Nothing is cached but which folders are known to be durable: another process may change the store at any time.

    Args:
        root: The folder that `create` made.
        ops: What does the writing; tests give one that stops or fails at a step.

    Raises:
        StorageError: There is no store, or one of a format that this program does not know.
    """

    _blobs: LocalBlobs
    _releases: LocalReleases

    def __init__(self, root: Path, *, ops: FileOps | None = None) -> None:
        layout = Layout(root, FileOps() if ops is None else ops)
        layout.check()
        self._layout = layout
        self._blobs = LocalBlobs(layout, lambda: self._marks)
        self._releases = LocalReleases(layout, self._blobs, lambda: self._marks)
        self._channels = LocalChannels(layout, self._releases)

    @cached_property
    def _notes(self) -> LocalNotes:
        from modelreg.registry.storage.local_notes import LocalNotes  # noqa: PLC0415 - start-up time

        return LocalNotes(self._layout)

    @cached_property
    def _collection(self) -> LocalCollection:
        from modelreg.registry.storage.collection import LocalCollection  # noqa: PLC0415 - start-up time

        return LocalCollection(self._layout)

    @classmethod
    def create(cls, root: Path, *, ops: FileOps | None = None) -> LocalStorage:
        """
        Make an empty store at `root` and return it.

        Raises:
            StorageError: There is one already, the folder holds other things, or it cannot be written.
        """
        Layout(root, FileOps() if ops is None else ops).create()
        return cls(root, ops=ops)

    @property
    def root(self) -> Path:
        """Return the folder of the store."""
        return self._layout.root

    @property
    def url(self) -> str:
        """Return where the store is, as the user would write it."""
        return str(self._layout.root)

    def require_writable(self) -> None:
        """Check that something can be written now, and leave nothing behind."""
        with storage_errors(self._layout.tmp), self._layout.workspace():
            pass

    # -- blobs ---------------------------------------------------------------------------------------------
    def put_file(self, path: Path, *, progress: Progress = no_progress) -> BlobInfo:
        """Store a regular file, hashed in the same pass as the copy; storing the same bytes again is a no-op."""
        return self._blobs.put_file(path, progress=progress)

    def put_bytes(self, data: bytes) -> BlobInfo:
        """Store small bytes."""
        return self._blobs.put_bytes(data)

    def has_blob(self, digest: str) -> bool:
        """Return whether the blob is there (size and digest unchecked)."""
        return self._blobs.has_blob(digest)

    def open_blob(self, digest: str) -> BinaryIO:
        """Open a blob for reading, unverified."""
        return self._blobs.open_blob(digest)

    def read_blob(self, digest: str) -> bytes:
        """Return a blob's bytes, verified against the digest."""
        return self._blobs.read_blob(digest)

    def fetch_blob(self, digest: str, destination: Path, *, progress: Progress = no_progress) -> int:
        """Copy a blob to a new local file, verified on the way; return its size. Nothing is left on failure."""
        return self._blobs.fetch_blob(digest, destination, progress=progress)

    def verify_blob(self, digest: str, *, progress: Progress = no_progress) -> int:
        """Read the whole blob and compare its digest; return its size."""
        return self._blobs.verify_blob(digest, progress=progress)

    def iterate_blobs(self) -> Iterator[BlobInfo]:
        """Yield every blob, in no order, without reading contents."""
        return self._blobs.iterate_blobs()

    def unguarded_blobs(self) -> Iterator[tuple[str, str]]:
        """Yield the digest of each blob that can be changed in place, and how: it is writable, or has another name."""
        return self._blobs.unguarded()

    # -- upkeep --------------------------------------------------------------------------------------------
    def leftovers(self) -> list[Leftover]:
        """Return what writers left behind or are at: `tmp/`, and temporary files beside pointers."""
        from modelreg.registry.storage.leftovers import list_leftovers  # noqa: PLC0415 - start-up time

        return list_leftovers(self._layout)

    def count_leftovers(self) -> int:
        """Return how many temporary files of dead processes lie about."""
        return sum(leftover.is_abandoned for leftover in self.leftovers())

    def sweep_leftovers(self) -> int:
        """Remove the temporary files of dead processes; return how many."""
        from modelreg.registry.storage.leftovers import sweep_leftovers  # noqa: PLC0415 - start-up time

        return sweep_leftovers(self._layout)

    # -- releases ------------------------------------------------------------------------------------------
    def publish_release(self, manifest: bytes, files: Sequence[StoredFile]) -> str:
        """
        Lay `manifest.json` and `files` out side by side, whole or not at all; return the manifest's digest.

        A release that is already there is verified, and what is damaged in it is put right from the blobs.

        Raises:
            IntegrityError: A blob is damaged, a size is not the stated one, or a path leaves the release.
            NotFoundError: A blob is not in the store.
            ValueError: `files` are not those that the manifest names.
        """
        return self._releases.publish(manifest, files)

    def read_manifest(self, release: str) -> bytes:
        """Return a release's manifest, verified against its digest."""
        return self._releases.read_manifest(release)

    def verify_release(self, release: str, *, progress: Progress = no_progress) -> int:
        """Re-hash the manifest and every file it names; return the bytes read."""
        return self._releases.verify(release, progress=progress)

    def release_path(self, release: str) -> Path | None:
        """Return the local folder of a release."""
        return self._releases.folder(release)

    def iterate_releases(self) -> Iterator[str]:
        """Yield the digest of every published release."""
        return self._releases.iterate()

    # -- collection ----------------------------------------------------------------------------------------
    def delete_blob(self, digest: str) -> None:
        """Remove a blob."""
        self._collection.delete_blob(digest)

    def delete_release(self, release: str) -> None:
        """Remove what a release holds beside its manifest."""
        self._collection.delete_release(release)

    def measure_release(self, release: str) -> int:
        """Return the bytes that `delete_release` would free."""
        return self._collection.measure_release(release)

    # -- pointers ------------------------------------------------------------------------------------------
    def exclusive(self, model: str, channel: str, *, timeout_s: float) -> AbstractContextManager[None]:
        """Hold the channel against other processes of this host; raise `BusyError` after `timeout_s`."""
        return self._channels.exclusive(model, channel, timeout_s=timeout_s)

    def read_pointer(self, model: str, channel: str) -> Pointer | None:
        """Return the verified pointer, read once, or None where the channel never had one."""
        return self._channels.read_pointer(model, channel)

    def poll_pointer(self, model: str, channel: str, *, mark: str) -> News | None:
        """Return the verified pointer with its mark, None where it still has this one; NotFoundError without one."""
        pointer = self._channels.read_pointer(model, channel)
        if pointer is None:
            raise no_pointer(model, channel)
        return None if pointer.txn == mark else News(pointer=pointer, mark=pointer.txn)

    def swap_pointer(self, new: Pointer, *, expected: Pointer | None) -> None:
        """
        Move the pointer from `expected` to `new`: history first, then one compare-and-swap.

        Raises:
            ActivationConflictError: The pointer is not `expected`; nothing changed.
            ActivationUnknownError: An error came after the commit point.
            NotFoundError: The release is not published.
            ValueError: `new` does not follow `expected`.
        """
        self._channels.swap_pointer(new, expected=expected)

    def complete_reserved(self, model: str, channel: str) -> Pointer | None:
        """Finish a swap whose writer died between history and pointer; return the pointer as it is then."""
        return self._channels.complete_reserved(model, channel)

    def read_history(self, model: str, channel: str, generation: int) -> Pointer:
        """Return one generation's pointer document, verified."""
        return self._channels.read_history(model, channel, generation)

    def restore_history(self, document: Pointer) -> None:
        """
        Write a generation's document again that was lost or damaged; nothing happens if it is there.

        Raises:
            IntegrityError: It is no part of the channel's history: beyond the pointer, or not chained to what is there.
        """
        self._channels.restore_history(document)

    def advance_pointer(self, model: str, channel: str, generation: int) -> None:
        """
        Put the newest document of the history in the place of a pointer that is lost, damaged or older.

        Raises:
            IntegrityError: `generation` is not the newest of the history or damaged, or the pointer is at it or beyond.
            NotFoundError: Its release is not published.
        """
        self._channels.advance_pointer(model, channel, generation)

    def list_generations(self, model: str, channel: str) -> list[int]:
        """Return the generations with a history document, ascending."""
        return self._channels.list_generations(model, channel)

    def list_channels(self) -> list[tuple[str, str]]:
        """Return (model, channel) of every channel that has a folder, sorted."""
        return self._channels.list_channels()
