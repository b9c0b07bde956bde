"""Reading an object in pieces: several under way at once, in order, each asked for again where it comes cut short."""

from __future__ import annotations

import io
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING

from modelreg.registry.errors import NotFoundError, StorageError
from modelreg.registry.storage.s3_objects import Part, S3Objects
from modelreg.registry.storage.s3_parallel import run_ahead

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class PieceReader:
    """The bytes of one object, from its first to its last. The first piece is read at once and tells the size."""

    def __init__(self, objects: S3Objects, path: str, *, absent: Callable[[], NotFoundError]) -> None:
        self._objects = objects
        self._path = path
        self._absent = absent
        self._piece_bytes = objects.client.limits.part_bytes
        self._first = self._read(0, None)
        self.size_bytes = self._first.total_bytes
        self.etag = self._first.etag
        self._pieces = self._run()
        self._rest = memoryview(b"")

    def read(self, buffer: memoryview) -> int:
        """Fill `buffer` with the next bytes and return how many; 0 at the end."""
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def close(self) -> None:
        """Leave what is under way."""
        self._pieces.close()

    def _run(self) -> Generator[bytes, None, None]:
        yield self._first.data
        starts = range(len(self._first.data), self.size_bytes, self._piece_bytes)
        jobs = (partial(self._read, start, self.etag) for start in starts)
        for part in run_ahead(jobs, workers=self._objects.client.limits.workers):
            yield part.data

    def _read(self, start: int, etag: str | None) -> Part:
        return read_piece(self._objects, self._path, start=start, etag=etag, absent=self._absent)


def read_piece(
    objects: S3Objects, path: str, *, start: int, etag: str | None, absent: Callable[[], NotFoundError]
) -> Part:
    """
    Return the piece of an object that begins at `start`, whole.

    Raises:
        NotFoundError: The object is not there; `absent` makes it.
    """
    wanted = objects.client.limits.part_bytes
    part = objects.read_part(path, start=start, size_bytes=wanted, etag=etag)
    if part is None:
        raise absent()
    if len(part.data) != max(0, min(wanted, part.total_bytes - start)):
        raise StorageError(f"{objects.where(path)} came with another length than the server says")
    return part


class BlobReader(io.RawIOBase):
    """An object as a file to read and to seek in; one piece of it is in memory."""

    def __init__(self, objects: S3Objects, path: str, *, absent: Callable[[], NotFoundError]) -> None:
        super().__init__()
        self._objects = objects
        self._path = path
        self._absent = absent
        self._position = self._start = 0
        self._part = self._read(0, None)

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position and return it."""
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._part.total_bytes}[whence]
        if origin + offset < 0:
            raise ValueError(f"negative seek position {origin + offset}")
        self._position = origin + offset
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill `buffer` from the position on; 0 at the end."""
        if self._position >= self._part.total_bytes:
            return 0
        if not self._start <= self._position < self._start + len(self._part.data):
            self._part, self._start = self._read(self._position, self._part.etag), self._position
        view = memoryview(buffer).cast("B")
        piece = memoryview(self._part.data)[self._position - self._start :][: len(view)]
        view[: len(piece)] = piece
        self._position += len(piece)
        return len(piece)

    def _read(self, start: int, etag: str | None) -> Part:
        return read_piece(self._objects, self._path, start=start, etag=etag, absent=self._absent)
