"""The first member of a bundle: what else is in it. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from modelreg.registry.blobs import BlobRecord
from modelreg.registry.digests import canonical_json, sha256_hex
from modelreg.registry.errors import IntegrityError
from modelreg.registry.storage.rules import check_digest
from modelreg.registry.words import BlobKind

LISTING_NAME = "bundle.json"
RECORDS_NAME = "records.json"
LISTING_LIMIT_BYTES = 16 << 20
RECORDS_LIMIT_BYTES = 64 << 20
FORMAT = 1
_KIND = "modelreg bundle"
_MOST_VALUES = 1_000_000
_MOST_BYTES = 1 << 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What is in a bundle: the records' digest and size, and the blobs in order of digest."""

    records_digest: str
    records_bytes: int
    blobs: tuple[BlobRecord, ...]

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all blobs and the records."""
        return self.records_bytes + sum(blob.size_bytes for blob in self.blobs)

    def to_bytes(self) -> bytes:
        """Return the listing as it stands in the bundle."""
        body = {
            "format": FORMAT,
            "kind": _KIND,
            "records": {"sha256": self.records_digest, "size": self.records_bytes},
            "blobs": [{"sha256": blob.digest, "size": blob.size_bytes, "kind": str(blob.kind)} for blob in self.blobs],
        }
        return canonical_json(body) + b"\n"


def blob_name(digest: str) -> str:
    """Return the name of a blob's member."""
    return f"blobs/sha256/{digest}"


def make_listing(records: bytes, blobs: Iterable[BlobRecord]) -> Listing:
    """Return the listing of these records and blobs."""
    ordered = tuple(sorted(blobs, key=lambda blob: blob.digest))
    return Listing(records_digest=sha256_hex(records), records_bytes=len(records), blobs=ordered)


def parse_listing(data: bytes) -> Listing:
    """
    Return the listing in `data`.

    Raises:
        IntegrityError: It is none, of another format, or not in the one order that a listing has.
    """
    body = parse_canonical(data, what=LISTING_NAME)
    try:
        if body["kind"] != _KIND or body["format"] != FORMAT:
            raise IntegrityError(
                f"the bundle has format {body['format']!r}, this modelreg knows {FORMAT}",
                hint="It was written by a newer modelreg; upgrade this one.",
            )
        found = Listing(
            records_digest=check_digest(body["records"]["sha256"]),
            records_bytes=body["records"]["size"],
            blobs=tuple(
                BlobRecord(digest=check_digest(each["sha256"]), size_bytes=each["size"], kind=BlobKind(each["kind"]))
                for each in body["blobs"]
            ),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise IntegrityError(f"the list of the bundle cannot be read: {error!r}") from None
    sizes = [found.records_bytes, *(blob.size_bytes for blob in found.blobs)]
    if not all(type(size) is int and 0 <= size <= _MOST_BYTES for size in sizes):
        raise IntegrityError("the list of the bundle has a size that is none")
    if found.records_bytes > RECORDS_LIMIT_BYTES:
        raise IntegrityError(f"the bundle's records have {found.records_bytes:,} bytes, too many")
    digests = [blob.digest for blob in found.blobs]
    if digests != sorted(set(digests)):
        raise IntegrityError("the list of the bundle names a blob twice, or not in order")
    return found


def parse_canonical(data: bytes, *, what: str) -> dict[str, Any]:
    """
    Return the JSON object in `data`, which has to be spelled as we spell it: so no key stands twice, and no number is
    anything but one.

    Raises:
        IntegrityError: It is no such document, or has more values than any bundle.
    """
    # Counted first: 64 MiB of brackets would be gigabytes of lists.
    if sum(data.count(mark) for mark in (b"[", b"{", b",")) > _MOST_VALUES:
        raise IntegrityError(f"{what} is refused: it has more than {_MOST_VALUES:,} values")
    try:
        body = json.loads(data)
        is_ours = isinstance(body, dict) and canonical_json(body) + b"\n" == data
    except (ValueError, RecursionError, OverflowError) as error:
        raise IntegrityError(f"{what} cannot be read: {str(error)[:200]}") from None
    if not is_ours:
        raise IntegrityError(f"{what} is not spelled as modelreg spells it")
    found: dict[str, Any] = body
    return found
