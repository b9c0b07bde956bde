"""The objects of a store in S3: read, written once, replaced under a condition, listed.

Nothing is ever overwritten blindly. All paths are relative to the prefix of one location.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, TypeVar

from modelreg.registry.errors import NotFoundError, StorageError
from modelreg.registry.storage.s3_client import S3Client
from modelreg.registry.storage.s3_failures import S3Failure, Trouble, failure_of
from modelreg.registry.storage.s3_protocol import Written

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Some bytes of an object, with the size and the ETag of the whole."""

    data: bytes
    total_bytes: int
    etag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What a server says of an object. `sha256` is base64, `…-PARTS` for one that came in parts, or empty."""

    size_bytes: int
    etag: str
    sha256: str


class S3Objects:
    """Objects behind one client.

    Args:
        client: Sends the requests.
        bare_etags: Whether the server wants ETags without their quotes in conditions (see `modelreg store check`).
        checks_parts: Whether it refuses a part that does not have the SHA-256 which is stated.
    """

    def __init__(self, client: S3Client, *, bare_etags: bool = False, checks_parts: bool = False) -> None:
        self.client = client
        self.checks_parts = checks_parts
        self._bare_etags = bare_etags

    def where(self, path: str) -> str:
        """Return how a path is named to a person."""
        return self.client.location.where(path)

    # -- reading -------------------------------------------------------------------------------------------
    def read(self, path: str) -> Part | None:
        """Return a small object from one request, or None if it is not there."""
        return self._told(lambda: self._answered(lambda: self._get(path)))

    def read_if_changed(self, path: str, *, etag: str) -> Part | None:
        """Return a small object, or None if it still has that ETag (told in a few bytes); raises NotFoundError."""
        try:
            found = self._answered(lambda: self._get(path, IfNoneMatch=etag))
        except S3Failure as failure:
            if failure.trouble is Trouble.UNCHANGED:
                return None
            raise failure.told() from failure
        if found is None:
            raise NotFoundError(f"{self.where(path)} is not there")
        return found

    def read_part(self, path: str, *, start: int, size_bytes: int, etag: str | None) -> Part | None:
        """
        Return a piece of an object, asked for again if it comes cut short; None if the object is not there.

        Raises:
            StorageError: The object is no longer the one with `etag`.
        """
        condition = {} if etag is None else {"IfMatch": etag}
        span = f"bytes={start}-{start + size_bytes - 1}"
        try:
            return self._answered(lambda: self._get(path, Range=span, **condition))
        except S3Failure as failure:
            if failure.trouble is Trouble.EMPTY_RANGE:
                return Part(data=b"", total_bytes=start, etag=etag or "")
            if failure.trouble is Trouble.REFUSED:
                raise StorageError(
                    f"{self.where(path)} was replaced while it was read", hint="Run the command again."
                ) from None
            raise failure.told() from failure

    def _get(self, path: str, **conditions: Any) -> Part:
        answer = self.client.send("get_object", path, **conditions)
        body = answer["Body"]  # its own context manager gives the raw stream, whose length nobody checks
        try:
            data: bytes = body.read()
        except Exception as error:
            raise failure_of(error, where=self.where(path)) from error
        finally:
            body.close()
        total = str(answer.get("ContentRange", "")).rpartition("/")[2]
        return Part(data=data, total_bytes=int(total) if total.isdigit() else len(data), etag=answer.get("ETag", ""))

    def head(self, path: str) -> Head | None:
        """Return what the server says of an object, or None if it is not there."""
        answer = self._told(
            lambda: self._answered(lambda: self.client.send("head_object", path, ChecksumMode="ENABLED"))
        )
        if answer is None:
            return None
        return Head(
            size_bytes=answer["ContentLength"], etag=answer.get("ETag", ""), sha256=answer.get("ChecksumSHA256", "")
        )

    def _answered(self, work: Callable[[], T]) -> T | None:
        """Return what `work` answers, repeated where that helps, or None for what is not there."""
        try:
            return self.client.repeat(work)
        except S3Failure as failure:
            if failure.trouble is Trouble.ABSENT:
                return None
            raise

    def _told(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except S3Failure as failure:
            raise failure.told() from failure

    # -- writing -------------------------------------------------------------------------------------------
    def create(self, path: str, data: bytes) -> Written:
        """Write a new object in one request; REFUSED: there is one."""
        return self._write(path, data, {"IfNoneMatch": "*"})

    def replace(self, path: str, data: bytes, *, etag: str) -> Written:
        """Write over an object in one request; REFUSED: it no longer has that ETag, or is gone."""
        return self._write(path, data, {"IfMatch": etag.strip('"') if self._bare_etags else etag})

    def _write(self, path: str, data: bytes, condition: dict[str, str]) -> Written:
        try:
            self.client.send(
                "put_object",
                path,
                Body=data,
                ContentType="application/octet-stream",
                ChecksumSHA256=sha256_base64(data),
                **condition,
                **self.client.encryption(),
            )
        except S3Failure as failure:
            if failure.trouble in (Trouble.REFUSED, Trouble.ABSENT, Trouble.BUSY):
                return Written.REFUSED
            if failure.trouble is Trouble.AWAY:
                return Written.LOST
            raise failure.told() from failure
        return Written.YES

    def create_surely(self, path: str, data: bytes) -> Written:
        """Write a new object whose bytes its path decides, asked again until it is answered; never LOST."""
        for attempt in range(self.client.limits.tries):
            written = self.create(path, data)
            if written is not Written.LOST:
                return written
            self.client.pause(attempt)
        raise StorageError(
            f"store key {self.where(path)}: the server does not answer",
            hint="Check the network, the endpoint and the server; what was active stays active.",
        )

    def delete(self, path: str) -> None:
        """Remove an object that nobody needs."""
        with suppress(S3Failure):
            self.client.send("delete_object", path)

    # -- listing -------------------------------------------------------------------------------------------
    def list_files(self, folder: str) -> Iterator[tuple[str, int]]:
        """Yield (name, size in bytes) of everything below `folder/`, names relative to it."""
        cut = len(self.client.location.key(f"{folder}/"))
        for page in self._pages(f"{folder}/"):
            for entry in page.get("Contents", ()):
                yield entry["Key"][cut:], entry["Size"]

    def list_folders(self, folder: str) -> Iterator[str]:
        """Yield the names of the folders in `folder/`."""
        cut = len(self.client.location.key(f"{folder}/"))
        for page in self._pages(f"{folder}/", Delimiter="/"):
            for entry in page.get("CommonPrefixes", ()):
                yield entry["Prefix"][cut:].rstrip("/")

    def _pages(self, prefix: str, **options: Any) -> Iterator[dict[str, Any]]:
        token: dict[str, str] = {}
        while True:
            page: dict[str, Any] = self._told(
                lambda: self.client.repeat(
                    lambda: self.client.send("list_objects_v2", prefix, **options, **token)  # noqa: B023 - used at once
                )
            )
            yield page
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def server_time(self) -> datetime | None:
        """Return what time it is on the server, or None if it does not say."""
        from email.utils import parsedate_to_datetime  # noqa: PLC0415 - upkeep alone needs it

        answer = self._told(lambda: self.client.repeat(lambda: self.client.send("list_objects_v2", "", MaxKeys=1)))
        said = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        return None if said is None else parsedate_to_datetime(said).astimezone(timezone.utc)


def sha256_base64(data: bytes | memoryview) -> str:
    """Return the SHA-256 of `data` as S3 writes it."""
    return to_base64(hashlib.sha256(data).digest())


def to_base64(digest: bytes) -> str:
    """Return a digest as S3 writes it."""
    return base64.b64encode(digest).decode()
