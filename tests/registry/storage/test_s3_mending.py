"""Objects of a store in S3 that were damaged, put back or removed by hand, and how they come back."""

from __future__ import annotations

from typing import Any

import pytest

from modelreg.registry.errors import IntegrityError, StorageError, StoreFormatError
from modelreg.registry.storage.mending import is_mendable, mend_format
from modelreg.registry.storage.s3 import Quirks, S3Storage
from modelreg_testing.s3_server import BUCKET, LIMITS, S3Server
from modelreg_testing.storage import chain_of, published

POINTER = "channels/lenet/production/pointer.json"


@pytest.fixture
def store(s3_server: S3Server) -> S3Storage:
    return S3Storage.create(s3_server.location(), quirks=Quirks(), limits=LIMITS)


def key(store: S3Storage, path: str) -> dict[str, Any]:
    return {"Bucket": BUCKET, "Key": store.location.key(path)}


@pytest.mark.parametrize("generation", [1, 2, 3])
def test_a_damaged_document_is_written_again(store: S3Storage, s3_server: S3Server, generation: int) -> None:
    chain = chain_of(store, length=3, release=published(store))
    for data in (b"", b"{}"):
        s3_server.boto.put_object(**key(store, f"channels/lenet/production/history/{generation:012d}.json"), Body=data)
        with pytest.raises(IntegrityError):
            store.read_history("lenet", "production", generation)
        for _ in range(2):
            store.restore_history(chain[generation - 1])
            assert store.read_history("lenet", "production", generation) == chain[generation - 1]


@pytest.mark.parametrize("state", ["older", "damaged", "gone"])
def test_a_pointer_that_is_behind_its_history_is_moved_on(store: S3Storage, s3_server: S3Server, state: str) -> None:
    chain = chain_of(store, length=3, release=published(store))
    if state == "gone":
        s3_server.boto.delete_object(**key(store, POINTER))
    else:
        data = chain[0].to_bytes() if state == "older" else b"{}"
        s3_server.boto.put_object(**key(store, POINTER), Body=data)
    with pytest.raises(IntegrityError, match="cannot be moved on"):
        store.advance_pointer("lenet", "production", 2)
    store.advance_pointer("lenet", "production", 3)
    assert store.read_pointer("lenet", "production") == chain[2]
    with pytest.raises(IntegrityError, match="cannot be moved on"):
        store.advance_pointer("lenet", "production", 3)


def test_a_pointer_that_somebody_moves_meanwhile_is_not_overwritten(s3_server: S3Server) -> None:
    location = s3_server.location()
    plain = S3Storage.create(location, quirks=Quirks(), limits=LIMITS)
    chain = chain_of(plain, length=3, release=published(plain))
    s3_server.boto.put_object(**key(plain, POINTER), Body=chain[0].to_bytes())

    def interfere(_number: int, operation: str, path: str) -> None:
        if operation == "put_object" and path.endswith("pointer.json"):
            s3_server.boto.put_object(**key(plain, POINTER), Body=chain[1].to_bytes())

    store = S3Storage(location, limits=LIMITS, on_step=interfere)
    with pytest.raises(StorageError, match="changed meanwhile"):
        store.advance_pointer("lenet", "production", 3)
    assert plain.read_pointer("lenet", "production") == chain[1]


@pytest.mark.parametrize("data", [b"", b"{", None])
def test_a_format_that_is_lost_is_written_again_after_the_server_was_tried(
    store: S3Storage, s3_server: S3Server, data: bytes | None
) -> None:
    url = str(store.location)
    chain_of(store, length=1, release=published(store))
    assert not is_mendable(url)
    if data is None:
        s3_server.boto.delete_object(**key(store, "FORMAT"))
    else:
        s3_server.boto.put_object(**key(store, "FORMAT"), Body=data)
        with pytest.raises(StoreFormatError):
            S3Storage(store.location)
    assert is_mendable(url)
    mend_format(url)
    assert S3Storage(store.location).checked_at is not None
    assert not is_mendable(url)


def test_a_prefix_without_a_pointer_is_no_store_to_mend(store: S3Storage, s3_server: S3Server) -> None:
    s3_server.boto.put_object(**key(store, "FORMAT"), Body=b"")
    assert not is_mendable(str(store.location))
