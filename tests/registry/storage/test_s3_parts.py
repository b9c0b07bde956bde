from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from modelreg.registry.storage.offered import offered_file
from modelreg.registry.storage.s3_objects import sha256_base64
from modelreg.registry.storage.s3_parts import PartHasher, read_parts

PART = 1000


@pytest.mark.parametrize("size", [1, PART - 1, PART, PART + 1, 3 * PART, 3 * PART + 7])
@pytest.mark.parametrize("piece", [1, 7, PART, 2 * PART + 1])
def test_parts_are_hashed_as_they_are_sent_whatever_the_pieces(tmp_path: Path, size: int, piece: int) -> None:
    data = os.urandom(size)
    (tmp_path / "file").write_bytes(data)
    hasher = PartHasher(part_bytes=PART)
    for start in range(0, size, piece):
        hasher.update(memoryview(data)[start : start + piece])
    whole = hashlib.sha256()
    sent, hashes = [], []
    with offered_file(tmp_path / "file") as source:
        for part in read_parts(source, part_bytes=PART, see=whole.update):
            sent.append(bytes(part.body()))
            hashes.append(sha256_base64(part.data))
            part.give_back()
    assert b"".join(sent) == data
    assert hasher.finish() == hashes
    assert whole.digest() == hashlib.sha256(data).digest()


def test_a_part_s_memory_is_used_again_once_it_is_given_back(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(os.urandom(4 * PART))
    with offered_file(tmp_path / "file") as source:
        bodies = []
        for number, part in enumerate(read_parts(source, part_bytes=PART)):
            bodies.append(id(part.body()))
            if number != 1:
                part.give_back()
    assert bodies[0] == bodies[1]
    assert bodies[1] != bodies[2] == bodies[3]
