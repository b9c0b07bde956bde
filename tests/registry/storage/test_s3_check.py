"""What is found out about a server before a store is made there, on one that can be trusted and on one that cannot."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from modelreg.registry.errors import StorageError
from modelreg.registry.storage import s3_check
from modelreg.registry.storage.open import create_storage
from modelreg.registry.storage.s3 import Quirks
from modelreg.registry.storage.s3_check import check_server
from modelreg.registry.storage.s3_objects import S3Objects
from modelreg.registry.storage.s3_protocol import Written
from modelreg_testing.s3_server import BUCKET, LIMITS, S3Server, localbucket, reopened
from modelreg_testing.storage import chain_of, published


@pytest.fixture(autouse=True)
def few_races(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make it short: SeaweedFS takes a second for each race."""
    monkeypatch.setattr(s3_check, "_RACES", 1)
    monkeypatch.setattr(s3_check, "_THREADS", 3)
    monkeypatch.setattr(s3_check, "_INCREMENTS", 3)


@pytest.fixture
def liar(s3_server: S3Server, tmp_path: Path) -> Iterator[S3Server]:
    """Run a server that ignores If-Match; the credentials are those of the other one."""
    with localbucket(tmp_path) as server:
        yield server


def found_by(server: S3Server) -> dict[str, tuple[bool | None, str]]:
    check = check_server(server.location(), limits=LIMITS)
    return {result.name: (result.passed, result.found) for result in check.results}


def test_a_server_that_keeps_conditions_passes_and_nothing_is_left(s3_server: S3Server) -> None:
    location = s3_server.location()
    check = check_server(location, limits=LIMITS)
    assert check.failed == ()
    assert sum(result.passed is True for result in check.results) == 8
    assert check.quirks == Quirks()
    check.require_passed(location)
    assert "Contents" not in s3_server.boto.list_objects_v2(Bucket=BUCKET, Prefix=location.prefix)


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


def test_a_server_that_ignores_checksums_is_noted_and_not_refused(liar: S3Server) -> None:
    passed, found = found_by(liar)["a wrong SHA-256 is refused"]
    assert passed is None
    assert "reads what it stores" in found


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


@pytest.mark.parametrize(
    ("name", "answer", "found"),
    [
        ("create", Written.REFUSED, "could not be created"),
        ("create", Written.YES, "If-None-Match was ignored"),
        ("replace", Written.REFUSED, "with and without quotes"),
    ],
)
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
    with pytest.raises(StorageError, match="NoSuchBucket") as caught:
        check_server(replace(s3_server.location(), bucket="nowhere"), limits=LIMITS)
    assert "Create the bucket" in caught.value.hint()


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
