"""A file that a user offers to a store: regular, readable, and the same at the end as at the start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from modelreg.registry.errors import SourceError
from modelreg.registry.regular_files import irregularity


class OfferedFile:
    """An open file that we read once. Its errors are `SourceError`, so nobody takes them for the store's."""

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self._path = path
        self._before = os.fstat(fd)
        self._read_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Return the size it had when it was opened."""
        return self._before.st_size

    def read(self, buffer: memoryview) -> int:
        """Fill `buffer` with the next bytes and return how many; 0 at the end."""
        with _source_errors(self._path):
            count = os.readv(self._fd, [buffer])
        self._read_bytes += count
        return count

    def read_all(self) -> bytes:
        """Return the bytes of a small file, checked to be what was opened."""
        buffer = memoryview(bytearray(self.size_bytes + 1))
        filled = 0
        while count := self.read(buffer[filled:]):
            filled += count
        self.require_unchanged()
        return bytes(buffer[:filled])

    def rewind(self) -> None:
        """Go back to the first byte, for another pass."""
        os.lseek(self._fd, 0, os.SEEK_SET)
        self._read_bytes = 0

    def require_unchanged(self) -> None:
        """
        Check that nobody wrote to the file while we read it.

        Raises:
            SourceError: Somebody did, so what we have may be half old and half new.
        """
        after = os.fstat(self._fd)
        before = (self._before.st_size, self._before.st_mtime_ns)
        if (after.st_size, after.st_mtime_ns) != before or self._read_bytes != self.size_bytes:
            raise SourceError(
                f"{self._path} changed while it was read", hint="Wait until it is written, and try again."
            )


@contextmanager
def offered_file(path: Path) -> Iterator[OfferedFile]:
    """
    Open a regular file for one pass.

    Raises:
        SourceError: It is not there, not regular (a pipe or device is not even opened), or cannot be read.
    """
    with _source_errors(path):
        _require_regular(path, path.stat().st_mode)
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _require_regular(path, os.fstat(fd).st_mode)
        yield OfferedFile(fd, path)
    finally:
        os.close(fd)


def _require_regular(path: Path, mode: int) -> None:
    if kind := irregularity(mode):
        raise SourceError(f"{path} is {kind}, not a regular file")


@contextmanager
def _source_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}") from error
