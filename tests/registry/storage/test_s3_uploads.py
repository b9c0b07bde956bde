"""Uploads in parts, and what S3 stores do at the edges: gone, changed, replaced, listed page by page, not reachable."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from modelreg.registry.digests import sha256_hex
from modelreg.registry.errors import (
    IntegrityError,
    MissingDependencyError,
    NotFoundError,
    SourceError,
    StorageError,
    StoreAbsentError,
)
from modelreg.registry.storage import s3_channels, s3_client
from modelreg.registry.storage.s3 import Quirks, S3Storage
from modelreg.registry.storage.s3_client import S3Client
from modelreg.registry.storage.s3_failures import S3Failure
from modelreg.registry.storage.s3_limits import S3Limits
from modelreg.registry.storage.s3_location import S3Location
from modelreg.registry.storage.s3_objects import S3Objects
from modelreg.registry.storage.s3_protocol import Written
from modelreg_testing.s3_server import BUCKET, LIMITS, S3Server, reopened
from modelreg_testing.storage import chain_of, manifest_of, pointer_after, published

PARTS = replace(LIMITS, look_first_bytes=0, single_bytes=1 << 20, part_bytes=5 << 20, workers=2, first_wait_s=0.001)
SIZE = 16 << 20
Step = Callable[[int, str, str], None]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(os.urandom(SIZE))
    return path


@pytest.fixture
def store(s3_server: S3Server) -> S3Storage:
    return s3_server.make_store(limits=PARTS)


def at(operation: str, number: int, act: Callable[[], object]) -> Step:
    """Return a step that acts before the request of that name and number."""
    seen = [0]

    def step(_number: int, name: str, _key: str) -> None:
        seen[0] += name == operation
        if name == operation and seen[0] == number:
            act()

    return step


def abort_all(server: S3Server, store: S3Storage) -> None:
    uploads = server.boto.list_multipart_uploads(Bucket=BUCKET, Prefix=store.location.prefix).get("Uploads", ())
    for upload in uploads:
        server.boto.abort_multipart_upload(Bucket=BUCKET, Key=upload["Key"], UploadId=upload["UploadId"])


def key_of(store: S3Storage, digest: str) -> dict[str, str]:
    return {"Bucket": BUCKET, "Key": store.location.key(f"blobs/sha256/{digest[:2]}/{digest}")}


# -- uploads -----------------------------------------------------------------------------------------------
def test_a_large_file_is_not_sent_twice(store: S3Storage, source: Path) -> None:
    info = store.put_file(source)
    sent: list[str] = []
    done: list[int] = []
    again = reopened(store, limits=PARTS, on_step=lambda _number, name, _key: sent.append(name))
    assert again.put_file(source, progress=done.append) == info
    assert sent == ["get_object", "get_object", "head_object"]  # the format, whether it is marked, what is there
    assert sum(done) == SIZE


def test_an_upload_that_was_removed_is_begun_anew(store: S3Storage, s3_server: S3Server, source: Path) -> None:
    step = at("upload_part", 2, lambda: abort_all(s3_server, store))
    info = reopened(store, limits=PARTS, on_step=step).put_file(source)
    assert store.verify_blob(info.digest) == SIZE


def test_an_upload_that_somebody_else_finished_is_done(store: S3Storage, source: Path) -> None:
    done: list[int] = []
    step = at("upload_part", 3, lambda: store.put_file(source))
    info = reopened(store, limits=PARTS, on_step=step).put_file(source, progress=done.append)
    assert store.verify_blob(info.digest) == SIZE


def test_an_upload_that_is_always_removed_is_given_up(store: S3Storage, s3_server: S3Server, source: Path) -> None:
    def remove(_number: int, name: str, _key: str) -> None:
        if name == "upload_part":
            abort_all(s3_server, store)

    with pytest.raises(StorageError, match="keeps removing"):
        reopened(store, limits=PARTS, on_step=remove).put_file(source)


@pytest.mark.parametrize("checks_parts", [False, True], ids=["hashed again", "checked by the server"])
@pytest.mark.parametrize("keep_times", [False, True], ids=["noticed by its time", "noticed by its bytes"])
def test_a_file_that_changes_while_it_is_uploaded_is_not_stored(
    s3_server: S3Server, source: Path, keep_times: bool, checks_parts: bool
) -> None:
    store = S3Storage.create(s3_server.location(), quirks=Quirks(checks_parts=checks_parts), limits=PARTS)
    digest = sha256_hex(source.read_bytes())
    before = source.stat()

    def change() -> None:
        with source.open("r+b") as file:
            file.seek(SIZE - 1)
            file.write(b"?")
        if keep_times:
            os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))

    with pytest.raises(SourceError):
        reopened(store, limits=PARTS, on_step=at("create_multipart_upload", 1, change)).put_file(source)
    assert not store.has_blob(digest)
    if keep_times:
        assert store.count_leftovers() == 0


def test_a_server_that_checks_parts_is_sent_what_was_hashed_once(s3_server: S3Server, source: Path) -> None:
    store = S3Storage.create(s3_server.location(), quirks=Quirks(checks_parts=True), limits=PARTS)
    digest = sha256_hex(source.read_bytes())
    assert store.put_file(source).digest == digest
    assert store.read_blob(digest) == source.read_bytes()
    assert store.put_file(source).digest == digest


def test_what_a_server_checks_is_found_out_and_kept(s3_server: S3Server) -> None:
    store = S3Storage.create(s3_server.location(), quirks=Quirks(), limits=PARTS)
    store.note_check(Quirks(checks_parts=True))
    assert reopened(store)._objects.checks_parts
    store.note_check(Quirks(bare_etags=False))
    assert not reopened(store)._objects.checks_parts


def test_what_did_not_arrive_as_it_was_sent_is_told(store: S3Storage, s3_server: S3Server, source: Path) -> None:
    digest = sha256_hex(source.read_bytes())
    step = at("head_object", 2, lambda: s3_server.boto.put_object(**key_of(store, digest), Body=b"else"))
    with pytest.raises(IntegrityError, match="did not arrive") as caught:
        reopened(store, limits=PARTS, on_step=step).put_file(source)
    assert "store check" in caught.value.hint()


def test_what_was_left_of_an_upload_is_swept_when_it_is_old(
    store: S3Storage, s3_server: S3Server, source: Path
) -> None:
    class Died(BaseException):
        pass

    def die() -> None:
        raise Died

    with pytest.raises(Died):
        reopened(store, limits=PARTS, on_step=at("complete_multipart_upload", 1, die)).put_file(source)
    patient = reopened(store, limits=replace(PARTS, abandoned_after_s=3600))
    assert (patient.count_leftovers(), patient.sweep_leftovers()) == (0, 0)
    assert (store.count_leftovers(), store.sweep_leftovers(), store.count_leftovers()) == (1, 1, 0)
    assert "Uploads" not in s3_server.boto.list_multipart_uploads(Bucket=BUCKET, Prefix=store.location.prefix)


def test_everything_is_found_page_by_page(store: S3Storage, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain_of(store, length=3, release=published(store))
    keep = S3Client.send
    few = {"list_objects_v2": "MaxKeys", "list_multipart_uploads": "MaxUploads", "list_parts": "MaxParts"}

    def one_at_a_time(self: S3Client, operation: str, path: str, **parameters: Any) -> dict[str, Any]:
        if operation in few:
            parameters[few[operation]] = 1
        return keep(self, operation, path, **parameters)

    monkeypatch.setattr(S3Client, "send", one_at_a_time)
    assert store.list_generations("lenet", "production") == [1, 2, 3]
    begun = at("complete_multipart_upload", 1, lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        reopened(store, limits=PARTS, on_step=begun).put_file(source)
    sent: list[str] = []
    info = reopened(store, limits=PARTS, on_step=lambda _n, name, _key: sent.append(name)).put_file(source)
    assert sent.count("list_parts") > 1
    assert "upload_part" not in sent
    assert store.verify_blob(info.digest) == SIZE


def test_a_part_without_a_checksum_is_known_by_its_md5_or_sent_again() -> None:
    from modelreg.registry.storage.s3_multipart import _is_same
    from modelreg.registry.storage.s3_objects import sha256_base64

    data = memoryview(b"part")
    sha256 = sha256_base64(data)
    assert _is_same({"Size": 4, "ChecksumSHA256": sha256, "ETag": '"x"'}, data, sha256)
    assert not _is_same({"Size": 4, "ChecksumSHA256": "other", "ETag": '"x"'}, data, sha256)
    assert not _is_same({"Size": 5, "ChecksumSHA256": sha256, "ETag": '"x"'}, data, sha256)
    assert _is_same({"Size": 4, "ETag": f'"{hashlib.md5(data).hexdigest()}"'}, data, sha256)
    assert not _is_same({"Size": 4, "ETag": '"encrypted"'}, data, sha256)


def test_the_part_size_suits_any_size_and_is_the_same_for_everyone() -> None:
    limits = S3Limits()
    assert limits.part_size(1 << 30) == limits.part_bytes
    largest = 5 << 40
    assert largest / limits.part_size(largest) <= 10_000
    assert limits.part_size(largest) % (1 << 20) == 0


# -- reading -----------------------------------------------------------------------------------------------
def test_a_blob_can_be_sought_in(store: S3Storage, source: Path) -> None:
    data = source.read_bytes()
    info = store.put_file(source)
    with store.open_blob(info.digest) as blob:
        assert blob.seekable()
        blob.seek(-10, os.SEEK_END)
        assert blob.read() == data[-10:]
        blob.seek((5 << 20) - 3)
        assert blob.read(9) == data[(5 << 20) - 3 : (5 << 20) + 6]
        assert blob.tell() == (5 << 20) + 6
        blob.seek(-2, os.SEEK_CUR)
        assert blob.read(2) == data[(5 << 20) + 4 : (5 << 20) + 6]
        assert blob.seek(SIZE + 5) == SIZE + 5
        assert blob.read() == b""
    raw: Any = blob
    with store.open_blob(info.digest) as again, pytest.raises(ValueError, match="negative"):
        again.seek(-1)
    assert raw.closed


def test_what_was_read_a_moment_ago_is_not_read_again_while_it_stays_the_same(
    store: S3Storage, s3_server: S3Server
) -> None:
    release = published(store, content={"a": b"x" * 100, "b": b"y" * 100})
    sent: list[str] = []
    again = reopened(store, on_step=lambda _number, name, key: sent.append(f"{name} {key.split('/')[2]}"))
    size_bytes = again.verify_release(release)
    assert sent.count("get_object blobs") == 2
    done: list[int] = []
    assert again.verify_release(release, progress=done.append) == size_bytes == sum(done)
    assert sent.count("get_object blobs") == 2
    s3_server.boto.put_object(**key_of(store, sha256_hex(b"x" * 100)), Body=b"X" * 100)
    with pytest.raises(IntegrityError, match=release):
        again.verify_release(release)


def test_a_blob_that_is_replaced_while_it_is_read_is_told(store: S3Storage, s3_server: S3Server, source: Path) -> None:
    info = store.put_file(source)
    step = at("get_object", 3, lambda: s3_server.boto.put_object(**key_of(store, info.digest), Body=b"else"))
    with pytest.raises(StorageError, match="replaced while it was read"):
        reopened(store, limits=PARTS, on_step=step).read_blob(info.digest)


def test_a_server_that_gives_another_length_is_told(store: S3Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    info = store.put_bytes(b"x" * 100)
    keep = S3Objects.read_part

    def longer(self: S3Objects, *arguments: Any, **more: Any) -> Any:
        part = keep(self, *arguments, **more)
        assert part is not None
        return replace(part, total_bytes=part.total_bytes + 1)

    monkeypatch.setattr(S3Objects, "read_part", longer)
    with pytest.raises(StorageError, match="another length"):
        store.read_blob(info.digest)


def test_an_empty_object_is_read_where_the_server_calls_that_no_range(
    store: S3Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = store.put_bytes(b"")
    keep = S3Client.send

    def strict(self: S3Client, operation: str, path: str, **parameters: Any) -> dict[str, Any]:
        if "Range" in parameters:
            raise S3Failure("InvalidRange", 416, "no", where=path)
        return keep(self, operation, path, **parameters)

    monkeypatch.setattr(S3Client, "send", strict)
    assert store.read_blob(info.digest) == b""


# -- a server that does not do what it should --------------------------------------------------------------
def test_what_can_be_neither_created_nor_replaced_is_told(store: S3Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(S3Objects, "create", lambda *_: Written.REFUSED)
    monkeypatch.setattr(S3Objects, "replace", lambda *_, **_more: Written.REFUSED)
    with pytest.raises(StorageError, match="neither created nor replaced"):
        store.put_bytes(b"x")
    monkeypatch.undo()
    info = store.put_bytes(b"x")
    monkeypatch.setattr(S3Objects, "create", lambda *_: Written.REFUSED)
    monkeypatch.setattr(S3Objects, "replace", lambda *_, **_more: Written.REFUSED)
    with pytest.raises(StorageError, match="neither created nor replaced"):
        store.publish_release(manifest_of(()), ())
    assert store.has_blob(info.digest)


def test_a_server_that_answers_no_write_is_told(store: S3Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(S3Objects, "create", lambda *_: Written.LOST)
    with pytest.raises(StorageError, match="does not answer"):
        store.put_bytes(b"x")
    with pytest.raises(StorageError, match="does not answer"):
        store.require_writable()


def test_a_release_whose_blob_has_another_size_is_damaged(store: S3Storage, s3_server: S3Server) -> None:
    from modelreg.registry.contents import StoredFile

    info = store.put_bytes(b"plan")
    files = (StoredFile(path="a", digest=info.digest, size_bytes=5),)
    manifest = manifest_of(files)
    key = store.location.key(f"releases/{sha256_hex(manifest)}/manifest.json")
    s3_server.boto.put_object(Bucket=BUCKET, Key=key, Body=manifest)
    with pytest.raises(IntegrityError, match="another size"):
        store.verify_release(sha256_hex(manifest))


def test_what_else_lies_in_the_bucket_is_left_out(store: S3Storage, s3_server: S3Server) -> None:
    chain_of(store, length=1, release=published(store))
    for path in ("blobs/sha256/ab/notes.txt", "releases/readme/x", "channels/UPPER/case/pointer.json"):
        s3_server.boto.put_object(Bucket=BUCKET, Key=store.location.key(path), Body=b"x")
    s3_server.boto.put_object(
        Bucket=BUCKET, Key=store.location.key("channels/lenet/production/history/notes"), Body=b"x"
    )
    assert len(list(store.iterate_blobs())) == 1
    assert len(list(store.iterate_releases())) == 1
    assert store.list_channels() == [("lenet", "production")]
    assert store.list_generations("lenet", "production") == [1]


# -- opening -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("body", "said"), [(b"{", "cannot be read"), (b"[]", "cannot be read"), (b'{"format": 99}', "has format 99")]
)
def test_a_store_of_another_format_is_refused(store: S3Storage, s3_server: S3Server, body: bytes, said: str) -> None:
    s3_server.boto.put_object(Bucket=BUCKET, Key=store.location.key("FORMAT"), Body=body)
    with pytest.raises(StorageError, match=said) as caught:
        reopened(store)
    assert not isinstance(caught.value, StoreAbsentError)


def test_of_two_that_make_a_store_at_once_each_knows_whether_it_was_first(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = s3_server.location()
    keep = S3Objects.create_surely

    def forgotten(self: S3Objects, path: str, data: bytes) -> Written:
        keep(self, path, data)
        return Written.REFUSED  # as after an answer that was lost

    monkeypatch.setattr(S3Objects, "create_surely", forgotten)
    assert S3Storage.create(location, quirks=Quirks(), limits=LIMITS).url == str(location)
    with pytest.raises(StorageError, match="already"):
        S3Storage.create(location, quirks=Quirks(), limits=LIMITS)


def test_without_boto3_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_client, "_clients", type(s3_client._clients)())
    for library in ("boto3.session", "botocore.config", "botocore.exceptions"):  # a plain install has none of them
        monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingDependencyError, match="boto3") as caught:
        S3Storage(S3Location(bucket="bucket"))
    assert "modelreg[s3]" in caught.value.hint()


def test_a_boto3_without_conditional_writes_is_refused(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    import boto3.session

    class Old:
        def __init__(self, **_options: object) -> None:
            self.meta = self.service_model = self
            self.input_shape = self
            self.members = {"IfNoneMatch": None}

        def client(self, *_arguments: object, **_options: object) -> Old:
            return self

        def operation_model(self, _name: str) -> Old:
            return self

    monkeypatch.setattr(s3_client, "_clients", type(s3_client._clients)())
    monkeypatch.setattr(boto3.session, "Session", Old)
    with pytest.raises(StorageError, match="too old"):
        S3Storage(s3_server.location())


def test_a_profile_that_is_not_there_is_named(s3_server: S3Server) -> None:
    with pytest.raises(StorageError, match="nobody") as caught:
        S3Storage(s3_server.location(profile="nobody"))
    assert "profile" in caught.value.hint()


def test_buckets_are_named_in_the_path_where_the_server_is_not_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    assert s3_client._addressing(S3Location(bucket="b")) == "auto"
    assert s3_client._addressing(S3Location(bucket="b", endpoint_url="http://x")) == "path"
    assert s3_client._addressing(S3Location(bucket="b", endpoint_url="http://x", addressing="virtual")) == "virtual"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://x")
    assert s3_client._addressing(S3Location(bucket="b")) == "path"


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("", {}),
        ("default", {"ServerSideEncryption": "aws:kms"}),
        ("abc", {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "abc"}),
    ],
)
def test_what_is_written_is_encrypted_as_the_url_says(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, key: str, said: dict[str, str]
) -> None:
    sent: list[dict[str, Any]] = []

    class Listening:
        def __getattr__(self, name: str) -> Callable[..., dict[str, Any]]:
            def take(**parameters: Any) -> dict[str, Any]:
                sent.append(parameters)
                return {}

            return take

    client = S3Client(s3_server.location(kms_key_id=key, request_payer="requester"), LIMITS)
    monkeypatch.setattr(client, "_client", Listening)
    assert S3Objects(client).create("x", b"x") is Written.YES
    kept = {name: value for name, value in sent[0].items() if name in ("ServerSideEncryption", "SSEKMSKeyId")}
    assert kept == said
    assert sent[0]["RequestPayer"] == "requester"


def test_a_busy_server_is_asked_again(s3_server: S3Server) -> None:
    client = S3Client(s3_server.location(), LIMITS)
    answers = iter(
        [S3Failure("ConditionalRequestConflict", 409, "", where=""), S3Failure("SlowDown", 503, "", where="")]
    )

    def work() -> str:
        for failure in answers:
            raise failure
        return "done"

    assert client.repeat(work) == "done"


# -- locks and channels ------------------------------------------------------------------------------------
def test_without_a_folder_for_locks_a_swap_works_all_the_same(
    store: S3Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = tmp_path / f"modelreg-locks-{os.geteuid()}"
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    taken.mkdir(mode=0o777)
    taken.chmod(0o777)
    assert s3_channels.lock_folder() is None
    with store.exclusive("lenet", "production", timeout_s=0):
        chain_of(store, length=1, release=published(store))
    taken.rmdir()
    taken.write_text("no folder")
    assert s3_channels.lock_folder() is None
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "nowhere"))
    assert s3_channels.lock_folder() is None


def test_a_swap_whose_answers_stay_lost_is_given_up_in_time(store: S3Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    release = published(store)
    impatient = reopened(store, limits=replace(LIMITS, swap_patience_s=0.0))
    monkeypatch.setattr(S3Objects, "create", lambda *_: Written.REFUSED)
    with pytest.raises(StorageError, match="no clear answer"):
        impatient.swap_pointer(pointer_after(None, release=release), expected=None)


def test_a_pointer_that_was_removed_or_put_back_is_damage(store: S3Storage, s3_server: S3Server) -> None:
    first, *_ = chain_of(store, length=3, release=published(store))
    key = {"Bucket": BUCKET, "Key": store.location.key("channels/lenet/production/pointer.json")}
    s3_server.boto.put_object(**key, Body=first.to_bytes())
    with pytest.raises(IntegrityError, match="goes on from"):
        store.complete_reserved("lenet", "production")
    s3_server.boto.delete_object(**key)
    with pytest.raises(IntegrityError, match="missing"):
        store.read_pointer("lenet", "production")


@pytest.mark.parametrize("generation", [1, 2, 3])
def test_a_lost_document_is_taken_back_and_one_of_another_history_is_not(
    store: S3Storage, s3_server: S3Server, generation: int
) -> None:
    release = published(store)
    chain = chain_of(store, length=3, release=release)
    key = store.location.key(f"channels/lenet/production/history/{generation:012d}.json")
    s3_server.boto.delete_object(Bucket=BUCKET, Key=key)
    before = chain[generation - 2] if generation > 1 else None
    with pytest.raises(IntegrityError, match=f"generation {generation} is no part"):
        store.restore_history(pointer_after(before, release=release)._replace(previous_txn="x"))
    assert store.list_generations("lenet", "production") == [g for g in (1, 2, 3) if g != generation]
    for _ in range(2):
        store.restore_history(chain[generation - 1])
        assert store.read_history("lenet", "production", generation) == chain[generation - 1]
    with pytest.raises(IntegrityError, match="generation 4"):
        store.restore_history(pointer_after(chain[-1], release=release))


def test_a_reserved_generation_whose_release_is_gone_is_named(store: S3Storage, s3_server: S3Server) -> None:
    release = published(store)
    pointer = pointer_after(None, release=release)
    folder = "channels/lenet/production/history"
    s3_server.boto.put_object(Bucket=BUCKET, Key=store.location.key(f"{folder}/{1:012d}.json"), Body=pointer.to_bytes())
    s3_server.boto.delete_object(Bucket=BUCKET, Key=store.location.key(f"releases/{release}/manifest.json"))
    with pytest.raises(IntegrityError, match="cannot be completed"):
        store.complete_reserved("lenet", "production")
    with pytest.raises(NotFoundError):
        store.read_manifest(release)
