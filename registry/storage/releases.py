"""Releases of a local store: `releases/DIGEST/` with `manifest.json` and the files it names, side by side."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from modelreg.registry.contents import StoredFile
from modelreg.registry.digests import sha256_hex
from modelreg.registry.errors import IntegrityError, NotFoundError
from modelreg.registry.regular_files import open_unbuffered
from modelreg.registry.storage.blobs import LocalBlobs
from modelreg.registry.storage.failures import storage_errors
from modelreg.registry.storage.interface import Progress, no_progress
from modelreg.registry.storage.layout import Layout
from modelreg.registry.storage.rules import MANIFEST_NAME, check_digest, check_release, manifest_files
from modelreg.registry.storage.writing import READ_ONLY_MODE, hash_file, write_file

if TYPE_CHECKING:
    from modelreg.registry.storage.marks import Marks

_TAKEN = (errno.ENOTEMPTY, errno.EEXIST)


class LocalReleases:
    """Releases below a `Layout`, laid out from its blobs."""

    def __init__(self, layout: Layout, blobs: LocalBlobs, marks: Callable[[], Marks]) -> None:
        self._layout = layout
        self._marks = marks
        self._ops = layout.ops
        self._blobs = blobs
        self._durable: dict[str, tuple[int, int]] = {}

    # -- publishing ----------------------------------------------------------------------------------------
    def publish(self, manifest: bytes, files: Sequence[StoredFile]) -> str:
        """Lay a release out, whole or not at all; one that is there is verified, and mended where it is damaged."""
        check_release(manifest, files)
        digest = sha256_hex(manifest)
        target = self._layout.release(digest)
        with storage_errors(target):
            self._marks().claim_new_release(digest)
            for file in files:
                self._marks().claim_blob(file.digest)
            self._layout.make_folder(self._layout.releases)
            if target.exists() or not self._lay_out(target, manifest, files):
                self._mend(target, manifest, files)
            self._make_durable(target)
        return digest

    def _make_durable(self, target: Path) -> None:
        """Make a release's name durable, whoever gave it: once in this process, for as long as it is this folder."""
        state = target.stat()
        identity = (state.st_ino, state.st_ctime_ns)
        if self._durable.get(target.name) != identity:
            self._ops.fsync_dir(self._layout.releases)
            self._durable[target.name] = identity

    def _lay_out(self, target: Path, manifest: bytes, files: Sequence[StoredFile]) -> bool:
        """Return False if somebody published the same bytes meanwhile."""
        with self._layout.workspace() as workspace:
            folder = workspace / "release"
            self._ops.mkdir(folder)
            for file in files:
                self._make_folders(folder, file)
                self._lay_file(folder / file.path, file)
            write_file(self._ops, folder / MANIFEST_NAME, manifest, mode=READ_ONLY_MODE)
            for inside in sorted({folder, *(f for file in files for f in _folders(folder, file))}, reverse=True):
                self._ops.fsync_dir(inside)
            try:
                self._ops.rename_folder(folder, target)
            except OSError as error:
                if error.errno not in _TAKEN:
                    raise
                return False
        return True

    def _mend(self, target: Path, manifest: bytes, files: Sequence[StoredFile]) -> None:
        """Replace what is damaged, file by file: each is right or wrong for itself, and no reader sees a gap."""
        stated = StoredFile(path=MANIFEST_NAME, digest=sha256_hex(manifest), size_bytes=len(manifest))
        damaged = [file for file in (*files, stated) if not _is_sound(target, file)]
        if not damaged:
            return
        with self._layout.workspace() as workspace:
            temporary = workspace / "file"
            for file in damaged:
                if file is stated:
                    write_file(self._ops, temporary, manifest, mode=READ_ONLY_MODE)
                else:
                    self._lay_file(temporary, file)
                self._make_folders(target, file)
                self._ops.replace(temporary, target / file.path)
                for inside in (*_folders(target, file), target):
                    self._ops.fsync_dir(inside)

    def _make_folders(self, release: Path, file: StoredFile) -> None:
        for folder in reversed(_folders(release, file)):
            with suppress(FileExistsError):
                self._ops.mkdir(folder)

    def _lay_file(self, path: Path, file: StoredFile) -> None:
        size_bytes = self._blobs.copy_to(path, file.digest, progress=no_progress, mode=READ_ONLY_MODE)
        if size_bytes != file.size_bytes:
            raise IntegrityError(
                f"release file {file.path!r} is stated to have {file.size_bytes} bytes, its blob has {size_bytes}"
            )

    # -- reading -------------------------------------------------------------------------------------------
    def read_manifest(self, release: str) -> bytes:
        """Return a release's manifest, verified against its digest."""
        path = self._layout.manifest(release)
        with storage_errors(path):
            try:
                with open_unbuffered(path) as opened:
                    data = opened.read()
            except FileNotFoundError:
                self.folder(release)
                raise IntegrityError(f"release {release} has lost its {MANIFEST_NAME}") from None
        found = sha256_hex(data)
        if found != release:
            raise IntegrityError(f"release {release} is damaged: {path} has SHA-256 {found}")
        return data

    def verify(self, release: str, *, progress: Progress) -> int:
        """Re-hash the manifest and every file it names; return the bytes read."""
        manifest = self.read_manifest(release)
        folder = self.folder(release)
        read_bytes = len(manifest)
        progress(read_bytes)
        for file in manifest_files(manifest, where=f"of release {release}"):
            with storage_errors(folder / file.path):
                if not _is_sound(folder, file, progress=progress):
                    raise IntegrityError(
                        f"release {release} is damaged: {folder / file.path} is missing or not what the manifest names"
                    )
            read_bytes += file.size_bytes
        return read_bytes

    def folder(self, release: str) -> Path:
        """
        Return the folder of a release.

        Raises:
            NotFoundError: There is none.
        """
        path = self._layout.release(release)
        with storage_errors(path):
            try:
                path.stat()
            except FileNotFoundError:
                self._layout.require_mounted()
                raise NotFoundError(f"release {release} is not in the store at {self._layout.root}") from None
        return path

    def iterate(self) -> Iterator[str]:
        """Yield the digest of every published release."""
        with storage_errors(self._layout.releases), os.scandir(self._layout.releases) as entries:
            for entry in entries:
                with suppress(IntegrityError):
                    check_digest(entry.name)
                    if entry.is_dir(follow_symlinks=False):
                        yield entry.name


def _folders(release: Path, file: StoredFile) -> list[Path]:
    """Return the folders between a release and one of its files, the deepest first."""
    path = release / file.path
    return [folder for folder in path.parents if release in folder.parents]


def _is_sound(release: Path, file: StoredFile, *, progress: Progress = no_progress) -> bool:
    try:
        with open_unbuffered(release / file.path) as opened:
            if os.fstat(opened.fileno()).st_size != file.size_bytes:
                return False
            found, _ = hash_file(opened, progress=progress)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False
    return found == file.digest
