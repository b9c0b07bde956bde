"""What is in a folder that a pull fills: whether it may be taken over, which files are good, which releases go."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from pathlib import Path

from modelreg.registry.contents import StoredFile
from modelreg.registry.errors import IntegrityError, UsageError
from modelreg.registry.manifest import parse_manifest
from modelreg.registry.storage.failures import storage_error
from modelreg.registry.storage.interface import no_progress
from modelreg.registry.storage.rules import MANIFEST_NAME
from modelreg.registry.storage.writing import hash_file

MARKER_NAME = ".modelreg-pull"
"""The lock of a folder, made before anything else in it and never removed: what has it was made by a pull."""
POINTER_NAME = "pointer.json"
STATE_NAME = "state.json"
_RELEASE = re.compile(r"[0-9a-f]{64}")
_NO_CONTENT = frozenset({"lost+found"})  # in the root of a file system of its own


def require_ours(root: Path) -> None:
    """
    Check that a pull may change what is at `root`: it is new, empty, or was made by a pull, and every part is itself.

    Raises:
        UsageError: It is somebody else's (a store, a registry, anything), or a part of it leads or is something else.
    """
    if not os.path.lexists(root):
        return
    if not root.is_dir():
        raise UsageError(f"{root} is no folder", hint="Name a new or an empty folder.")
    names = set(os.listdir(root)) - _NO_CONTENT  # noqa: PTH208 - names alone
    if names and MARKER_NAME not in names:
        raise UsageError(
            f"{root} is not empty, and no `modelreg pull` made it: it holds {min(names)!r}",
            hint="Name a new or an empty folder.",
        )
    for name in sorted(names):
        if not _is_as_made(root / name):
            raise UsageError(f"{root / name} is not what a pull makes there", hint="Move it away and pull again.")


def _is_as_made(path: Path) -> bool:
    if path.name == "current":
        return path.is_symlink()
    if path.name in ("releases", "tmp"):
        return path.is_dir() and not path.is_symlink()
    if path.name in (POINTER_NAME, STATE_NAME, MARKER_NAME):
        return path.is_file() and not path.is_symlink()
    return True


@contextmanager
def folder_errors(root: Path) -> Iterator[None]:
    """Turn any `OSError` of the block into a `StorageError` about the folder."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, root, what="folder") from error


def matches(path: Path, file: StoredFile) -> bool:
    """Return whether there is a file at `path` with the bytes of `file`; all are read."""
    try:
        with path.open("rb") as opened:
            if os.fstat(opened.fileno()).st_size != file.size_bytes:
                return False
            return hash_file(opened, progress=no_progress)[0] == file.digest
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False


def known_files(releases: Path) -> dict[str, list[Path]]:
    """Return where a digest may lie among the releases that are in a folder; none where it is missing."""
    known: dict[str, list[Path]] = {}
    for folder in releases.iterdir() if releases.exists() else ():
        with suppress(OSError, IntegrityError):
            manifest = parse_manifest((folder / MANIFEST_NAME).read_bytes(), where=str(folder))
            for file in manifest.files:
                known.setdefault(file.digest, []).append(folder / file.path)
    return known


def release_folders(folder: Path, files: Sequence[StoredFile]) -> list[Path]:
    """Return the folder of a release and those inside it, parents first."""
    found = {folder}
    for file in files:
        found.update(parent for parent in (folder / file.path).parents if folder in parent.parents)
    return sorted(found)


def prune_releases(folder: Path, *, keep: Set[str]) -> None:
    """Remove the releases below `folder`, whole or begun, but those to keep; what has another name is not ours."""
    for release in folder.iterdir():
        if release.name not in keep and _RELEASE.fullmatch(release.name) and not release.is_symlink():
            shutil.rmtree(release, ignore_errors=True)
