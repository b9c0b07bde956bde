from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modelreg.runtime.serve.compression import check_encoding, choose_encoding, pack, unpack
from modelreg.runtime.serve.problems import InvalidRequestError, TooLargeError, UnknownEncodingError


@settings(deadline=None)
@given(st.binary(max_size=3000), st.sampled_from(["gzip", "deflate"]))
def test_what_is_packed_comes_back(body: bytes, encoding: str) -> None:
    assert unpack(pack(body, encoding), encoding, limit_bytes=len(body)) == body
    if body:
        with pytest.raises(TooLargeError):
            unpack(pack(body, encoding), encoding, limit_bytes=len(body) - 1)


@pytest.mark.parametrize(("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_damage_is_refused(encoding: str, compress: object) -> None:
    assert callable(compress)
    whole = compress(b"x" * 1000)
    for broken in (whole[:-1], whole + b"x", b"", b"plain", b"\0" * 50):
        with pytest.raises(InvalidRequestError):
            unpack(broken, encoding, limit_bytes=2000)


@pytest.mark.parametrize(
    ("accepted", "chosen"),
    [
        ("", None),
        ("identity", None),
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("deflate, GZIP;q=0.5", "gzip"),
        ("gzip;q=0, deflate", "deflate"),
        ("gzip; q=0.000", None),
        ("br", None),
    ],
)
def test_responses_are_packed_as_the_client_accepts(accepted: str, chosen: str | None) -> None:
    assert choose_encoding(accepted, 5000) == chosen
    assert choose_encoding(accepted, 100) is None


def test_other_encodings_are_refused() -> None:
    assert check_encoding(" GZIP ") == "gzip"
    assert check_encoding("identity") is None
    with pytest.raises(UnknownEncodingError, match="'br' is none of gzip, deflate"):
        check_encoding("br")
