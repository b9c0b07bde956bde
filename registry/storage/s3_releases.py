"""Releases of a store in S3: `releases/DIGEST/manifest.json`, written once; the files it names are blobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from modelreg.registry.contents import StoredFile
from modelreg.registry.digests import sha256_hex
from modelreg.registry.errors import IntegrityError, NotFoundError, StorageError
from modelreg.registry.storage.interface import Progress
from modelreg.registry.storage.rules import MANIFEST_NAME, check_digest, check_release, manifest_files
from modelreg.registry.storage.s3_blobs import S3Blobs
from modelreg.registry.storage.s3_objects import S3Objects
from modelreg.registry.storage.s3_protocol import Written

if TYPE_CHECKING:
    from modelreg.registry.storage.marks import Marks

_FOLDER = "releases"


class S3Releases:
    """Releases among the objects of a store."""

    def __init__(self, objects: S3Objects, blobs: S3Blobs, marks: Callable[[], Marks]) -> None:
        self._objects = objects
        self._marks = marks
        self._blobs = blobs

    def publish(self, manifest: bytes, files: Sequence[StoredFile]) -> str:
        """Keep a manifest whose blobs are all there and whole; one that is damaged is put right."""
        check_release(manifest, files)
        digest = sha256_hex(manifest)
        self._marks().claim_new_release(digest)
        for file in files:
            self._marks().claim_blob(file.digest)
            self._blobs.require_sound(file.digest, size_bytes=file.size_bytes, what=f"release file {file.path!r}")
        path = _path(digest)
        if self._objects.create_surely(path, manifest) is Written.YES:
            return digest
        for attempt in range(self._objects.client.limits.tries):
            found = self._objects.read(path)
            if found is not None and found.data == manifest:
                return digest
            if found is not None and self._objects.replace(path, manifest, etag=found.etag) is Written.YES:
                return digest
            self._objects.client.pause(attempt)
        raise StorageError(f"store key {self._objects.where(path)} can be neither created nor replaced")

    def read_manifest(self, release: str) -> bytes:
        """Return a release's manifest, verified against its digest."""
        path = _path(release)
        found = self._objects.read(path)
        if found is None:
            raise NotFoundError(f"release {release} is not in the store at {self._objects.client.location}")
        digest = sha256_hex(found.data)
        if digest != release:
            raise IntegrityError(f"release {release} is damaged: {self._objects.where(path)} has SHA-256 {digest}")
        return found.data

    def verify(self, release: str, *, progress: Progress) -> int:
        """Re-hash the manifest and every blob it names; return the bytes read."""
        manifest = self.read_manifest(release)
        read_bytes = len(manifest)
        progress(read_bytes)
        for file in manifest_files(manifest, where=f"of release {release}"):
            try:
                found_bytes = self._blobs.verify_blob_again(file.digest, progress=progress)
            except (IntegrityError, NotFoundError) as error:
                raise IntegrityError(f"release {release} is damaged at {file.path}: {error}") from error
            if found_bytes != file.size_bytes:
                raise IntegrityError(f"release {release} states another size of {file.path} than its blob has")
            read_bytes += found_bytes
        return read_bytes

    def iterate(self) -> Iterator[str]:
        """Yield the digest of every published release."""
        for name in self._objects.list_folders(_FOLDER):
            with suppress(IntegrityError):
                yield check_digest(name)


def _path(release: str) -> str:
    return f"{_FOLDER}/{check_digest(release)}/{MANIFEST_NAME}"
