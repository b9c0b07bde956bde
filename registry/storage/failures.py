"""What the operating system refused, told as `StorageError`: the fact with its path, and the next step."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from modelreg.registry.errors import StorageError

_HINTS = {
    errno.ENOSPC: "Free some space there and run the command again; what was active stays active.",
    errno.EDQUOT: "Free some space within the quota, or raise it, and run the command again.",
    errno.EROFS: "The {what} is mounted read-only: reading works, changing it needs a writable mount.",
    errno.EACCES: "Run as a user that may write there, or fix the owner and mode of that path.",
    errno.EPERM: "Run as a user that may write there, or fix the owner and mode of that path.",
    errno.EIO: "The disk or its connection fails: look at the kernel's log before anything else.",
    errno.ESTALE: "The network mount went stale: mount it again.",
    errno.EMFILE: "Raise the limit on open files (`ulimit -n`).",
    errno.ENFILE: "The machine has no file handles left: close some programs.",
    errno.ENAMETOOLONG: "Put the {what} under a shorter path.",
}
_FULL = (errno.ENOSPC, errno.EDQUOT)


def storage_error(error: OSError, path: Path, *, what: str = "store") -> StorageError:
    """Return the `StorageError` that tells `error` of a `what`; `path` is named where the error itself names none."""
    where = Path(os.fsdecode(error.filename)) if isinstance(error.filename, (str, bytes)) else path
    reason = error.strerror or str(error) or type(error).__name__
    free = _free_bytes(where) if error.errno in _FULL else None
    room = "" if free is None else f" ({free:,} bytes free)"
    hint = _HINTS.get(error.errno or 0)
    return StorageError(f"{what} path {where}: {reason}{room}", hint=hint and hint.format(what=what))


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn any `OSError` of the block into a `StorageError` about `path`."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, path) from error


def _free_bytes(path: Path) -> int | None:
    for folder in (path, *path.parents):
        try:
            state = os.statvfs(folder)
        except OSError:
            continue
        return state.f_bavail * state.f_frsize
    return None
