"""Does a server keep what the protocol relies on? Asked before a store is made there, and whenever somebody wonders.

A server that ignores a condition answers 200 and overwrites: two promotions at once would both succeed and one would be
lost without a word. So nothing is taken from its name or documents; it is tried, in a folder of its own that is
removed afterwards.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from modelreg.registry.errors import ModelregError, StorageError
from modelreg.registry.storage.interface import Trying, not_told
from modelreg.registry.storage.s3 import Quirks
from modelreg.registry.storage.s3_client import S3Client
from modelreg.registry.storage.s3_failures import S3Failure, Trouble
from modelreg.registry.storage.s3_limits import S3Limits
from modelreg.registry.storage.s3_location import S3Location
from modelreg.registry.storage.s3_multipart import send_surely
from modelreg.registry.storage.s3_objects import S3Objects, sha256_base64
from modelreg.registry.storage.s3_protocol import Written

_THREADS, _INCREMENTS, _RACES, _READS = 8, 5, 5, 50
_LOST = 10
_BODY_BYTES = 1 << 20
_FIRST_PART_BYTES = 5 << 20
_LONGEST_SKEW_S = 60.0
_WRONG_PART, _REFUSED = "a part with a wrong SHA-256", "is refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One thing that was tried. `passed` is None for what is only noted."""

    name: str
    passed: bool | None
    found: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCheck:
    """What a server was found to do."""

    results: tuple[CheckResult, ...]
    quirks: Quirks

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        """Return what a store cannot do without."""
        return tuple(result for result in self.results if result.passed is False)

    def require_passed(self, location: S3Location) -> None:
        """
        Check that a store can be trusted there.

        Raises:
            StorageError: It cannot; the first reason is named.
        """
        if self.failed:
            first = self.failed[0]
            raise StorageError(
                f"{location} cannot hold a store: {first.name}: {first.found}",
                hint="Two promotions at once could both succeed there and one be lost: choose a server that keeps"
                " conditional writes (`modelreg store check URL` shows all that was tried).",
            )


def check_server(location: S3Location, *, limits: S3Limits | None = None, trying: Trying = not_told) -> StoreCheck:
    """
    Try what a store needs, below `check/` of the location, and remove it again; `trying` is told what comes next.

    Raises:
        StorageError: The bucket cannot be reached, read or written.
    """
    client = S3Client(location, limits or S3Limits())
    folder = f"check/{os.urandom(8).hex()}"
    objects = S3Objects(client)
    objects.read(folder)  # a bucket that is not there is told by a read; some servers make one for a write
    try:
        bare, form = _find_etag_form(_Trial(objects, folder))
        results = tuple(_Trial(S3Objects(client, bare_etags=bare), folder).run(trying))
    except _NoAnswerError:
        raise StorageError(f"{location} does not answer", hint="Check the network and the server.") from None
    finally:
        _Trial(objects, folder).remove_all()
    checks_parts = any(result.name == _WRONG_PART and result.found == _REFUSED for result in results)
    quirks = Quirks(bare_etags=bare, checks_parts=checks_parts)
    return StoreCheck(results=results if form is None else (form, *results), quirks=quirks)


def _find_etag_form(trial: _Trial) -> tuple[bool, CheckResult | None]:
    """Return whether ETags must be given without quotes: some servers never match a quoted one."""
    objects, path = trial.objects, trial.path("etag")
    trial.write(objects.create(path, b"1"))
    etag = trial.etag_of(path)
    if trial.write(objects.replace(path, b"2", etag=etag)) is Written.YES:
        return False, None
    bare = S3Objects(objects.client, bare_etags=True)
    if trial.write(bare.replace(path, b"2", etag=etag)) is Written.YES:
        return True, CheckResult(name="ETags in conditions", passed=None, found="without quotes; noted in the store")
    return False, None


class _Trial:
    def __init__(self, objects: S3Objects, folder: str) -> None:
        self.objects = objects
        self._folder = folder

    def path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def run(self, trying: Trying) -> Iterator[CheckResult]:
        tries: dict[str, Callable[[], str]] = {
            "create only what is absent": self._create,
            "replace only what has the ETag": self._replace,
            f"{_THREADS} writers count to {_THREADS * _INCREMENTS}": self._count,
            f"{_THREADS} writers create one object": self._race,
            "bytes come back as they were sent": self._round_trip,
            "an object in two parts": self._parts,
            "a read after a write sees it": self._read_after_write,
            "a listing after a write shows it": self._list_after_write,
        }
        for name, attempt in tries.items():
            trying(name)
            problem = attempt()
            yield CheckResult(name=name, passed=not problem, found=problem or "yes")
        yield CheckResult(name="an upload with a wrong SHA-256", passed=None, found=self._wrong_checksum())
        yield CheckResult(name=_WRONG_PART, passed=None, found=self._wrong_part())
        yield CheckResult(name="clock", passed=None, found=self._clock())

    # -- conditions ----------------------------------------------------------------------------------------
    def _create(self) -> str:
        path = self.path("create")
        if self.write(self.objects.create(path, b"first")) is not Written.YES:
            return "an object that was not there could not be created"
        if self.write(self.objects.create(path, b"second")) is Written.YES:
            return "If-None-Match was ignored"
        return "" if self._content(path) == b"first" else "a refused write took place"

    def _replace(self) -> str:
        path = self.path("replace")
        self.write(self.objects.create(path, b"first"))
        first = self.etag_of(path)
        if self.write(self.objects.replace(path, b"wrong", etag='"0123456789abcdef0123456789abcdef"')) is Written.YES:
            return "If-Match was ignored"
        if self._content(path) != b"first":
            return "a refused write took place"
        if self.write(self.objects.replace(path, b"second", etag=first)) is not Written.YES:
            return "the right ETag was refused, with and without quotes"
        if self.write(self.objects.replace(path, b"stale", etag=first)) is Written.YES:
            return "an ETag that is no more was accepted"
        if self.write(self.objects.replace(self.path("absent"), b"x", etag=first)) is Written.YES:
            return "an object that is not there was replaced"
        return "" if self._content(path) == b"second" else "a refused write took place"

    def _count(self) -> str:
        path = self.path("count")
        self.write(self.objects.create(path, b"0 start"))

        def increment(number: int) -> None:
            for turn in range(_INCREMENTS):
                self._add_one(path, f"{number}.{turn}")

        _together(increment)
        counted = _read_count(self._content(path))
        wanted = _THREADS * _INCREMENTS
        return "" if counted == wanted else f"they came to {counted}: updates were lost"

    def _add_one(self, path: str, nonce: str) -> None:
        """Count one on; the body keeps every nonce, so that a lost answer is settled by reading, as a swap's is.

        Ceph answers some of those who lose a race with 500.
        """
        lost = 0
        while True:
            found = self._require(path)
            if nonce in found.data.decode().split():
                return
            count, nonces = _read_count(found.data), found.data.decode().partition(" ")[2]
            body = f"{count + 1} {nonces} {nonce}"
            written = self.objects.replace(path, body.encode(), etag=found.etag)
            if written is Written.YES:
                return
            if written is Written.LOST:
                lost += 1
                if lost == _LOST:
                    raise _NoAnswerError
                self.objects.client.pause(lost)

    def _race(self) -> str:
        for race in range(_RACES):
            winners: list[int] = []
            path = self.path(f"race-{race}")

            def create(number: int, path: str = path, winners: list[int] = winners) -> None:
                written = self.objects.create(path, str(number).encode())
                if written is Written.YES or (written is Written.LOST and self._content(path) == str(number).encode()):
                    winners.append(number)

            _together(create)
            if len(winners) != 1 or self._content(path) != str(winners[0]).encode():
                return f"{len(winners)} of them were told that they did"
        return ""

    # -- bytes ---------------------------------------------------------------------------------------------
    def _round_trip(self) -> str:
        path, body = self.path("bytes"), os.urandom(_BODY_BYTES)
        self.write(self.objects.create(path, body))
        if self._content(path) != body:
            return "they differ: perhaps the server keeps the framing of a checksum"
        half = self.objects.read_part(path, start=_BODY_BYTES // 2, size_bytes=_BODY_BYTES, etag=None)
        if half is None or half.data != body[_BODY_BYTES // 2 :] or half.total_bytes != _BODY_BYTES:
            return "a piece of them differs: byte ranges do not work"
        return ""

    def _parts(self) -> str:
        path, body = self.path("parts"), os.urandom(_FIRST_PART_BYTES + 1)
        pieces = (body[:_FIRST_PART_BYTES], body[_FIRST_PART_BYTES:])
        try:
            upload = send_surely(self.objects, "create_multipart_upload", path, ChecksumAlgorithm="SHA256")["UploadId"]
            parts = []
            for number, piece in enumerate(pieces, start=1):
                sent: dict[str, Any] = {"PartNumber": number, "ChecksumSHA256": sha256_base64(piece)}
                answer = send_surely(self.objects, "upload_part", path, UploadId=upload, Body=piece, **sent)
                parts.append({**sent, "ETag": answer["ETag"]})
            send_surely(
                self.objects, "complete_multipart_upload", path, UploadId=upload, MultipartUpload={"Parts": parts}
            )
        except StorageError as error:
            return str(error)
        return "" if self._content(path) == body else "it differs from what was sent"

    def _read_after_write(self) -> str:
        path = self.path("fresh")
        self.write(self.objects.create(path, b"0"))
        for number in range(1, _READS + 1):
            body = str(number).encode()
            self.write(self.objects.replace(path, body, etag=self.etag_of(path)))
            if self._content(path) != body:
                return "an older object was read: something caches on the way"
        return ""

    def _list_after_write(self) -> str:
        self.write(self.objects.create(self.path("listed/a"), b"a"))
        names = [name for name, _ in self.objects.list_files(self.path("listed"))]
        folders = list(self.objects.list_folders(self._folder))
        return "" if names == ["a"] and "listed" in folders else f"it shows {names} and {folders}"

    # -- what is only noted --------------------------------------------------------------------------------
    def _wrong_checksum(self) -> str:
        try:
            self.objects.client.send(
                "put_object", self.path("wrong"), Body=b"right", ChecksumSHA256=sha256_base64(b"wrong")
            )
        except S3Failure as failure:
            return _REFUSED if failure.trouble is Trouble.FATAL else f"unclear: {failure.code}"
        return "is taken; modelreg reads what it stores there instead"

    def _wrong_part(self) -> str:
        path = self.path("wrong-part")
        try:
            upload = send_surely(self.objects, "create_multipart_upload", path, ChecksumAlgorithm="SHA256")["UploadId"]
        except StorageError as error:
            return f"unclear: {error}"
        wrong = sha256_base64(b"wrong")
        try:
            self.objects.client.send(
                "upload_part", path, UploadId=upload, PartNumber=1, Body=b"right", ChecksumSHA256=wrong
            )
        except S3Failure as failure:
            return _REFUSED if failure.trouble is Trouble.FATAL else f"unclear: {failure.code}"
        finally:
            with suppress(S3Failure):
                self.objects.client.send("abort_multipart_upload", path, UploadId=upload)
        return "is taken; modelreg hashes what it sends instead"

    def _clock(self) -> str:
        there = self.objects.server_time()
        if there is None:
            return "the server does not tell the time"
        skew_s = (datetime.now(timezone.utc) - there).total_seconds()
        if abs(skew_s) <= _LONGEST_SKEW_S:
            return "agrees with the server's"
        return f"this machine's is {abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} the server's"

    # -- parts of the above --------------------------------------------------------------------------------
    def write(self, written: Written) -> Written:
        """Return what came of a write; raises _NoAnswerError where nobody knows."""
        if written is Written.LOST:
            raise _NoAnswerError
        return written

    def etag_of(self, path: str) -> str:
        return str(self._require(path).etag)

    def _content(self, path: str) -> bytes:
        return bytes(self._require(path).data)

    def _require(self, path: str) -> Any:
        found = self.objects.read(path)
        if found is None:
            raise StorageError(f"{self.objects.where(path)} was written and is not there")
        return found

    def remove_all(self) -> None:
        """Remove what was written, as far as that is allowed."""
        try:
            for name, _ in list(self.objects.list_files(self._folder)):
                self.objects.delete(self.path(name))
        except ModelregError:
            return


class _NoAnswerError(Exception):
    """A write was not answered, so nothing can be said of the server."""


def _together(work: Callable[[int], None]) -> None:
    """Run `work` in threads that start at the same moment; raise the first error of any."""
    start, errors = threading.Barrier(_THREADS), []

    def run(number: int) -> None:
        start.wait()
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _read_count(data: bytes) -> int:
    """Return the number that was written first into an object; whoever answers anything else is no store."""
    first = data.split(maxsplit=1)[:1]
    if not first or not first[0].isdigit():
        raise StorageError(
            "the server answers something else than what was written to it",
            hint="Is the endpoint that of an S3 server?",
        )
    return int(first[0])
