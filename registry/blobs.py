"""Which blobs the registry refers to."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from modelreg.registry.clock import utc_now
from modelreg.registry.errors import IntegrityError
from modelreg.registry.rows import decoding
from modelreg.registry.schema import blob
from modelreg.registry.words import BlobKind

_FIND = sa.select(blob.c.size_bytes).where(blob.c.digest == sa.bindparam("digest"))
_INSERT = sa.insert(blob)
_COUNT = sa.select(sa.func.count()).select_from(blob)
_ALL = sa.select(blob.c.digest, blob.c.size_bytes, blob.c.kind).order_by(blob.c.digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobRecord:
    """A blob that the registry refers to."""

    digest: str
    size_bytes: int
    kind: BlobKind


@decoding("blob")
def list_blobs(connection: sa.Connection) -> list[BlobRecord]:
    """Return every blob that the registry refers to, by digest."""
    return [
        BlobRecord(digest=row.digest, size_bytes=row.size_bytes, kind=BlobKind(row.kind))
        for row in connection.execute(_ALL)
    ]


def count_blobs(connection: sa.Connection) -> int:
    """Return how many blobs the registry refers to."""
    return connection.execute(_COUNT).scalar_one()


def record_blob(connection: sa.Connection, *, digest: str, size_bytes: int, kind: BlobKind) -> None:
    """
    Note that a blob is in the store; noting it again changes nothing (the first kind stays).

    Raises:
        IntegrityError: It is known with another size: one of the two is not what its digest says.
    """
    known = connection.execute(_FIND, {"digest": digest}).scalar()
    if known is None:
        row = {"digest": digest, "size_bytes": size_bytes, "kind": str(kind), "created_at": utc_now()}
        connection.execute(_INSERT, row)
    elif known != size_bytes:
        raise IntegrityError(f"blob {digest} is recorded with {known} bytes, now it has {size_bytes}")
