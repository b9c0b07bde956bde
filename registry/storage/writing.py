"""New files: written whole, made durable, and only then given a name that anybody looks at."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from modelreg.registry.storage.copying import BUFFER_BYTES, BUFFERS, Read, copy_hashing
from modelreg.registry.storage.files import FileOps
from modelreg.registry.storage.interface import Progress

READ_ONLY_MODE = 0o444
TEMPORARY_SUFFIX = ".tmp"
_WRITE_BACK_FROM_BYTES = BUFFERS * BUFFER_BYTES


def host_name() -> str:
    """Return this host's name as it stands in temporary names."""
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in os.uname().nodename)[:64]


def nonce() -> str:
    """Return `HOST.PID.NONCE`, which says whose a temporary name is."""
    return f"{host_name()}.{os.getpid()}.{os.urandom(8).hex()}"


def write_file(ops: FileOps, path: Path, data: bytes, *, mode: int | None = None) -> None:
    """Write a new file and make its bytes durable; `mode` is set where given."""
    with _new_file(ops, path, mode=mode) as fd:
        ops.write(fd, data, path)


def write_hashing(
    ops: FileOps,
    path: Path,
    read: Read,
    *,
    expected_bytes: int,
    progress: Progress,
    mode: int | None = READ_ONLY_MODE,
    clone_from: int | None = None,
) -> tuple[str, int]:
    """
    Write what `read` gives to a new file, durably, and hash it on the way.

    Args:
        ops: Does the writing.
        path: A file that does not exist.
        read: Fills a buffer; 0 at the end.
        expected_bytes: About how much there is.
        progress: Told after each piece.
        mode: The file's mode, or None for the usual one.
        clone_from: A descriptor of the same bytes, to share their blocks where the file system can.

    Returns:
        The SHA-256 in hex, and the number of bytes.
    """
    with _new_file(ops, path, mode=mode) as fd:
        if clone_from is not None and ops.clone(clone_from, fd, path):
            return copy_hashing(
                lambda buffer: os.readv(fd, [buffer]), None, expected_bytes=expected_bytes, progress=progress
            )
        writer = _Writer(ops, fd, path, ahead=expected_bytes >= _WRITE_BACK_FROM_BYTES)
        return copy_hashing(read, writer.write, expected_bytes=expected_bytes, progress=progress)


def hash_file(file: BinaryIO | FileIO, *, progress: Progress) -> tuple[str, int]:
    """Return the SHA-256 in hex and the size of an open file, read from where it stands."""
    fd = file.fileno()
    return copy_hashing(
        lambda buffer: os.readv(fd, [buffer]),
        None,
        expected_bytes=os.fstat(fd).st_size,
        progress=progress,
    )


@contextmanager
def _new_file(ops: FileOps, path: Path, *, mode: int | None) -> Iterator[int]:
    fd = ops.create(path)
    try:
        yield fd
        if mode is not None:
            ops.chmod(fd, mode, path)
        ops.fsync(fd, path)
    except BaseException:
        with suppress(OSError):
            os.close(fd)
        raise
    ops.close(fd, path)


@contextmanager
def temporary_file(ops: FileOps, folder: Path, data: bytes) -> Iterator[Path]:
    """Write `data` durably to a new file in `folder`; the block renames it, or it is removed."""
    with temporary_files(ops, folder, data, modes=(None,)) as (path,):
        yield path


@contextmanager
def temporary_files(ops: FileOps, folder: Path, data: bytes, *, modes: Sequence[int | None]) -> Iterator[list[Path]]:
    """
    Write `data` durably to several new files in `folder`, one for each mode; what the block does not rename is removed.

    All are written, and on their way, before the first is waited for: the disk has them together, and a journal that is
    committed for one then holds the others too.
    """
    paths = [folder / f".{nonce()}{TEMPORARY_SUFFIX}" for _ in modes]
    try:
        with ExitStack() as written:
            for path, mode in zip(paths, modes, strict=True):
                fd = written.enter_context(_new_file(ops, path, mode=mode))
                ops.write(fd, data, path)
                if len(paths) > 1:
                    ops.start_write_back(fd, 0, len(data))
        yield paths
    finally:
        for path in paths:
            discard(ops, path)


def discard(ops: FileOps, path: Path) -> None:
    """Remove a temporary name if it is still there.

    Trouble here is nobody's failure: after a replace the operation stands, and a leftover is swept later.
    """
    if os.path.lexists(path):
        with suppress(OSError):
            ops.unlink(path)


class _Writer:
    """Writes pieces in order and starts the disk on each early, so that the fsync at the end finds little left."""

    def __init__(self, ops: FileOps, fd: int, path: Path, *, ahead: bool) -> None:
        self._ops = ops
        self._fd = fd
        self._path = path
        self._ahead = ahead
        self._offset = 0

    def write(self, piece: memoryview) -> None:
        self._ops.write(self._fd, piece, self._path)
        if self._ahead:
            self._ops.start_write_back(self._fd, self._offset, len(piece))
        self._offset += len(piece)
