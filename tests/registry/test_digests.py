import hashlib
from pathlib import Path

import pytest

from modelreg.registry.digests import canonical_json, file_digest, json_digest, sha256_hex


def test_equal_values_give_equal_bytes_whatever_their_order() -> None:
    assert canonical_json({"b": 1, "a": [1, 2.5, "é"]}) == b'{"a":[1,2.5,"\xc3\xa9"],"b":1}'
    assert json_digest({"b": 1, "a": 2}) == json_digest({"a": 2, "b": 1})


def test_nan_has_no_canonical_form() -> None:
    with pytest.raises(ValueError, match="Out of range"):
        canonical_json({"x": float("nan")})


def test_digests_are_plain_sha256() -> None:
    assert sha256_hex(b"abc") == hashlib.sha256(b"abc").hexdigest()
    assert json_digest({}) == hashlib.sha256(b"{}").hexdigest()


def test_a_file_has_the_digest_of_its_bytes_whatever_its_size(tmp_path: Path) -> None:
    for size in (0, 1, (1 << 20) + 1):
        (tmp_path / "file").write_bytes(b"x" * size)
        assert file_digest(tmp_path / "file") == hashlib.sha256(b"x" * size).hexdigest()
