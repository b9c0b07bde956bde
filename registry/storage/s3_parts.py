"""The parts of a file on its way to S3: hashed while it is read, and held in memory that is used again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue

from modelreg.registry.storage.offered import OfferedFile
from modelreg.registry.storage.s3_objects import to_base64


class PartHasher:
    """Hashes a file that passes by in pieces, part by part."""

    def __init__(self, *, part_bytes: int) -> None:
        self._part_bytes = part_bytes
        self._hasher = hashlib.sha256()
        self._filled = 0
        self._done: list[str] = []

    def update(self, piece: memoryview) -> None:
        """Take the next bytes."""
        while piece:
            taken = piece[: self._part_bytes - self._filled]
            self._hasher.update(taken)
            self._filled += len(taken)
            piece = piece[len(taken) :]
            if self._filled == self._part_bytes:
                self._end_part()

    def finish(self) -> list[str]:
        """Return the SHA-256 of each part, in base64."""
        if self._filled:
            self._end_part()
        return self._done

    def _end_part(self) -> None:
        self._done.append(to_base64(self._hasher.digest()))
        self._hasher, self._filled = hashlib.sha256(), 0


class FilledPart:
    """A part of a file in memory that is used again once it is given back: clean memory costs as much as a hash."""

    def __init__(self, buffer: bytearray, size_bytes: int, free: SimpleQueue[bytearray]) -> None:
        self._buffer = buffer
        self._free = free
        self.data = memoryview(buffer)[:size_bytes]

    def body(self) -> bytearray | bytes:
        """Return the bytes as boto3 takes them, which is no view; only the last part is copied."""
        return self._buffer if len(self.data) == len(self._buffer) else self.data.tobytes()

    def give_back(self) -> None:
        """Let the next part have the memory."""
        self._free.put(self._buffer)


def read_parts(
    source: OfferedFile, *, part_bytes: int, see: Callable[[memoryview], None] = lambda _part: None
) -> Iterator[FilledPart]:
    """Yield a file in parts, to be given back; `see` is called with the bytes of each, in order."""
    free: SimpleQueue[bytearray] = SimpleQueue()
    while True:
        try:
            buffer = free.get_nowait()
        except Empty:
            buffer = bytearray(part_bytes)
        view, filled = memoryview(buffer), 0
        while filled < part_bytes and (count := source.read(view[filled:])):
            filled += count
        if not filled:
            return
        part = FilledPart(buffer, filled, free)
        see(part.data)
        yield part
