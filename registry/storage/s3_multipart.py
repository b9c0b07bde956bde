"""Uploads in parts: several under way at once, each with its own checksum, taken up again where one was cut short.

The key is the digest of the whole, so whoever uploads to it sends the same parts; an upload may be shared, and its end
may come from anybody. What we sent is hashed while it is read, and compared before the parts become an object.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from modelreg.registry.errors import SourceError, StorageError
from modelreg.registry.storage.interface import Progress
from modelreg.registry.storage.offered import OfferedFile
from modelreg.registry.storage.s3_failures import S3Failure, Trouble
from modelreg.registry.storage.s3_objects import S3Objects, sha256_base64, to_base64
from modelreg.registry.storage.s3_parallel import run_ahead
from modelreg.registry.storage.s3_parts import FilledPart, read_parts

_RESTARTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SentPart:
    """A part that the server has. `sha256` is base64, of the bytes that we read."""

    number: int
    etag: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedUpload:
    """An upload that somebody began."""

    path: str
    upload_id: str
    begun: datetime


class UploadGoneError(Exception):
    """Somebody finished or removed the upload that we were adding to."""


def upload_file(
    objects: S3Objects,
    path: str,
    source: OfferedFile,
    *,
    digest: str,
    parts: Sequence[str],
    is_there: Callable[[], bool],
    progress: Progress,
) -> None:
    """
    Upload a file to `path` in parts.

    Args:
        objects: The store.
        path: The key that belongs to `digest`.
        source: The file, read from its start.
        digest: The SHA-256 of the whole, in hex, read a moment ago.
        parts: The SHA-256 of each part, in base64, from the same reading.
        is_there: Whether the object is there and sound; asked when somebody else finished the upload.
        progress: Told of each part.

    Raises:
        SourceError: The file is no longer what `digest` says; nothing was stored.
        StorageError: The store could not be written. What was sent stays, and the next try goes on from it.
    """
    for attempt in range(_RESTARTS):
        source.rewind()
        try:
            _Upload(objects, path, source, progress).run(digest, parts)
        except UploadGoneError:
            if is_there():
                progress(source.size_bytes)
                return
            objects.client.pause(attempt)
        else:
            return
    raise StorageError(f"{objects.where(path)}: somebody keeps removing the upload", hint="Run the command again.")


class _ChangedError(Exception):
    """The bytes of a part are no longer those that were hashed."""


def _changed() -> SourceError:
    return SourceError("the file changed while it was uploaded", hint="Wait until it is written, and try again.")


def _ignore(_part: memoryview) -> None:
    """Let a part pass."""


class _Upload:
    def __init__(self, objects: S3Objects, path: str, source: OfferedFile, progress: Progress) -> None:
        self._objects = objects
        self._client = objects.client
        self._path = path
        self._source = source
        self._progress = progress
        self._part_bytes = self._client.limits.part_size(source.size_bytes)

    def run(self, digest: str, parts: Sequence[str]) -> None:
        upload_id, have = self._resume()
        # What is sent has to be what was hashed: a server that checks parts says so, for others it is hashed again.
        hasher = None if self._objects.checks_parts else hashlib.sha256()
        read = read_parts(self._source, part_bytes=self._part_bytes, see=_ignore if hasher is None else hasher.update)
        jobs = (
            partial(self._send, upload_id, number, part, sha256, have.get(number))
            for number, (part, sha256) in enumerate(zip(read, parts, strict=False), start=1)
        )
        sent = []
        try:
            for part in run_ahead(jobs, workers=self._client.limits.workers):
                sent.append(part)
                self._progress(part.size_bytes)
        except _ChangedError:
            self._abort(upload_id)
            raise _changed() from None
        if len(sent) != len(parts) or (hasher is not None and hasher.hexdigest() != digest):
            self._abort(upload_id)
            raise _changed()
        self._source.require_unchanged()
        self._complete(upload_id, sent)

    def _resume(self) -> tuple[str, dict[int, dict[str, Any]]]:
        """Return the newest upload to this key with the parts that it has, or a new one."""
        mine: list[UnfinishedUpload] = []
        with suppress(StorageError):  # not allowed, or not known to the server: then nothing can be taken up
            mine = [upload for upload in list_uploads(self._objects, self._path) if upload.path == self._path]
        if mine:
            newest = max(mine, key=lambda upload: upload.begun)
            with suppress(UploadGoneError):
                return newest.upload_id, {part["PartNumber"]: part for part in list_parts(self._objects, newest)}
        answer = self._send_surely(
            "create_multipart_upload",
            ContentType="application/octet-stream",
            ChecksumAlgorithm="SHA256",
            **self._client.encryption(),
        )
        return answer["UploadId"], {}

    def _send(
        self, upload_id: str, number: int, part: FilledPart, sha256: str, have: dict[str, Any] | None
    ) -> SentPart:
        try:
            if have is not None and _is_same(have, part.data, sha256):
                etag = have["ETag"]
            else:
                etag = self._send_part(upload_id, number, part, sha256)
            return SentPart(number=number, etag=etag, sha256=sha256, size_bytes=len(part.data))
        finally:
            part.give_back()

    def _send_part(self, upload_id: str, number: int, part: FilledPart, sha256: str) -> str:
        try:
            answer = self._send_surely(
                "upload_part", UploadId=upload_id, PartNumber=number, Body=part.body(), ChecksumSHA256=sha256
            )
        except StorageError:
            if sha256_base64(part.data) != sha256:
                raise _ChangedError from None
            raise
        return str(answer["ETag"])

    def _complete(self, upload_id: str, sent: list[SentPart]) -> None:
        parts = [{"PartNumber": part.number, "ETag": part.etag, "ChecksumSHA256": part.sha256} for part in sent]
        self._send_surely("complete_multipart_upload", UploadId=upload_id, MultipartUpload={"Parts": parts})

    def _abort(self, upload_id: str) -> None:
        with suppress(StorageError, UploadGoneError):
            self._send_surely("abort_multipart_upload", UploadId=upload_id)

    def _send_surely(self, operation: str, **parameters: Any) -> dict[str, Any]:
        return send_surely(self._objects, operation, self._path, **parameters)


def send_surely(objects: S3Objects, operation: str, path: str, **parameters: Any) -> dict[str, Any]:
    """
    Send a request that may be repeated.

    Raises:
        UploadGoneError: The upload it belongs to is no more.
        StorageError: It was refused, or never answered.
    """
    try:
        return objects.client.repeat(lambda: objects.client.send(operation, path, **parameters))
    except S3Failure as failure:
        if failure.trouble is Trouble.NO_UPLOAD:
            raise UploadGoneError from failure
        raise failure.told() from failure


def list_uploads(objects: S3Objects, prefix: str) -> Iterator[UnfinishedUpload]:
    """Yield the unfinished uploads to keys that begin with `prefix`."""
    cut = len(objects.client.location.key(""))
    markers: dict[str, str] = {}
    while True:
        page = send_surely(objects, "list_multipart_uploads", prefix, **markers)
        for entry in page.get("Uploads", ()):
            yield UnfinishedUpload(path=entry["Key"][cut:], upload_id=entry["UploadId"], begun=entry["Initiated"])
        names = ("KeyMarker", "UploadIdMarker")
        markers = {name: page[f"Next{name}"] for name in names if page.get(f"Next{name}")}
        if not page.get("IsTruncated") or not markers:  # SeaweedFS calls a last page truncated that is just full
            return


def list_parts(objects: S3Objects, upload: UnfinishedUpload) -> list[dict[str, Any]]:
    """Return the parts of an upload; raises UploadGoneError where it is no more."""
    parts: list[dict[str, Any]] = []
    marker: dict[str, int] = {}
    while True:
        page = send_surely(objects, "list_parts", upload.path, UploadId=upload.upload_id, **marker)
        parts += page.get("Parts", ())
        if not page.get("IsTruncated"):
            return parts
        marker = {"PartNumberMarker": page["NextPartNumberMarker"]}


def list_abandoned(objects: S3Objects) -> list[UnfinishedUpload]:
    """Return the uploads to which nobody has added anything for long, by the server's clock."""
    uploads = list(list_uploads(objects, ""))
    now = objects.server_time() if uploads else None
    if now is None:
        return []
    longest = timedelta(seconds=objects.client.limits.abandoned_after_s)
    return [upload for upload in uploads if now - _last_touched(objects, upload) >= longest]


def _last_touched(objects: S3Objects, upload: UnfinishedUpload) -> datetime:
    with suppress(UploadGoneError):
        touched: datetime = max([upload.begun, *(part["LastModified"] for part in list_parts(objects, upload))])
        return touched
    return upload.begun


def abort_upload(objects: S3Objects, upload: UnfinishedUpload) -> None:
    """Remove an unfinished upload with its parts."""
    with suppress(UploadGoneError):
        send_surely(objects, "abort_multipart_upload", upload.path, UploadId=upload.upload_id)


def composite_sha256(parts: Sequence[str]) -> str:
    """Return what S3 tells as the SHA-256 of an object that came in parts, from theirs in base64."""
    import base64  # noqa: PLC0415 - large files alone

    joined = b"".join(base64.b64decode(part) for part in parts)
    return f"{to_base64(hashlib.sha256(joined).digest())}-{len(parts)}"


def _is_same(have: dict[str, Any], data: memoryview, sha256: str) -> bool:
    """Return whether the server says that a part has these very bytes; without a checksum an MD5 may say it."""
    if have["Size"] != len(data):
        return False
    if said := have.get("ChecksumSHA256"):
        return bool(said == sha256)
    return bool(have["ETag"].strip('"') == hashlib.md5(data, usedforsecurity=False).hexdigest())
