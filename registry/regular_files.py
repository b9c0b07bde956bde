"""Files that the user names: is a path one that can be read to its end, and writing one so that it is never half."""

from __future__ import annotations

import contextlib
import os
import stat
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from modelreg.registry.errors import StorageError

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def irregularity(mode: int) -> str:
    """Return what an `st_mode` is where it is no regular file, such as `a named pipe`; empty for a regular file."""
    return "" if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "no regular file")


def fault_of(path: Path) -> str:
    """Return why a path is no file to read, as the end of `PATH is ...`; empty where it is one. Nothing is opened."""
    try:
        kind = irregularity(path.stat().st_mode)
    except FileNotFoundError:
        return "a link to a file that does not exist" if path.is_symlink() else "not a file: nothing is there"
    except (OSError, ValueError) as error:
        return f"not readable: {getattr(error, 'strerror', None) or error}"
    return f"{kind}, not a file" if kind else ""


def open_without_waiting(path: Path) -> BinaryIO:
    """Open a file for reading; a pipe that nobody writes to is empty, instead of waiting for ever."""
    return open(path, "rb", opener=_open_now)


def open_unbuffered(path: Path) -> FileIO:
    """Do the same without a buffer, for whoever reads all of it at once: half the cost of a small file."""
    return open(path, "rb", buffering=0, opener=_open_now)


def _open_now(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def write_whole(path: Path, content: bytes) -> None:
    """
    Put `content` in place of what was at `path`: others read the old file or the new one.

    Raises:
        StorageError: It cannot be written, or what is there is no file.
    """
    fault = fault_of(path) if path.exists() else ""
    if fault:
        raise StorageError(f"{path} is {fault}, and is not replaced")
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
