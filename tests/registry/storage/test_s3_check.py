"""What is found out about a server before a store is made there, on one that can be trusted and on one that cannot."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from modelreg.registry.errors import StorageError
from modelreg.registry.storage import s3_check
from modelreg.registry.storage.open import create_storage
from modelreg.registry.storage.s3 import Quirks
from modelreg.registry.storage.s3_check import check_server
from modelreg.registry.storage.s3_client import S3Client
from modelreg.registry.storage.s3_failures import S3Failure
from modelreg.registry.storage.s3_objects import Part, S3Objects
from modelreg.registry.storage.s3_protocol import Written
from modelreg_testing.s3_server import BUCKET, LIMITS, S3Server, localbucket, reopened
from modelreg_testing.storage import chain_of, published


@pytest.fixture
def liar(s3_server: S3Server, tmp_path: Path) -> Iterator[S3Server]:
    """Run a server that ignores If-Match; the credentials are those of the other one."""
    with localbucket(tmp_path) as server:
        yield server


def found_by(server: S3Server) -> dict[str, tuple[bool | None, str]]:
    check = check_server(server.location(), limits=LIMITS)
    return {result.name: (result.passed, result.found) for result in check.results}


@pytest.mark.slow
def test_a_server_that_keeps_conditions_passes_and_nothing_is_left(s3_server: S3Server) -> None:
    location = s3_server.location()
    check = check_server(location, limits=LIMITS)
    assert check.failed == ()
    assert sum(result.passed is True for result in check.results) == 8
    assert check.quirks == Quirks(checks_parts=True)
    check.require_passed(location)
    assert "Contents" not in s3_server.boto.list_objects_v2(Bucket=BUCKET, Prefix=location.prefix)


@pytest.mark.slow
def test_a_server_that_ignores_conditions_is_refused_with_the_reason(liar: S3Server) -> None:
    location = liar.location()
    check = check_server(location, limits=LIMITS)
    failed = {result.name: result.found for result in check.failed}
    assert failed["replace only what has the ETag"] == "If-Match was ignored"
    assert "updates were lost" in failed["3 writers count to 9"]
    with pytest.raises(StorageError, match="If-Match was ignored") as caught:
        create_storage(str(location))
    assert "conditional writes" in caught.value.hint()
    assert "Contents" not in liar.boto.list_objects_v2(Bucket=BUCKET, Prefix=location.prefix)


@pytest.mark.slow
def test_a_server_that_ignores_checksums_is_noted_and_not_refused(liar: S3Server) -> None:
    passed, found = found_by(liar)["an upload with a wrong SHA-256"]
    assert passed is None
    assert "reads what it stores" in found


@pytest.mark.slow
def test_a_server_that_wants_etags_without_quotes_is_noted_in_the_store(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = S3Objects._write

    def particular(self: S3Objects, path: str, data: bytes, condition: dict[str, str]) -> Written:
        if condition.get("IfMatch", "").startswith('"'):
            return Written.REFUSED
        return keep(self, path, data, condition)

    monkeypatch.setattr(S3Objects, "_write", particular)
    store = create_storage(str(s3_server.location()))
    chain_of(store, length=2, release=published(store))
    again = reopened(store)  # type: ignore[arg-type]
    chain = again.read_pointer("lenet", "production")
    assert chain is not None
    assert chain.generation == 2
    form = check_server(s3_server.location(), limits=LIMITS).results[0]
    assert (form.name, form.passed) == ("ETags in conditions", None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "answer", "found"),
    [
        ("create", Written.REFUSED, "could not be created"),
        ("create", Written.YES, "If-None-Match was ignored"),
        ("replace", Written.REFUSED, "with and without quotes"),
    ],
)
@pytest.mark.slow
def test_an_answer_that_is_always_the_same_is_seen_through(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, name: str, answer: Written, found: str
) -> None:
    keep = getattr(S3Objects, name)

    def lie(self: S3Objects, path: str, *rest: object, **more: object) -> Written:
        done = keep(self, path, *rest, **more)
        if f"/{name}" in path:
            return answer
        assert isinstance(done, Written)
        return done

    monkeypatch.setattr(S3Objects, name, lie)
    failed = [result.found for result in check_server(s3_server.location(), limits=LIMITS).failed]
    assert any(found in reason for reason in failed)


def test_a_server_that_does_not_answer_is_no_verdict(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = iter([Written.YES] + [Written.LOST] * 99)
    monkeypatch.setattr(S3Objects, "create", lambda *_arguments: next(lost))
    with pytest.raises(StorageError):
        check_server(s3_server.location(), limits=LIMITS)


def test_a_server_that_is_not_there_is_named(s3_server: S3Server) -> None:
    location = replace(s3_server.location(), endpoint_url="http://127.0.0.1:9")
    with pytest.raises(StorageError, match=r"127\.0\.0\.1:9") as caught:
        check_server(location, limits=replace(LIMITS, tries=2))
    assert "network" in caught.value.hint()


def test_a_bucket_that_is_not_there_is_named(s3_server: S3Server) -> None:
    with pytest.raises(StorageError, match=r"^there is no bucket 'nowhere'$") as caught:
        check_server(replace(s3_server.location(), bucket="nowhere"), limits=LIMITS)
    assert "Create the bucket" in caught.value.hint()


@pytest.mark.slow
@pytest.mark.parametrize(("hours", "word"), [(2, "behind"), (-2, "ahead of"), (None, "does not tell")])
def test_a_clock_that_is_off_is_noted(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, hours: int | None, word: str
) -> None:
    there = None if hours is None else datetime.now(timezone.utc) + timedelta(hours=hours)
    monkeypatch.setattr(S3Objects, "server_time", lambda _self: there)
    passed, found = found_by(s3_server)["clock"]
    assert passed is None
    assert word in found


def test_an_error_in_one_of_the_threads_is_raised() -> None:
    def fail(number: int) -> None:
        if number == 2:
            raise StorageError("away")

    before = threading.active_count()
    with pytest.raises(StorageError, match="away"):
        s3_check._together(fail)
    assert threading.active_count() == before


# -- each way to fail, from a server that answers as it is told ---------------------------------------------
YES, NO = Written.YES, Written.REFUSED


class Scripted:
    """Objects whose answers are given; what runs out stays as it was last."""

    def __init__(self, *, create: list[Written], replace: list[Written], contents: list[bytes | None]) -> None:
        self._create, self._replace, self._contents = create, replace, contents

    def create(self, _path: str, _data: bytes) -> Written:
        return self._create.pop(0) if len(self._create) > 1 else self._create[0]

    def replace(self, _path: str, _data: bytes, *, etag: str) -> Written:
        assert etag
        return self._replace.pop(0) if len(self._replace) > 1 else self._replace[0]

    def read(self, _path: str) -> Part | None:
        data = self._contents.pop(0) if len(self._contents) > 1 else self._contents[0]
        return None if data is None else Part(data=data, total_bytes=len(data), etag='"e"')

    def read_part(self, path: str, **_options: object) -> Part | None:
        return self.read(path)

    def where(self, path: str) -> str:
        return path

    def list_files(self, _folder: str) -> list[tuple[str, int]]:
        return []

    list_folders = list_files


@pytest.mark.parametrize(
    ("check", "create", "replace_", "contents", "found"),
    [
        ("_create", [YES, NO], [NO], [b"second"], "a refused write took place"),
        ("_replace", [YES], [NO], [b"first", b"wrong"], "a refused write took place"),
        ("_replace", [YES], [NO, YES, YES], [b"first"], "no more was accepted"),
        ("_replace", [YES], [NO, YES, NO, YES], [b"first"], "not there was replaced"),
        ("_replace", [YES], [NO, YES, NO, NO], [b"first"], "a refused write took place"),
        ("_replace", [YES], [NO, YES, NO, NO], [b"first", b"first", b"second"], ""),
        ("_race", [YES], [NO], [b"0"], "of them were told that they did"),
        ("_round_trip", [YES], [NO], [b"5;chunk-signature=0"], "framing of a checksum"),
        ("_read_after_write", [YES], [YES], [b"0"], "something caches"),
        ("_list_after_write", [YES], [YES], [b"0"], "it shows []"),
    ],
)
def test_each_way_to_fail_is_told_apart(
    check: str, create: list[Written], replace_: list[Written], contents: list[bytes | None], found: str
) -> None:
    objects: Any = Scripted(create=list(create), replace=list(replace_), contents=list(contents))
    told = getattr(s3_check._Trial(objects, "check/x"), check)()
    assert found in told
    assert bool(told) == bool(found)


def test_a_byte_range_that_is_not_kept_is_told(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = S3Objects.read_part
    monkeypatch.setattr(
        S3Objects,
        "read_part",
        lambda self, path, *, start, size_bytes, etag: keep(self, path, start=0, size_bytes=size_bytes, etag=etag),
    )
    objects = S3Objects(S3Client(s3_server.location(), LIMITS))
    assert "byte ranges" in s3_check._Trial(objects, "check/x")._round_trip()


def test_a_server_without_multipart_uploads_is_told(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_more: object) -> None:
        raise StorageError("NotImplemented")

    monkeypatch.setattr(s3_check, "send_surely", refuse)
    objects = S3Objects(S3Client(s3_server.location(), LIMITS))
    assert s3_check._Trial(objects, "check/x")._parts() == "NotImplemented"


def test_what_was_written_and_is_not_there_is_told() -> None:
    objects: Any = Scripted(create=[YES, NO], replace=[NO], contents=[None])
    with pytest.raises(StorageError, match="is not there"):
        s3_check._Trial(objects, "check/x")._create()


def test_what_cannot_be_removed_afterwards_fails_nobody(monkeypatch: pytest.MonkeyPatch, s3_server: S3Server) -> None:
    def refuse(*_arguments: object) -> None:
        raise StorageError("AccessDenied")

    monkeypatch.setattr(S3Objects, "list_files", refuse)
    s3_check._Trial(S3Objects(S3Client(s3_server.location(), LIMITS)), "check/x").remove_all()


@pytest.mark.parametrize(("code", "found"), [("SlowDown", "unclear"), ("BadDigest", "is refused")])
def test_what_a_wrong_checksum_brings_is_noted(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, code: str, found: str
) -> None:
    def refuse(*_arguments: object, **_more: object) -> None:
        raise S3Failure(code, 400, "", where="")

    monkeypatch.setattr(S3Client, "send", refuse)
    told = s3_check._Trial(S3Objects(S3Client(s3_server.location(), LIMITS)), "check/x")._wrong_checksum()
    assert told.startswith(found)


@pytest.mark.slow
def test_a_server_that_answers_losers_of_a_race_with_500_passes(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ceph does: what became of such a write is read back, as a swap would."""
    keep, turn = S3Objects.replace, iter(range(1, 10_000))

    def forgetful(self: S3Objects, path: str, data: bytes, *, etag: str) -> Written:
        written = keep(self, path, data, etag=etag)
        return Written.LOST if path.endswith("/count") and next(turn) % 3 == 0 else written

    monkeypatch.setattr(S3Objects, "replace", forgetful)
    assert check_server(s3_server.location(), limits=LIMITS).failed == ()
