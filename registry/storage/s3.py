"""A store in S3: conditional writes instead of locks, checksums instead of fsync, and nothing that needs a clock.

What a server must do for that is little: create an object if there is none, and replace one if it still has the ETag
that was read. Not every server does; `s3_check` finds out before a store is made.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from modelreg.registry.clock import iso, parse_iso, utc_now
from modelreg.registry.contents import StoredFile
from modelreg.registry.errors import StorageError, StoreAbsentError, StoreFormatError
from modelreg.registry.pointers import Pointer
from modelreg.registry.storage.interface import BlobInfo, News, Progress, no_progress
from modelreg.registry.storage.layout import FORMAT, FORMAT_NAME
from modelreg.registry.storage.noted import NotedStorage
from modelreg.registry.storage.rules import check_digest
from modelreg.registry.storage.s3_blobs import S3Blobs
from modelreg.registry.storage.s3_channels import S3Channels
from modelreg.registry.storage.s3_client import OnStep, S3Client, nothing
from modelreg.registry.storage.s3_collection import S3Collection
from modelreg.registry.storage.s3_limits import S3Limits
from modelreg.registry.storage.s3_location import S3Location
from modelreg.registry.storage.s3_multipart import abort_upload, list_abandoned
from modelreg.registry.storage.s3_notes import S3Notes
from modelreg.registry.storage.s3_objects import S3Objects
from modelreg.registry.storage.s3_protocol import Written
from modelreg.registry.storage.s3_releases import S3Releases


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirks:
    """What a server does differently, as its check found.

    `bare_etags`: it wants ETags without quotes in conditions. `checks_parts`: it refuses a part of an upload whose
    bytes do not have the SHA-256 that was stated, so nobody need hash them a second time here.
    """

    bare_etags: bool = False
    checks_parts: bool = False

    def to_json(self) -> dict[str, bool]:
        """Return them as they stand in `FORMAT`."""
        return {"bare_etags": self.bare_etags, "checks_parts": self.checks_parts}

    @classmethod
    def from_json(cls, body: dict[str, object]) -> Quirks:
        """Read them back; what an earlier program did not note is not relied on."""
        return cls(bare_etags=bool(body.get("bare_etags")), checks_parts=bool(body.get("checks_parts")))


class S3Storage(NotedStorage):
    """`Storage` below a prefix of a bucket.

    Args:
        location: Where it is.
        limits: Patience and sizes.
        on_step: Called before each request; tests stop or fail there.

    Raises:
        StorageError: There is no store, one of a format that this program does not know, or it cannot be reached.
    """

    _blobs: S3Blobs
    _releases: S3Releases

    def __init__(self, location: S3Location, *, limits: S3Limits | None = None, on_step: OnStep = nothing) -> None:
        client = S3Client(location, limits or S3Limits(), on_step=on_step)
        self._format, quirks = _read_format(S3Objects(client))
        self._set_up(client, quirks)

    @classmethod
    def connect(cls, location: S3Location, *, limits: S3Limits | None = None, on_step: OnStep = nothing) -> S3Storage:
        """Return a store without asking whether there is one: for a look at a pointer that is one request."""
        made = cls.__new__(cls)
        made._format = b""
        made._set_up(S3Client(location, limits or S3Limits(), on_step=on_step), Quirks())
        return made

    def _set_up(self, client: S3Client, quirks: Quirks) -> None:
        self._location = client.location
        self._objects = S3Objects(client, bare_etags=quirks.bare_etags, checks_parts=quirks.checks_parts)
        self._blobs = S3Blobs(self._objects, lambda: self._marks)
        self._releases = S3Releases(self._objects, self._blobs, lambda: self._marks)
        self._channels = S3Channels(self._objects, self._releases)

    @cached_property
    def _notes(self) -> S3Notes:
        return S3Notes(self._objects)

    @cached_property
    def _collection(self) -> S3Collection:
        return S3Collection(self._objects, self._notes)

    @classmethod
    def create(cls, location: S3Location, *, quirks: Quirks, limits: S3Limits | None = None) -> S3Storage:
        """
        Make an empty store whose server has passed its check, and return it.

        Raises:
            StorageError: There is one already, or it cannot be written.
        """
        objects = S3Objects(S3Client(location, limits or S3Limits()))
        data = _new_format(quirks)
        if objects.create_surely(FORMAT_NAME, data) is not Written.YES:
            found = objects.read(FORMAT_NAME)  # ours, if the answer to an earlier try was lost
            if found is None or found.data != data:
                raise StorageError(f"there is a store at {location} already")
        return cls(location, limits=limits)

    @classmethod
    def rewrite_format(cls, location: S3Location, *, quirks: Quirks, limits: S3Limits | None = None) -> None:
        """
        Put a new `FORMAT` in the place of one that is gone or cannot be read.

        Raises:
            StorageError: It could not be written, or somebody else did so meanwhile.
        """
        objects = S3Objects(S3Client(location, limits or S3Limits()), bare_etags=quirks.bare_etags)
        found, data = objects.read(FORMAT_NAME), _new_format(quirks)
        if found is None:
            written = objects.create_surely(FORMAT_NAME, data)
        else:
            written = objects.replace(FORMAT_NAME, data, etag=found.etag)
        if written is not Written.YES:
            raise StorageError(f"{objects.where(FORMAT_NAME)} could not be written", hint="Run the command again.")

    @property
    def location(self) -> S3Location:
        """Return bucket, prefix and how they are reached."""
        return self._location

    @property
    def url(self) -> str:
        """Return where the store is, as the user would write it."""
        return str(self._location)

    def require_writable(self) -> None:
        """Check that something can be written now, and leave nothing behind: a write that cannot take place."""
        if self._objects.create(FORMAT_NAME, self._format) is Written.LOST:
            raise StorageError(f"the store at {self._location} does not answer")

    @property
    def checked_at(self) -> datetime | None:
        """Return when the server was last tried, None where nobody noted it."""
        try:
            return parse_iso(json.loads(self._format)["checked_at"])
        except (ValueError, KeyError, TypeError):
            return None

    def server_time(self) -> datetime | None:
        """Return what time it is on the server, or None if it does not say."""
        return self._objects.server_time()

    def note_check(self, quirks: Quirks) -> None:
        """Note that the server has just passed its check, and how it differs; nothing happens if somebody else did."""
        found = self._objects.read(FORMAT_NAME)
        if found is None:
            return
        body = json.loads(found.data) | quirks.to_json() | {"checked_at": iso(utc_now())}
        if self._objects.replace(FORMAT_NAME, (json.dumps(body) + "\n").encode(), etag=found.etag) is Written.YES:
            self._format, _ = _read_format(self._objects)

    # -- blobs ---------------------------------------------------------------------------------------------
    def put_file(self, path: Path, *, progress: Progress = no_progress) -> BlobInfo:
        """Store a regular file; storing the same bytes again is a no-op."""
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

    # -- upkeep --------------------------------------------------------------------------------------------
    def count_leftovers(self) -> int:
        """Return how many unfinished uploads have been left alone for long."""
        return len(list_abandoned(self._objects))

    def sweep_leftovers(self) -> int:
        """Remove the unfinished uploads that have been left alone for long; return how many."""
        abandoned = list_abandoned(self._objects)
        for upload in abandoned:
            abort_upload(self._objects, upload)
        return len(abandoned)

    # -- releases ------------------------------------------------------------------------------------------
    def publish_release(self, manifest: bytes, files: Sequence[StoredFile]) -> str:
        """
        Keep a manifest whose blobs are all there and whole; return its digest.

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
        """Return None: there are no local files. Raises NotFoundError where the release is not there."""
        self._releases.read_manifest(release)
        return None

    def iterate_releases(self) -> Iterator[str]:
        """Yield the digest of every published release."""
        return self._releases.iterate()

    # -- collection ----------------------------------------------------------------------------------------
    def delete_blob(self, digest: str) -> None:
        """Remove a blob."""
        self._blobs.delete(digest)

    def delete_release(self, release: str) -> None:
        """Do nothing: a release has its manifest, which stays, and its blobs, which are marked for themselves."""
        check_digest(release)

    def measure_release(self, release: str) -> int:
        """Return 0: all that a release takes are its blobs."""
        check_digest(release)
        return 0

    # -- pointers ------------------------------------------------------------------------------------------
    def exclusive(self, model: str, channel: str, *, timeout_s: float) -> AbstractContextManager[None]:
        """Hold the channel against other commands of this user on this host; raise `BusyError` after `timeout_s`."""
        return self._channels.exclusive(model, channel, timeout_s=timeout_s)

    def read_pointer(self, model: str, channel: str) -> Pointer | None:
        """Return the verified pointer, read once, or None where the channel never had one."""
        return self._channels.read_pointer(model, channel)

    def poll_pointer(self, model: str, channel: str, *, mark: str) -> News | None:
        """Return the verified pointer with its ETag, None where it still has this one; NotFoundError without one."""
        return self._channels.poll_pointer(model, channel, mark=mark)

    def swap_pointer(self, new: Pointer, *, expected: Pointer | None) -> None:
        """
        Move the pointer from `expected` to `new`: history first, then one compare-and-swap.

        Raises:
            ActivationConflictError: The pointer is not `expected`; nothing changed.
            ActivationUnknownError: It may have moved, or may yet: the answers were lost.
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


def _new_format(quirks: Quirks) -> bytes:
    body = {
        "format": FORMAT,
        "uuid": os.urandom(16).hex(),
        **quirks.to_json(),
        "checked_at": iso(utc_now()),
    }
    return (json.dumps(body) + "\n").encode()


def _read_format(objects: S3Objects) -> tuple[bytes, Quirks]:
    found = objects.read(FORMAT_NAME)
    location = objects.client.location
    if found is None:
        raise StoreAbsentError(
            f"there is no store at {location}",
            hint="Correct bucket and prefix; a new registry is made with `modelreg init --store URL`.",
        )
    try:
        body = json.loads(found.data)
        number, quirks = body["format"], Quirks.from_json(body)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise StoreFormatError(
            f"{objects.where(FORMAT_NAME)} cannot be read: the store is damaged, or not one of ours"
        ) from None
    if number != FORMAT:
        raise StorageError(
            f"the store at {location} has format {number!r}, this modelreg knows {FORMAT}",
            hint="It was made by a newer modelreg; upgrade this one.",
        )
    return found.data, quirks
