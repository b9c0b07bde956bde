"""Blobs of a local store: `blobs/sha256/ab/abcdef…`, one read-only file for each digest."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from modelreg.registry.digests import sha256_hex
from modelreg.registry.errors import IntegrityError, NotFoundError, StorageError
from modelreg.registry.regular_files import open_unbuffered, open_without_waiting
from modelreg.registry.storage.failures import storage_errors
from modelreg.registry.storage.interface import BlobInfo, Progress
from modelreg.registry.storage.layout import Layout
from modelreg.registry.storage.offered import OfferedFile, offered_file
from modelreg.registry.storage.rules import check_digest
from modelreg.registry.storage.writing import (
    READ_ONLY_MODE,
    TEMPORARY_SUFFIX,
    discard,
    hash_file,
    nonce,
    write_file,
    write_hashing,
)

if TYPE_CHECKING:
    from modelreg.registry.storage.marks import Marks

F = TypeVar("F")

_SMALL_BYTES = 8 << 20


class LocalBlobs:
    """Blobs below a `Layout`."""

    def __init__(self, layout: Layout, marks: Callable[[], Marks]) -> None:
        self._layout = layout
        self._marks = marks
        self._ops = layout.ops

    # -- storing -------------------------------------------------------------------------------------------
    def put_file(self, path: Path, *, progress: Progress) -> BlobInfo:
        """Store a regular file, hashed in the same pass as the copy."""
        with offered_file(path) as source:
            if source.size_bytes > _SMALL_BYTES:
                return self._put_large(source, progress=progress)
            stored = self.put_bytes(source.read_all())
        progress(stored.size_bytes)
        return stored

    def _put_large(self, source: OfferedFile, *, progress: Progress) -> BlobInfo:
        with storage_errors(self._layout.tmp):
            self._require_room(source.size_bytes)
            with self._layout.workspace() as folder:
                temporary = folder / "blob"
                digest, size_bytes = write_hashing(
                    self._ops, temporary, source.read, expected_bytes=source.size_bytes, progress=progress
                )
                source.require_unchanged()
                self._marks().claim_blob(digest)
                self._move_in(temporary, digest)
        return BlobInfo(digest=digest, size_bytes=size_bytes)

    def put_bytes(self, data: bytes) -> BlobInfo:
        """Store small bytes."""
        digest = sha256_hex(data)
        target = self._layout.blob(digest)
        with storage_errors(target):
            self._marks().claim_blob(digest)
            if _holds(target, data):
                # Whoever stored it may not have come to this yet, and our caller will rely on it.
                self._ops.fsync_dir(target.parent)
            else:
                with self._layout.workspace() as folder:
                    temporary = folder / "blob"
                    write_file(self._ops, temporary, data, mode=READ_ONLY_MODE)
                    self._move_in(temporary, digest)
        return BlobInfo(digest=digest, size_bytes=len(data))

    def _move_in(self, temporary: Path, digest: str) -> None:
        """Give the finished file its name.

        Replacing what may be there costs nothing, keeps one name on each file, and heals a damaged blob: these bytes
        were hashed a moment ago, those were not.
        """
        target = self._layout.blob(digest)
        self._layout.make_folder(target.parent)
        self._ops.replace(temporary, target)
        self._ops.fsync_dir(target.parent)

    def _require_room(self, size_bytes: int) -> None:
        state = os.statvfs(self._layout.root)
        free = state.f_bavail * state.f_frsize
        if free < size_bytes:
            raise StorageError(
                f"the store at {self._layout.root} has {free:,} bytes free, {size_bytes:,} are needed",
                hint="Free some space there and run the command again; what was active stays active.",
            )

    # -- reading -------------------------------------------------------------------------------------------
    def has_blob(self, digest: str) -> bool:
        """Return whether the blob is there (size and digest unchecked)."""
        path = self._layout.blob(digest)
        with storage_errors(path):
            try:
                return stat.S_ISREG(path.stat().st_mode)
            except FileNotFoundError:
                self._layout.require_mounted()
                return False

    def open_blob(self, digest: str) -> BinaryIO:
        """Open a blob for reading, unverified."""
        return self._open(digest, open_without_waiting)

    def _open(self, digest: str, opened: Callable[[Path], F]) -> F:
        path = self._layout.blob(digest)
        with storage_errors(path):
            try:
                return opened(path)
            except FileNotFoundError:
                self._layout.require_mounted()
                raise NotFoundError(f"blob {digest} is not in the store at {self._layout.root}") from None

    def read_blob(self, digest: str) -> bytes:
        """Return a blob's bytes, verified against the digest."""
        with storage_errors(self._layout.blob(digest)), self.open_blob(digest) as blob:
            data = blob.read()
        self._require_digest(digest, sha256_hex(data))
        return data

    def verify_blob(self, digest: str, *, progress: Progress) -> int:
        """Read the whole blob and compare its digest; return its size."""
        with storage_errors(self._layout.blob(digest)), self._open(digest, open_unbuffered) as blob:
            found, size_bytes = hash_file(blob, progress=progress)
        self._require_digest(digest, found)
        return size_bytes

    def fetch_blob(self, digest: str, destination: Path, *, progress: Progress) -> int:
        """Copy a blob to a new local file, verified on the way; return its size."""
        with storage_errors(destination):
            if os.path.lexists(destination):
                raise StorageError(f"{destination} exists already", hint="Name a new file, or remove that one.")
            temporary = destination.parent / f".{nonce()}{TEMPORARY_SUFFIX}"
            try:
                size_bytes = self.copy_to(temporary, digest, progress=progress)
                self._ops.link(temporary, destination)
                self._ops.fsync_dir(destination.parent)
            finally:
                discard(self._ops, temporary)
            return size_bytes

    def copy_to(self, path: Path, digest: str, *, progress: Progress, mode: int | None = None) -> int:
        """
        Copy a blob to the new file `path`, durably; return its size. Shares blocks where the file system can.

        Raises:
            IntegrityError: The blob is damaged; the caller removes `path`.
        """
        with self.open_blob(digest) as blob:
            fd = blob.fileno()
            found, size_bytes = write_hashing(
                self._ops,
                path,
                lambda buffer: os.readv(fd, [buffer]),
                expected_bytes=os.fstat(fd).st_size,
                progress=progress,
                mode=mode,
                clone_from=fd,
            )
        self._require_digest(digest, found)
        return size_bytes

    def _require_digest(self, digest: str, found: str) -> None:
        if digest != found:
            raise IntegrityError(
                f"blob {digest} is damaged: {self._layout.blob(digest)} has SHA-256 {found}",
                hint="Store the same file again to mend it, or restore it from a backup.",
            )

    def iterate_blobs(self) -> Iterator[BlobInfo]:
        """Yield every blob, in no order, without reading contents."""
        with storage_errors(self._layout.blobs), os.scandir(self._layout.blobs) as prefixes:
            for prefix in prefixes:
                if prefix.is_dir(follow_symlinks=False):
                    yield from _blobs_in(prefix)

    def unguarded(self) -> Iterator[tuple[str, str]]:
        """Yield the digest of each blob that can be changed in place, and how."""
        for info in self.iterate_blobs():
            with suppress(FileNotFoundError):
                if how := _opening(self._layout.blob(info.digest).lstat()):
                    yield info.digest, how


def _opening(state: os.stat_result) -> str:
    """Return how somebody could change a blob in place, empty where nobody can without meaning to."""
    if state.st_mode & 0o222:
        return f"is writable (mode {stat.S_IMODE(state.st_mode):o})"
    return f"has {state.st_nlink} names" if state.st_nlink > 1 else ""


def _holds(path: Path, data: bytes) -> bool:
    """Return whether a file is there with these bytes, read-only and under one name."""
    try:
        state = path.lstat()
        sound = stat.S_ISREG(state.st_mode) and state.st_nlink == 1 and not state.st_mode & 0o222
        return sound and state.st_size == len(data) and path.read_bytes() == data
    except OSError:
        return False  # not there, or not readable: the caller writes it, and meets what is really wrong


def _blobs_in(prefix: os.DirEntry[str]) -> Iterator[BlobInfo]:
    with os.scandir(prefix.path) as entries:
        for entry in entries:
            with suppress(IntegrityError, FileNotFoundError):
                check_digest(entry.name)
                if entry.name.startswith(prefix.name) and entry.is_file(follow_symlinks=False):
                    yield BlobInfo(digest=entry.name, size_bytes=entry.stat(follow_symlinks=False).st_size)
