"""Blobs of a store in S3: `blobs/sha256/ab/abcdef…`, one object for each digest, written once.

Whether a stored object is right is taken from the server where it tells the SHA-256 that it has checked itself, and is
else found out by reading it. The digest in the key is the authority.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from modelreg.registry.digests import sha256_hex
from modelreg.registry.errors import IntegrityError, NotFoundError, StorageError
from modelreg.registry.storage.copying import Write, copy_hashing
from modelreg.registry.storage.failures import storage_errors
from modelreg.registry.storage.files import FileOps
from modelreg.registry.storage.interface import BlobInfo, Progress, no_progress
from modelreg.registry.storage.offered import OfferedFile, offered_file
from modelreg.registry.storage.rules import check_digest
from modelreg.registry.storage.s3_multipart import composite_sha256, upload_file
from modelreg.registry.storage.s3_objects import Head, S3Objects, to_base64
from modelreg.registry.storage.s3_parts import PartHasher
from modelreg.registry.storage.s3_protocol import Written
from modelreg.registry.storage.s3_reading import BlobReader, PieceReader
from modelreg.registry.storage.writing import TEMPORARY_SUFFIX, discard, nonce, write_hashing

if TYPE_CHECKING:
    from modelreg.registry.storage.marks import Marks

_FOLDER = "blobs/sha256"


class S3Blobs:
    """Blobs among the objects of a store."""

    def __init__(self, objects: S3Objects, marks: Callable[[], Marks]) -> None:
        self._objects = objects
        self._marks = marks
        self._limits = objects.client.limits
        self._ops = FileOps()
        self._verified: dict[str, str] = {}

    # -- storing -------------------------------------------------------------------------------------------
    def put_file(self, path: Path, *, progress: Progress) -> BlobInfo:
        """Store a regular file: in one request, or in parts that can be taken up again."""
        with offered_file(path) as source:
            if source.size_bytes > self._limits.single_bytes:
                return self._put_large(source, progress=progress)
            stored = self.put_bytes(source.read_all())
        progress(stored.size_bytes)
        return stored

    def put_bytes(self, data: bytes) -> BlobInfo:
        """Store bytes that are in memory."""
        info = BlobInfo(digest=sha256_hex(data), size_bytes=len(data))
        path = _path(info.digest)
        self._marks().claim_blob(info.digest)
        if len(data) >= self._limits.look_first_bytes:
            head = self._objects.head(path)
            if head is not None and self._is_sound(info, head):
                return info
        for attempt in range(self._limits.tries):
            if self._objects.create_surely(path, data) is Written.YES:
                return info
            head = self._objects.head(path)
            if head is not None:
                if self._is_sound(info, head):
                    return info
                # These bytes were hashed a moment ago, those are wrong; whoever is first to replace them heals them.
                if self._objects.replace(path, data, etag=head.etag) is Written.YES:
                    return info
            self._objects.client.pause(attempt)
        raise StorageError(f"store key {self._objects.where(path)} can be neither created nor replaced")

    def _put_large(self, source: OfferedFile, *, progress: Progress) -> BlobInfo:
        """Hash the file, whole and by parts in one reading, and upload it unless the store has it."""
        hasher = PartHasher(part_bytes=self._limits.part_size(source.size_bytes))
        digest, size_bytes = copy_hashing(
            source.read, hasher.update, expected_bytes=source.size_bytes, progress=no_progress
        )
        source.require_unchanged()
        info, parts = BlobInfo(digest=digest, size_bytes=size_bytes), hasher.finish()
        composite = composite_sha256(parts)
        self._marks().claim_blob(digest)

        def is_stored() -> bool:
            head = self._objects.head(_path(digest))
            return head is not None and self._is_sound(info, head, composite=composite)

        if is_stored():
            progress(size_bytes)
            return info
        upload_file(
            self._objects,
            _path(digest),
            source,
            digest=digest,
            parts=parts,
            is_there=is_stored,
            progress=progress,
        )
        head = self._objects.head(_path(digest))
        if head is None or not self._is_sound(info, head, composite=composite):
            raise IntegrityError(
                f"blob {digest} did not arrive as it was sent: {self._objects.where(_path(digest))}",
                hint="Run the command again; if it stays so, run `modelreg store check`.",
            )
        return info

    def _is_sound(self, info: BlobInfo, head: Head, *, composite: str = "") -> bool:
        if self._is_known(info.digest, head):
            return True
        told = judge(head, info.digest, info.size_bytes, composite)
        if told is None:
            try:
                self.verify_blob(info.digest, progress=no_progress)
            except (IntegrityError, NotFoundError):
                return False
            return True
        return told

    def delete(self, digest: str) -> None:
        """Remove a blob; nothing happens where there is none."""
        self._objects.delete_surely(_path(digest))
        self._verified.pop(digest, None)

    # -- reading -------------------------------------------------------------------------------------------
    def has_blob(self, digest: str) -> bool:
        """Return whether the blob is there (size and digest unchecked)."""
        return self._objects.head(_path(digest)) is not None

    def open_blob(self, digest: str) -> BinaryIO:
        """Open a blob for reading and seeking, unverified."""
        raw = BlobReader(self._objects, _path(digest), absent=lambda: self._absent(digest))
        return io.BufferedReader(raw, buffer_size=1 << 16)

    def read_blob(self, digest: str) -> bytes:
        """Return a blob's bytes, verified against the digest."""
        pieces: list[bytes] = []
        self._stream(digest, lambda piece: pieces.append(bytes(piece)), progress=no_progress)
        return b"".join(pieces)

    def verify_blob(self, digest: str, *, progress: Progress) -> int:
        """Read the whole blob and compare its digest; return its size."""
        return self._stream(digest, None, progress=progress)

    def verify_blob_again(self, digest: str, *, progress: Progress) -> int:
        """Do the same, but let what this process has read be read once while its ETag stays; return its size."""
        if digest in self._verified:
            head = self._objects.head(_path(digest))
            if head is not None and self._is_known(digest, head):
                progress(head.size_bytes)
                return head.size_bytes
        return self.verify_blob(digest, progress=progress)

    def _is_known(self, digest: str, head: Head) -> bool:
        return bool(head.etag) and self._verified.get(digest) == head.etag

    def _stream(self, digest: str, write: Write | None, *, progress: Progress) -> int:
        reader = self._reader(digest)
        try:
            found, size_bytes = copy_hashing(
                reader.read,
                write,
                expected_bytes=reader.size_bytes,
                progress=progress,
            )
        finally:
            reader.close()
        self._require_digest(digest, found)
        self._verified[digest] = reader.etag
        return size_bytes

    def fetch_blob(self, digest: str, destination: Path, *, progress: Progress) -> int:
        """Copy a blob to a new local file, verified on the way; return its size."""
        with storage_errors(destination):
            if os.path.lexists(destination):
                raise StorageError(f"{destination} exists already", hint="Name a new file, or remove that one.")
            reader = self._reader(digest)
            temporary = destination.parent / f".{nonce()}{TEMPORARY_SUFFIX}"
            try:
                found, size_bytes = write_hashing(
                    self._ops,
                    temporary,
                    reader.read,
                    expected_bytes=reader.size_bytes,
                    progress=progress,
                    mode=None,
                )
                self._require_digest(digest, found)
                self._ops.link(temporary, destination)
                self._ops.fsync_dir(destination.parent)
            finally:
                reader.close()
                discard(self._ops, temporary)
            return size_bytes

    def require_sound(self, digest: str, *, size_bytes: int, what: str) -> None:
        """
        Check that a blob is there whole; what was read a moment ago and has not changed is not read again.

        Raises:
            NotFoundError: It is not there.
            IntegrityError: It is damaged, or `what` states another size than it has.
        """
        head = self._objects.head(_path(digest))
        if head is None:
            raise self._absent(digest)
        if not self._is_known(digest, head) and judge(head, digest, head.size_bytes, "") is not True:
            self.verify_blob(digest, progress=no_progress)
        if head.size_bytes != size_bytes:
            raise IntegrityError(f"{what} is stated to have {size_bytes} bytes, its blob has {head.size_bytes}")

    def iterate_blobs(self) -> Iterator[BlobInfo]:
        """Yield every blob, in no order, without reading contents."""
        for name, size_bytes in self._objects.list_files(_FOLDER):
            prefix, _, digest = name.partition("/")
            with suppress(IntegrityError):
                if check_digest(digest).startswith(prefix):
                    yield BlobInfo(digest=digest, size_bytes=size_bytes)

    def _reader(self, digest: str) -> PieceReader:
        return PieceReader(self._objects, _path(digest), absent=lambda: self._absent(digest))

    def _absent(self, digest: str) -> NotFoundError:
        return NotFoundError(f"blob {digest} is not in the store at {self._objects.client.location}")

    def _require_digest(self, digest: str, found: str) -> None:
        if digest != found:
            raise IntegrityError(
                f"blob {digest} is damaged: {self._objects.where(_path(digest))} has SHA-256 {found}",
                hint="Store the same file again to mend it, or restore it from a backup.",
            )


def judge(head: Head, digest: str, size_bytes: int, composite: str) -> bool | None:
    """
    Return whether an object is what it should be by what its server says, or None where that does not tell.

    Args:
        head: What the server says.
        digest: The SHA-256 of the whole, in hex.
        size_bytes: Its size.
        composite: What S3 would tell of it in parts of our size; empty where that was not computed.
    """
    if head.size_bytes != size_bytes:
        return False
    if head.sha256 and head.sha256 in (composite, to_base64(bytes.fromhex(digest))):
        return True
    return None  # parts of another size say nothing, and some servers tell a checksum of something else


def _path(digest: str) -> str:
    return f"{_FOLDER}/{check_digest(digest)[:2]}/{digest}"
