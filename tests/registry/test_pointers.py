import json
from datetime import datetime, timezone

import pytest

from modelreg.registry.errors import IntegrityError
from modelreg.registry.pointers import Pointer, next_pointer, parse_pointer
from modelreg.registry.words import ActivationKind

AT = datetime(2026, 11, 30, 12, 0, 0, 123000, tzinfo=timezone.utc)


def make(current: Pointer | None = None, *, release: str = "a" * 64) -> Pointer:
    return next_pointer(
        current,
        model="lenet",
        channel="production",
        release=release,
        version=1,
        kind=ActivationKind.PROMOTE,
        rolls_back_to=current.generation if current else None,
        txn="t1" if current is None else "t2",
        actor="ada@host",
        message="é",
        at=AT,
    )


def test_a_pointer_reads_back_as_it_was_written() -> None:
    pointer = make()
    assert parse_pointer(pointer.to_bytes(), where="x") == pointer


def test_the_next_pointer_is_one_generation_on_and_names_the_previous_transaction() -> None:
    first = make()
    second = make(first)
    assert (first.generation, first.previous_txn) == (1, "")
    assert (second.generation, second.previous_txn, second.rolls_back_to) == (2, "t1", 1)


@pytest.mark.parametrize("field", ["release", "generation", "actor", "txn", "overridden", "at"])
def test_a_changed_field_is_found(field: str) -> None:
    body = json.loads(make().to_bytes())
    body[field] = "changed"
    with pytest.raises(IntegrityError, match="does not match its own digest"):
        parse_pointer(json.dumps(body).encode(), where="pointer.json")


@pytest.mark.parametrize("cut", [0, 1, 50, -2])
def test_a_cut_pointer_is_refused(cut: int) -> None:
    data = make().to_bytes()
    with pytest.raises(IntegrityError, match=r"pointer\.json"):
        parse_pointer(data[:cut], where="pointer.json")


@pytest.mark.parametrize("data", [b"[]", b"null", b"1", b"{}", b"\xff\xfe", b"[" * 100_000])
def test_json_of_another_shape_is_refused(data: bytes) -> None:
    with pytest.raises(IntegrityError):
        parse_pointer(data, where="p")


def test_every_flipped_bit_is_found() -> None:
    data = make().to_bytes()
    original = parse_pointer(data, where="p")
    for position in range(len(data)):
        for bit in (1, 16):
            damaged = bytearray(data)
            damaged[position] ^= bit
            try:
                read = parse_pointer(bytes(damaged), where="p")
            except IntegrityError:
                continue
            assert read == original  # white space between the fields carries no meaning


def test_a_newer_format_is_refused_with_the_way_out() -> None:
    from modelreg.registry.digests import json_digest

    body = json.loads(make().to_bytes())
    del body["sha256"]
    body["format"] = 99
    body["sha256"] = json_digest(body)
    with pytest.raises(IntegrityError, match="format 99") as raised:
        parse_pointer(json.dumps(body).encode(), where="p")
    assert "upgrade" in raised.value.hint()
