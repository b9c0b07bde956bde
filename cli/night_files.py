"""Where nights are kept: a folder for each, which appears whole or not at all, and `latest`, a link to the newest.

Files, and no rows or blobs: they are needed most when database or store are what is wrong.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from modelreg.registry.errors import BusyError, StorageError

if TYPE_CHECKING:
    from datetime import datetime

    from modelreg.registry.words import Json

DOCUMENT = "nightly.json"
LATEST = "latest"
_NIGHT = re.compile(r"\d{8}T\d{6}Z(-\d+)?")
_UNFINISHED = ".unfinished-"
_ABANDONED_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PastNights:
    """
    The nights that are kept.

    Attributes:
        documents: Of earlier nights, the oldest first.
        unreadable: The names of those that cannot be read.
        ahead: The names of those that are dated later than now: a clock was wrong then, or is.
    """

    documents: tuple[Json, ...]
    unreadable: tuple[str, ...]
    ahead: tuple[str, ...] = ()


def read_nights(folder: Path, *, newest: int, now: datetime) -> PastNights:
    """Return the newest nights up to now of a folder that need not be there."""
    from modelreg.validators.nights import is_comparable
    from modelreg.validators.reports.nightly import KIND, SCHEMA

    documents, unreadable = [], []
    nights, tonight = _list_nights(folder), _stem(now)
    # One that is ahead would be the night before for as long as it is: what must last three nights never did.
    ahead = tuple(night.name for night in nights if night.name[: len(tonight)] > tonight)
    for night in nights[: len(nights) - len(ahead)][-newest:]:
        try:
            body = json.loads((night / DOCUMENT).read_bytes(), parse_constant=_refuse)
            is_known = isinstance(body, dict) and (body.get("kind"), body.get("schema")) == (KIND, SCHEMA)
            is_known = is_known and is_comparable(body)
        except (OSError, ValueError, RecursionError):
            is_known, body = False, {}
        if is_known:
            documents.append(body)
        else:
            unreadable.append(night.name)
    return PastNights(documents=tuple(documents), unreadable=tuple(unreadable), ahead=ahead)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def require_place(folder: Path) -> None:
    """
    Make the folder of nights, before work that takes long.

    Raises:
        StorageError: Nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=_UNFINISHED):
            pass
    except OSError as error:
        raise StorageError(f"cannot write reports into {folder}: {error.strerror}") from None


def write_night(folder: Path, files: Mapping[str, bytes], *, at: datetime) -> Path:
    """
    Write a night's files and let `latest` point to them; return their folder.

    Until its name is there nothing of a night is: one that is killed leaves at most a hidden folder, which a later one
    removes.

    Raises:
        StorageError: They cannot be written.
    """
    try:
        _sweep(folder)
        unfinished = Path(tempfile.mkdtemp(dir=folder, prefix=_UNFINISHED))
        try:
            for name, content in files.items():
                _write(unfinished / name, content)
            unfinished.chmod(0o777 & ~_umask())
            night = _name(folder, unfinished, at)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        _point(folder, night)
        _sync(folder)
    except OSError as error:
        raise StorageError(f"cannot write the report of the night into {folder}: {error.strerror}") from None
    return night


def prune_nights(folder: Path, *, keep: int, but: Path | None = None) -> int:
    """
    Remove all but the newest nights, and return how many; other files in the folder are left alone.

    Args:
        folder: Where they are.
        keep: How many stay.
        but: One that stays in any case: tonight's, which is not the newest where a clock went back.
    """
    old = [night for night in _list_nights(folder)[:-keep] if night != but]
    for night in old:
        shutil.rmtree(night, ignore_errors=True)
    return len(old)


@contextmanager
def only_one(path: Path, *, wait_s: float) -> Iterator[None]:
    """
    Hold the lock of a registry's nightly; the kernel frees it when its holder dies.

    Raises:
        BusyError: Another one is at work and did not end in time.
        StorageError: The lock file cannot be written.
    """
    from modelreg.registry.storage.failures import storage_errors
    from modelreg.registry.storage.files import FileOps

    with storage_errors(path):
        lock = FileOps().lock(path, timeout_s=wait_s, what="the nightly of this registry")
        try:
            lock.__enter__()
        except BusyError as error:
            raise BusyError(
                str(error), hint="Another `modelreg nightly` is at work; wait for it, or add --wait SECONDS."
            ) from None
    try:
        yield
    finally:
        lock.__exit__(None, None, None)


def _list_nights(folder: Path) -> list[Path]:
    try:
        found = [path for path in folder.iterdir() if _NIGHT.fullmatch(path.name) and (path / DOCUMENT).is_file()]
    except OSError:
        return []
    return sorted(found, key=lambda path: (path.name[:16], int(path.name[17:] or 0)))


def _name(folder: Path, unfinished: Path, at: datetime) -> Path:
    """Give a finished folder its name; a rename never replaces a folder with something in it."""
    stem = _stem(at)
    for number in range(1, 1000):
        night = folder / (stem if number == 1 else f"{stem}-{number}")
        try:
            unfinished.rename(night)
        except OSError:
            if not night.exists():
                raise
        else:
            return night
    raise FileExistsError(17, "there are too many nights of this very second", str(folder))


def _stem(at: datetime) -> str:
    return at.strftime("%Y%m%dT%H%M%SZ")


def _point(folder: Path, night: Path) -> None:
    link = folder / f"{_UNFINISHED}{night.name}"
    with suppress(FileNotFoundError):
        link.unlink()
    link.symlink_to(night.name)
    link.replace(folder / LATEST)


def _sweep(folder: Path) -> None:
    """Remove what nightlies that were killed left behind; a folder may be shared, so only what is old."""
    for path in folder.glob(f"{_UNFINISHED}*"):
        with suppress(OSError):
            if time.time() - path.lstat().st_mtime < _ABANDONED_S:
                continue
            if path.is_symlink():
                path.unlink()
            else:
                shutil.rmtree(path)


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
