"""The archive of a bundle: a tar file with one spelling, so that the same content gives the same bytes.

Every header that a bundle may hold is known before it is read: the first member lists the others in order, and the
header of each is compared with the one we would have written. So no name, link, device, sparse file or duplicate of a
hostile archive is ever interpreted, and no more is read than the list says.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from modelreg.registry.errors import IntegrityError, UsageError
from modelreg.registry.storage.interface import Progress, no_progress

BLOCK = tarfile.BLOCKSIZE
_CHUNK_BYTES = 1 << 20
_END = bytes(2 * BLOCK)
_GZIP = b"\x1f\x8b"
_MODE = 0o444
_KINDS = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.DIRTYPE: "a folder",
    tarfile.FIFOTYPE: "a named pipe",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
    tarfile.GNUTYPE_LONGNAME: "a long name",
    tarfile.GNUTYPE_LONGLINK: "a long link",
    tarfile.XHDTYPE: "an extended header",
    tarfile.XGLTYPE: "an extended header",
}

_REPACKED = "Only what `modelreg export bundle` wrote is taken, not a repacked archive; fetch the file again."


def is_compressed_name(path: Path) -> bool:
    """
    Return whether a bundle of this name is compressed.

    Raises:
        UsageError: The name says neither.
    """
    if path.name.endswith((".tar.gz", ".tgz")):
        return True
    if path.name.endswith(".tar"):
        return False
    raise UsageError(f"{path} is no name of a bundle", hint="Call it FILE.tar, or FILE.tar.gz to have it compressed.")


def header(name: str, size_bytes: int) -> bytes:
    """Return the header of a member: of nobody, of 1970, read-only."""
    info = tarfile.TarInfo(name)
    info.size = size_bytes
    info.mode = _MODE
    return info.tobuf(tarfile.GNU_FORMAT)


class ArchiveWriter:
    """Writes members one after the other."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    @classmethod
    @contextmanager
    def on(cls, file: BinaryIO, *, compressed: bool) -> Iterator[ArchiveWriter]:
        """Write an archive to an open file; nothing in it tells when or where it was written."""
        if not compressed:
            writer = cls(file)
            yield writer
            writer._file.write(_END)
            return
        with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=file, mtime=0) as packed:
            writer = cls(packed)  # type: ignore[arg-type] # it writes, which is all that is asked of it
            yield writer
            writer._file.write(_END)

    def add_bytes(self, name: str, data: bytes) -> None:
        """Add a small member."""
        self._file.write(header(name, len(data)) + data + _padding(len(data)))

    def add(
        self, name: str, digest: str, size_bytes: int, source: BinaryIO, *, progress: Progress = no_progress
    ) -> None:
        """
        Add a member, verified on the way.

        Raises:
            IntegrityError: What is read does not match the digest or the size.
        """
        self._file.write(header(name, size_bytes))
        hasher, left = hashlib.sha256(), size_bytes
        while chunk := source.read(_CHUNK_BYTES):
            hasher.update(chunk)
            left -= len(chunk)
            if left < 0:
                break
            self._file.write(chunk)
            progress(len(chunk))
        if left or hasher.hexdigest() != digest:
            raise IntegrityError(f"blob {digest} is damaged in the store", hint="Run `modelreg verify`.")
        self._file.write(_padding(size_bytes))


class ArchiveReader:
    """Reads members that are known beforehand."""

    def __init__(self, file: BinaryIO, *, name: str, progress: Progress = no_progress) -> None:
        self._file = file
        self._name = name
        self._progress = progress

    @classmethod
    @contextmanager
    def on(cls, path: Path, opened: BinaryIO, *, progress: Progress = no_progress) -> Iterator[ArchiveReader]:
        """Read the archive in an open file, compressed or not; what cannot be unpacked is an `IntegrityError`."""
        opened.seek(0)
        head = opened.read(len(_GZIP))
        opened.seek(0)
        try:
            if head == _GZIP:
                with gzip.GzipFile(fileobj=opened, mode="rb") as packed:
                    yield cls(io.BufferedReader(packed), name=path.name, progress=progress)
            else:
                yield cls(opened, name=path.name, progress=progress)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise IntegrityError(f"{path.name} cannot be unpacked: {error}", hint="Fetch it again.") from None

    def read_first(self, name: str, *, limit_bytes: int) -> bytes:
        """
        Return the first member, whose size nobody knows yet.

        Raises:
            IntegrityError: It is not `name`, or larger than the limit.
        """
        block = self._take(BLOCK, "its first header")
        try:
            size_bytes = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape").size
        except (tarfile.HeaderError, ValueError):
            raise IntegrityError(f"{self._name} is no bundle: it does not start as one", hint=_REPACKED) from None
        if not 0 <= size_bytes <= limit_bytes:
            raise IntegrityError(
                f"{self._name} is refused: its list has {size_bytes:,} bytes, {limit_bytes:,} are allowed"
            )
        self._require_header(block, name, size_bytes)
        return self._body(name, size_bytes)

    def read(self, name: str, size_bytes: int) -> bytes:
        """Return the next member, which has to be this one."""
        self._require_header(self._take(BLOCK, f"the header of {name}"), name, size_bytes)
        return self._body(name, size_bytes)

    def copy(self, name: str, size_bytes: int, write: Callable[[bytes], object]) -> str:
        """Hand the next member, which has to be this one, to `write` in pieces; return its SHA-256."""
        self._require_header(self._take(BLOCK, f"the header of {name}"), name, size_bytes)
        hasher, left = hashlib.sha256(), size_bytes
        while left:
            chunk = self._take(min(left, _CHUNK_BYTES), name)
            hasher.update(chunk)
            write(chunk)
            left -= len(chunk)
            self._progress(len(chunk))
        self._skip_padding(name, size_bytes)
        return hasher.hexdigest()

    def require_end(self) -> None:
        """Check that nothing follows but the end of an archive."""
        if self._take(len(_END), "its end") != _END or self._file.read(1):
            raise IntegrityError(f"{self._name} has more in it than its list says", hint=_REPACKED)

    def _body(self, name: str, size_bytes: int) -> bytes:
        data = self._take(size_bytes, name)
        self._skip_padding(name, size_bytes)
        return data

    def _skip_padding(self, name: str, size_bytes: int) -> None:
        padding = _padding(size_bytes)
        if self._take(len(padding), name) != padding:
            raise IntegrityError(f"{self._name} hides something behind {name}", hint=_REPACKED)

    def _take(self, size_bytes: int, what: str) -> bytes:
        data = self._file.read(size_bytes) if size_bytes else b""
        if len(data) != size_bytes:
            raise IntegrityError(f"{self._name} is cut short in {what}", hint="Fetch it again.")
        return data

    def _require_header(self, block: bytes, name: str, size_bytes: int) -> None:
        if block != header(name, size_bytes):
            raise IntegrityError(
                f"{self._name} is refused: {_describe(block)} stands where {name} belongs", hint=_REPACKED
            )


def _padding(size_bytes: int) -> bytes:
    return bytes(-size_bytes % BLOCK)


def _describe(block: bytes) -> str:
    """Return what a header that is not ours announces, for the error alone."""
    if not any(block):
        return "the end of the archive"
    try:
        info = tarfile.TarInfo.frombuf(block, "utf-8", "backslashreplace")
    except (tarfile.HeaderError, ValueError):
        return "something that is no header"
    kind = _KINDS.get(info.type, "a member")
    return f"{kind} {info.name[:100]!a} of {info.size:,} bytes"
