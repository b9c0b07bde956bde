"""Canonical JSON and SHA-256: how things without a file get an identity."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

_CHUNK_BYTES = 1 << 20
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical_json(body: Any) -> bytes:
    """
    Return `body` as JSON with sorted keys, no white space and no NaN: equal values give equal bytes.

    Raises:
        ValueError: The body holds NaN or an infinity.
    """
    return _CANONICAL.encode(body).encode()


def sha256_hex(data: bytes) -> str:
    """Return the SHA-256 of `data` as 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, read a part at a time; raises OSError where it cannot be read."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def json_digest(body: Any) -> str:
    """Return the SHA-256 of the canonical JSON of `body`."""
    return sha256_hex(canonical_json(body))
