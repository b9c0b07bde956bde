"""Every call that changes the file system, as a numbered step, so that tests can stop, kill or fail at each one."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from modelreg.registry.errors import BusyError

OnStep = Callable[[int, str, Path], None]
"""Called before each step with its number (from 1), its name and the path it works on."""

_FICLONE = 0x40049409
_SYNC_FILE_RANGE_WRITE = 2
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_FIRST_WAIT_S = 0.0002
_LONGEST_WAIT_S = 0.005


def nothing(_number: int, _name: str, _path: Path) -> None:
    """Let the step happen."""


class FileOps:
    """The writing half of the file system. Errors are `OSError` and carry the path of their step.

    `fsync` that fails is final for its file: the kernel may have dropped the pages, so nobody calls it again on the
    same descriptor; the temporary file is removed and the whole operation reported as failed.
    """

    def __init__(self, on_step: OnStep = nothing) -> None:
        self._on_step = on_step
        self._numbers = itertools.count(1)

    @contextmanager
    def _step(self, name: str, path: Path) -> Iterator[None]:
        try:
            self._on_step(next(self._numbers), name, path)
            yield
        except OSError as error:
            if error.filename is None:
                error.filename = str(path)
            raise

    # -- files ---------------------------------------------------------------------------------------------
    def create(self, path: Path) -> int:
        """Create a file that must not exist yet; return its descriptor."""
        with self._step("create", path):
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)

    def write(self, fd: int, data: memoryview | bytes, path: Path) -> None:
        """Write all of `data`."""
        with self._step("write", path):
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]

    def clone(self, source: int, target: int, path: Path) -> bool:
        """Share the blocks of `source` with `target` (a reflink); return False where the file system cannot."""
        with self._step("clone", path):
            try:
                fcntl.ioctl(target, _FICLONE, source)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
                    raise
                return False
            return True

    def chmod(self, fd: int, mode: int, path: Path) -> None:
        """Set the mode of an open file."""
        with self._step("chmod", path):
            os.fchmod(fd, mode)

    def fsync(self, fd: int, path: Path) -> None:
        """Make an open file's bytes durable."""
        with self._step("fsync", path):
            os.fsync(fd)

    def close(self, fd: int, path: Path) -> None:
        """Close a file, its late errors included; the descriptor is gone either way."""
        try:
            with self._step("close", path):
                pass
        finally:
            os.close(fd)

    def start_write_back(self, fd: int, offset: int, size_bytes: int) -> None:
        """Ask the kernel to begin writing a range out, so that `fsync` finds little left. No promise, so no step."""
        if (ranged := _sync_file_range()) is not None:
            ranged(fd, offset, size_bytes, _SYNC_FILE_RANGE_WRITE)

    # -- names ---------------------------------------------------------------------------------------------
    def link(self, source: Path, target: Path) -> None:
        """Give `source` the second name `target`, which must not exist; rename where links are not to be had."""
        with self._step("link", target):
            try:
                os.link(source, target, follow_symlinks=False)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                if os.path.lexists(target):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
                os.rename(source, target)  # noqa: PTH104 - one kernel call, like its neighbours

    def replace(self, source: Path, target: Path) -> None:
        """Put `source` in the place of `target`, atomically."""
        with self._step("replace", target):
            os.replace(source, target)  # noqa: PTH105

    def rename_folder(self, source: Path, target: Path) -> None:
        """Move a folder to a name where no folder with something in it is."""
        with self._step("rename_folder", target):
            os.rename(source, target)  # noqa: PTH104

    def symlink(self, points_to: str, path: Path) -> None:
        """Make a symbolic link."""
        with self._step("symlink", path):
            try:
                os.symlink(points_to, path)  # noqa: PTH211
            except OSError as error:
                error.filename = str(path)  # Python names what the link points to
                raise

    def unlink(self, path: Path) -> None:
        """Remove a file's name."""
        with self._step("unlink", path):
            os.unlink(path)  # noqa: PTH108

    def mkdir(self, path: Path) -> None:
        """Make one folder."""
        with self._step("mkdir", path):
            os.mkdir(path)  # noqa: PTH102

    def rmdir(self, path: Path) -> None:
        """Remove an empty folder."""
        with self._step("rmdir", path):
            os.rmdir(path)  # noqa: PTH106

    def fsync_dir(self, path: Path) -> None:
        """Make the names in a folder durable."""
        with self._step("fsync_dir", path):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def remove_tree(self, path: Path) -> None:
        """Remove a folder and everything in it; links are removed, not followed."""
        with os.scandir(path) as entries:
            for entry in list(entries):
                if entry.is_dir(follow_symlinks=False):
                    self.remove_tree(Path(entry.path))
                else:
                    self.unlink(Path(entry.path))
        self.rmdir(path)

    # -- locks ---------------------------------------------------------------------------------------------
    def hold(self, folder: Path) -> int:
        """Open a folder of ours and mark it as in use until the descriptor is closed, by us or by our death."""
        with self._step("hold", folder):
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            with suppress(OSError):  # a file system without folder locks: age alone protects it then
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd

    @contextmanager
    def lock(self, path: Path, *, timeout_s: float, what: str) -> Iterator[None]:
        """
        Hold an exclusive lock on the file `path`, which is made if missing and never removed.

        The kernel frees the lock when its holder dies, however it dies: there are no stale locks.

        Raises:
            BusyError: `what` stayed locked for `timeout_s` seconds.
        """
        with self._step("lock", path):
            fd = _lock_file(path, deadline=time.monotonic() + timeout_s)
        if fd is None:
            raise BusyError(f"{what} stayed locked by another process for {timeout_s:g} s")
        try:
            yield
        finally:
            # What was done under the lock stands, so trouble on the way out is nobody's failure.
            with suppress(OSError), self._step("unlock", path):
                pass
            os.close(fd)


def _lock_file(path: Path, *, deadline: float) -> int | None:
    wait_s = _FIRST_WAIT_S
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still(fd, path):
                return fd
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(fd)
                return None
            time.sleep(wait_s)
            wait_s = min(wait_s * 1.5, _LONGEST_WAIT_S)
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _is_still(fd: int, path: Path) -> bool:
    """Return whether the locked file is still the one of that name: somebody may have cleared the folder."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


_ranged: list[Callable[[int, int, int, int], int] | None] = []


def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    if not _ranged:
        _ranged.append(_find_sync_file_range())
    return _ranged[0]


def _find_sync_file_range() -> Callable[[int, int, int, int], int] | None:
    # ctypes costs a few milliseconds to import, and only large files come here.
    import ctypes  # noqa: PLC0415

    function = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if function is None:
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    function.restype = ctypes.c_int
    found: Callable[[int, int, int, int], int] = function
    return found
