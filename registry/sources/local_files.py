"""Files of the user, seen before they are read: what kind they are, and whether they changed since."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from modelreg.registry.errors import SourceError
from modelreg.registry.regular_files import irregularity


@dataclass(frozen=True, slots=True, kw_only=True)
class FileIdentity:
    """What changes when a file is written to or replaced."""

    device: int
    inode: int
    size_bytes: int
    modified_ns: int
    changed_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFile:
    """A file to be stored: its name inside the source, where it lies now, and its identity when inspected."""

    name: str
    path: Path
    identity: FileIdentity

    @property
    def size_bytes(self) -> int:
        """Return the bytes it had when inspected."""
        return self.identity.size_bytes


def shown(path: Path | str) -> str:
    """Return a path as messages show it: on one line, whatever its name holds."""
    text = str(path)
    return text if text.isprintable() else repr(text)


def identify(path: Path) -> FileIdentity:
    """
    Return the identity of a regular file, without opening it: opening a pipe would wait, a device may act.

    Raises:
        SourceError: It is not there, cannot be reached, or is no regular file.
    """
    try:
        return _identity(path.stat(), path)
    except FileNotFoundError:
        dangling = path.is_symlink()
        fact = "is a link to a file that does not exist" if dangling else "does not exist"
        raise SourceError(f"{shown(path)} {fact}") from None
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error


def open_regular(path: Path) -> tuple[BinaryIO, FileIdentity]:
    """
    Open a regular file for reading, unbuffered, and return it with its identity.

    Raises:
        SourceError: It is not there, cannot be read, or is no regular file.
    """
    identify(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise unreadable(path, error) from error
    file = os.fdopen(descriptor, "rb", buffering=0)
    try:
        return file, _identity(os.fstat(descriptor), path)
    except BaseException:
        file.close()
        raise


def require_unchanged(file: LocalFile) -> None:
    """
    Check that a file is the one that was inspected.

    Raises:
        SourceError: It was written to, replaced or removed since.
    """
    if identify(file.path) != file.identity:
        raise SourceError(
            f"{shown(file.path)} changed while it was being registered",
            hint="Wait until whatever writes it is done, and register again.",
        )


def unreadable(path: Path, error: OSError | ValueError) -> SourceError:
    """Return the error for a file that the system does not let us read."""
    reason = getattr(error, "strerror", None) or str(error)
    return SourceError(f"{shown(path)} cannot be read: {reason}")


def _identity(found: os.stat_result, path: Path) -> FileIdentity:
    if kind := irregularity(found.st_mode):
        raise SourceError(f"{shown(path)} is {kind}, not a file")
    return FileIdentity(
        device=found.st_dev,
        inode=found.st_ino,
        size_bytes=found.st_size,
        modified_ns=found.st_mtime_ns,
        changed_ns=found.st_ctime_ns,
    )
