from __future__ import annotations

import json

import pytest

from modelreg.registry.contents import StoredFile
from modelreg.registry.digests import json_digest
from modelreg.registry.errors import IntegrityError
from modelreg.registry.storage.rules import check_release_files, follows, parse_channel_pointer
from modelreg_testing.storage import pointer_after

ABSENT = "absent"
POINTER = pointer_after(None, release="0" * 64)


def signed(**changes: object) -> bytes:
    """Return a pointer document with changed fields (ABSENT drops one) and a digest that fits."""
    body = {**json.loads(POINTER.to_bytes()), **changes}
    body = {key: value for key, value in body.items() if value != ABSENT and key != "sha256"}
    return json.dumps({**body, "sha256": json_digest(body)}).encode()


def test_the_document_under_test_is_a_pointer() -> None:
    assert parse_channel_pointer(signed(), model="lenet", channel="production", where="here").txn == POINTER.txn


@pytest.mark.parametrize(
    "changes",
    [
        {"txn": ABSENT},
        {"generation": 0},
        {"generation": "1"},
        {"generation": -1},
        {"version": 0},
        {"kind": "restart"},
        {"at": "yesterday"},
        {"at": 5},
        {"release": "../.."},
        {"release": 7},
        {"overridden": 5},
        {"model": "other"},
        {"channel": "other"},
    ],
    ids=str,
)
def test_a_pointer_with_a_right_digest_and_a_wrong_field_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(IntegrityError):
        parse_channel_pointer(signed(**changes), model="lenet", channel="production", where="here")


def test_a_pointer_is_compared_with_the_generation_of_its_name() -> None:
    data = POINTER.to_bytes()
    assert parse_channel_pointer(data, model="lenet", channel="production", where="x", generation=1) == POINTER
    with pytest.raises(IntegrityError, match="here"):
        parse_channel_pointer(data, model="lenet", channel="production", where="here", generation=2)


def test_a_release_file_has_no_negative_size() -> None:
    with pytest.raises(IntegrityError, match="-1"):
        check_release_files([StoredFile(path="a", digest="0" * 64, size_bytes=-1)])


def test_a_pointer_follows_one_of_its_own_channel_only() -> None:
    after = pointer_after(POINTER, release="0" * 64)
    assert follows(POINTER, None)
    assert follows(after, POINTER)
    assert not follows(after, None)
    assert not follows(POINTER, after)
    assert not follows(pointer_after(POINTER, release="0" * 64, channel="staging"), POINTER)
