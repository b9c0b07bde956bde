"""Folders for other programs to read: filled beside their place, and there whole or not at all."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from modelreg.registry.contents import StoredFile
from modelreg.registry.errors import ConflictError, IntegrityError
from modelreg.registry.storage.files import FileOps
from modelreg.registry.storage.interface import Progress, Storage
from modelreg.registry.storage.rules import check_release_files
from modelreg.registry.storage.writing import TEMPORARY_SUFFIX, host_name, nonce

_OPS = FileOps()


@contextmanager
def staged_folder(parent: Path) -> Iterator[Path]:
    """
    Make a hidden folder in `parent`, which has to be there; in the end it is removed, unless it got another name.

    Folders of the same kind whose owners died on this host go first: an owner holds a lock on its own.
    """
    sweep_staged(parent)
    folder = parent / f".{nonce()}{TEMPORARY_SUFFIX}"
    _OPS.mkdir(folder)
    lock = _OPS.hold(folder)
    try:
        yield folder
    finally:
        if folder.exists():
            _OPS.remove_tree(folder)
        os.close(lock)


def sweep_staged(parent: Path) -> int:
    """Remove what dead processes of this host left in `parent`; return how many folders."""
    swept = 0
    for folder in parent.glob(f".{host_name()}.*{TEMPORARY_SUFFIX}"):
        with suppress(OSError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _OPS.remove_tree(folder)
                swept += 1
            finally:
                os.close(lock)
    return swept


def fill_folder(folder: Path, files: Sequence[StoredFile], storage: Storage, *, progress: Progress) -> None:
    """
    Copy stored files into a folder, each verified against its digest on the way.

    Raises:
        IntegrityError: One is damaged, or would lie outside the folder.
        NotFoundError: One is gone.
    """
    check_release_files(files)
    for file in files:
        destination = folder / file.path
        destination.parent.mkdir(parents=True, exist_ok=True)
        size_bytes = storage.fetch_blob(file.digest, destination, progress=progress)
        if size_bytes != file.size_bytes:
            raise IntegrityError(f"{file.path} has {size_bytes} bytes, recorded are {file.size_bytes}")
    for inner in {folder, *(folder / file.path for file in files)}:
        _OPS.fsync_dir(inner if inner == folder else inner.parent)


def move_into_place(staged: Path, place: Path) -> None:
    """
    Give a filled folder its name.

    Raises:
        ConflictError: Something has that name by now.
    """
    try:
        if os.path.lexists(place) and (not place.is_dir() or any(place.iterdir())):
            raise ConflictError(f"{place} was made meanwhile", hint="Another export was faster; look, and try again.")
        _OPS.rename_folder(staged, place)
    except OSError as error:
        if os.path.lexists(place):
            raise ConflictError(f"{place} was made meanwhile: {error.strerror}", hint="Look, and try again.") from error
        raise
    _OPS.fsync_dir(place.parent)
