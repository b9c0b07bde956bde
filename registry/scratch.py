"""Folders for work that ends with the process: gone when it is done, and swept by the next one when it died.

The owner holds a lock on its folder, which the kernel lets go when it dies: process ids come back, locks do not.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from modelreg.registry.storage.writing import host_name


@contextmanager
def scratch_folder(purpose: str) -> Iterator[Path]:
    """
    Make a folder in the system's temporary place, and remove it in the end.

    Folders of the same purpose whose owners died on this host are removed first.

    Args:
        purpose: A word in its name: `modelreg-PURPOSE-HOST.RANDOM`.
    """
    # Another host's locks may not reach us where the place is shared, so its name keeps us off.
    prefix = f"modelreg-{purpose}-{host_name()}."
    sweep_scratch(prefix)
    made: list[tuple[Path, int | None]] = []
    try:
        with _signals_held():
            made.append(_make(prefix))
        yield made[0][0]
    finally:
        for folder, lock in made:
            shutil.rmtree(folder, ignore_errors=True)
            if lock is not None:
                os.close(lock)


@contextmanager
def _signals_held() -> Iterator[None]:
    """Let a signal that asks us to stop wait until what is being made is known to whoever removes it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def sweep_scratch(prefix: str = "modelreg-") -> int:
    """Remove this host's folders that begin with `prefix` and whose owners died; return how many."""
    of_this_host = f"-{host_name()}."
    with os.scandir(tempfile.gettempdir()) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(prefix) and of_this_host in entry.name]
    return sum(_remove_abandoned(Path(tempfile.gettempdir()) / name) for name in names)


def _make(prefix: str) -> tuple[Path, int | None]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        try:
            return folder, _lock(folder)
        except (BlockingIOError, FileNotFoundError):
            continue  # another process swept it before it was locked
        except OSError:
            return folder, None  # no locks on this file system: then nobody sweeps there either


def _lock(folder: Path) -> int:
    """
    Lock a folder that still has its name; return the descriptor that holds it.

    Raises:
        BlockingIOError: Somebody alive holds it.
        FileNotFoundError: It is gone.
        OSError: There are no locks here, or it is no folder.
    """
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder.lstat()
    except BaseException:
        os.close(lock)
        raise
    return lock


def _remove_abandoned(folder: Path) -> bool:
    try:
        if folder.lstat().st_uid != os.geteuid():
            return False
        lock = _lock(folder)
    except OSError:
        return False
    try:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
    return not folder.exists()
