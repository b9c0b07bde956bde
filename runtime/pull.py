"""Bring the active release of a channel to a folder of this host, and make it current in one step. No database.

    DIR/releases/DIGEST/    manifest.json, and the files of the targets that were asked for, as the manifest names them
    DIR/pointer.json        the channel's pointer, replaced last: what is complete here
    DIR/current             a link to the release's folder, for servers that read no pointer

What is missing is downloaded by its digest, unless a release that is here already has the same file. A folder that is
current is never changed but to add to it or to mend it, file by file.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from modelreg.registry.contents import StoredFile
from modelreg.registry.digests import sha256_hex
from modelreg.registry.errors import IntegrityError
from modelreg.registry.manifest import Manifest, ReleasedEngine, parse_manifest
from modelreg.registry.pointers import Pointer, parse_pointer
from modelreg.registry.storage.failures import storage_errors
from modelreg.registry.storage.files import FileOps
from modelreg.registry.storage.interface import Progress, Storage, no_progress
from modelreg.registry.storage.rules import MANIFEST_NAME, check_digest, check_release_files
from modelreg.registry.storage.writing import TEMPORARY_SUFFIX, hash_file, nonce, temporary_file, write_hashing
from modelreg.runtime.pull_request import Pulled, PullRequest, choose_engines, require_forward

_KEPT_RELEASES = 2
_LOCK_TIMEOUT_S = 60.0
_STATE_NAME = "state.json"


@dataclass(slots=True, kw_only=True)
class _Work:
    """One pull under way: where bytes come from, and how many came. `known` maps a digest to where it may lie here."""

    storage: Storage
    known: dict[str, list[Path]]
    progress: Progress
    fetched_bytes: int = 0
    reused_bytes: int = 0
    brought: list[str] = field(default_factory=list)


class PullFolder:
    """The folder that a server reads; one process at a time changes it.

    Args:
        root: The folder, made where it is missing.
        ops: What does the writing; tests give one that stops at a step.
    """

    def __init__(self, root: Path, *, ops: FileOps | None = None) -> None:
        self.root = root
        self._ops = FileOps() if ops is None else ops
        self._releases = root / "releases"
        self._tmp = root / "tmp"

    # -- reading -------------------------------------------------------------------------------------------
    def read_pointer(self) -> Pointer | None:
        """
        Return the pointer of what is here, or None.

        Raises:
            IntegrityError: It is damaged.
        """
        path = self.root / "pointer.json"
        with storage_errors(path):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                return None
        try:
            return parse_pointer(data, where=str(path))
        except IntegrityError as error:
            raise IntegrityError(str(error), hint=f"Remove {path} and pull again.") from None

    def find_mark(self, request: PullRequest) -> str:
        """Return what the store said of the pointer that is complete here, so that it need only say what is new."""
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError, IntegrityError):
            state = json.loads((self.root / _STATE_NAME).read_bytes())
            pointer = self.read_pointer()
            if pointer is not None and state["txn"] == pointer.txn and state["request"] == request.to_json():
                self._require_complete(pointer, request)
                return str(state["mark"])
        return ""

    def _require_complete(self, pointer: Pointer, request: PullRequest) -> None:
        folder = self._releases / check_digest(pointer.release)
        for engine in choose_engines(self._read_manifest(pointer), request):
            for file in engine.files:
                if (folder / file.path).stat().st_size != file.size_bytes:
                    raise IntegrityError(f"{folder / file.path} has another size")
        if os.readlink(self.root / "current") != _link_to(pointer):  # noqa: PTH115 - as text
            raise IntegrityError(f"{self.root / 'current'} leads elsewhere")

    def _read_manifest(self, pointer: Pointer) -> Manifest:
        path = self._releases / pointer.release / MANIFEST_NAME
        return parse_manifest(path.read_bytes(), where=str(path))

    def current(self, request: PullRequest) -> Pulled:
        """Return what `find_mark` has found complete, as a pull that changed nothing."""
        pointer = self.read_pointer()
        assert pointer is not None
        with storage_errors(self.root):
            engines = choose_engines(self._read_manifest(pointer), request)
        return self._tell(pointer, engines, changed=False)

    def _tell(
        self, pointer: Pointer, engines: Sequence[ReleasedEngine], *, changed: bool, work: _Work | None = None
    ) -> Pulled:
        folder = self._releases / pointer.release
        return Pulled(
            pointer=pointer,
            path=folder,
            plans={engine.target: folder / engine.plan.path for engine in engines},
            fetched_bytes=0 if work is None else work.fetched_bytes,
            reused_bytes=0 if work is None else work.reused_bytes,
            changed=changed,
        )

    # -- pulling -------------------------------------------------------------------------------------------
    def pull(
        self,
        storage: Storage,
        request: PullRequest,
        pointer: Pointer,
        *,
        mark: str = "",
        progress: Progress = no_progress,
    ) -> Pulled:
        """
        Make `pointer`'s release complete here and current; every file is hashed, what is damaged is fetched again.

        Raises:
            NotFoundError: The release has no engine for what is wanted.
            IntegrityError: What the store gave does not match its digest, or the channel went back: nothing changed.
            StorageError: The store or the folder failed: what was current stays so.
            UsageError: The folder holds another channel.
        """
        with storage_errors(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            with self._ops.lock(self.root / ".lock", timeout_s=_LOCK_TIMEOUT_S, what=f"folder {self.root}"):
                before = self.read_pointer()
                require_forward(before, pointer, self.root)
                self._make_folders()
                document = storage.read_manifest(pointer.release)
                manifest = parse_manifest(document, where=pointer.release[:12])
                engines = choose_engines(manifest, request)
                work = _Work(storage=storage, known=self._known_files(), progress=progress)
                self._complete(work, pointer.release, engines, document)
                changed = before != pointer or bool(work.brought)
                self._make_current(pointer)
                self._note(request, pointer, mark=mark)
                self._prune(pointer.release)
        return self._tell(pointer, engines, changed=changed, work=work)

    def preview(self, storage: Storage, request: PullRequest, pointer: Pointer) -> Pulled:
        """
        Return what `pull` would come to; nothing is written.

        Raises:
            ModelregError: As `pull`.
        """
        with storage_errors(self.root):
            before = self.read_pointer()
            require_forward(before, pointer, self.root)
            engines = choose_engines(
                parse_manifest(storage.read_manifest(pointer.release), where=pointer.release[:12]), request
            )
            work = _Work(storage=storage, known=self._known_files(), progress=no_progress)
            folder = self._releases / check_digest(pointer.release)
            for file in [file for engine in engines for file in engine.files]:
                if _matches(folder / file.path, file):
                    work.reused_bytes += file.size_bytes
                    continue
                work.brought.append(file.path)
                if any(_matches(path, file) for path in work.known.get(file.digest, ())):
                    work.reused_bytes += file.size_bytes
                else:
                    work.fetched_bytes += file.size_bytes
        return self._tell(pointer, engines, changed=before != pointer or bool(work.brought), work=work)

    def _make_folders(self) -> None:
        for folder in (self._releases, self._tmp):
            with suppress(FileExistsError):
                self._ops.mkdir(folder)
        for left in self._tmp.iterdir():  # we hold the lock, so whoever wrote it died
            self._ops.unlink(left)
        self._ops.fsync_dir(self.root)

    def _complete(self, work: _Work, release: str, engines: Sequence[ReleasedEngine], document: bytes) -> None:
        folder = self._releases / check_digest(release)
        files = [file for engine in engines for file in engine.files]
        check_release_files(files)
        for inside in _folders(folder, files):
            with suppress(FileExistsError):
                self._ops.mkdir(inside)
        for file in files:
            if _matches(folder / file.path, file):
                work.reused_bytes += file.size_bytes
            else:
                self._bring(work, file, folder / file.path)
        stated = StoredFile(path=MANIFEST_NAME, digest=sha256_hex(document), size_bytes=len(document))
        if not _matches(folder / MANIFEST_NAME, stated):
            with temporary_file(self._ops, self._tmp, document) as temporary:
                self._ops.replace(temporary, folder / MANIFEST_NAME)
        for inside in reversed(_folders(folder, files)):
            self._ops.fsync_dir(inside)
        self._ops.fsync_dir(self._releases)

    def _bring(self, work: _Work, file: StoredFile, target: Path) -> None:
        with self._new_name() as temporary:
            if self._copy(work.known.get(file.digest, ()), temporary, file):
                work.reused_bytes += file.size_bytes
                work.progress(file.size_bytes)
            else:
                found_bytes = work.storage.fetch_blob(file.digest, temporary, progress=work.progress)
                if found_bytes != file.size_bytes:
                    raise IntegrityError(
                        f"release file {file.path!r} has {found_bytes} bytes, the manifest says {file.size_bytes}"
                    )
                work.fetched_bytes += found_bytes
            self._ops.replace(temporary, target)
        work.brought.append(file.path)

    def _copy(self, sources: Sequence[Path], target: Path, file: StoredFile) -> bool:
        """Copy the first source that still has the right bytes; share its blocks where the file system can."""
        for source in sources:
            with suppress(OSError), source.open("rb") as opened:
                fd = opened.fileno()
                found, _ = write_hashing(
                    self._ops,
                    target,
                    lambda buffer, fd=fd: os.readv(fd, [buffer]),  # type: ignore[misc]
                    expected_bytes=file.size_bytes,
                    progress=no_progress,
                    mode=None,
                    clone_from=fd,
                )
                if found == file.digest:
                    return True
            with suppress(FileNotFoundError):
                self._ops.unlink(target)
        return False

    def _known_files(self) -> dict[str, list[Path]]:
        """Return where a digest may lie among the releases that are here."""
        known: dict[str, list[Path]] = {}
        for folder in self._releases.iterdir() if self._releases.exists() else ():
            with suppress(OSError, IntegrityError):
                manifest = parse_manifest((folder / MANIFEST_NAME).read_bytes(), where=str(folder))
                for file in manifest.files:
                    known.setdefault(file.digest, []).append(folder / file.path)
        return known

    @contextmanager
    def _new_name(self) -> Iterator[Path]:
        path = self._tmp / nonce()
        try:
            yield path
        finally:
            with suppress(FileNotFoundError):
                path.unlink()

    # -- the switch ----------------------------------------------------------------------------------------
    def _make_current(self, pointer: Pointer) -> None:
        with temporary_file(self._ops, self._tmp, pointer.to_bytes()) as temporary:
            self._ops.replace(temporary, self.root / "pointer.json")
        link, points_to = self.root / "current", _link_to(pointer)
        if not link.is_symlink() or os.readlink(link) != points_to:  # noqa: PTH115 - as text
            temporary = self._tmp / f"{nonce()}{TEMPORARY_SUFFIX}"
            self._ops.symlink(points_to, temporary)
            self._ops.replace(temporary, link)
        self._ops.fsync_dir(self.root)

    def _note(self, request: PullRequest, pointer: Pointer, *, mark: str) -> None:
        state = {"mark": mark, "txn": pointer.txn, "request": request.to_json()}
        with temporary_file(self._ops, self._tmp, (json.dumps(state) + "\n").encode()) as temporary:
            self._ops.replace(temporary, self.root / _STATE_NAME)

    def _prune(self, release: str) -> None:
        """Remove releases but the current one and the one before: a server may still be reading that."""
        others = [folder for folder in self._releases.iterdir() if folder.name != release]
        others.sort(key=lambda folder: folder.stat().st_mtime_ns, reverse=True)
        for folder in others[_KEPT_RELEASES - 1 :]:
            shutil.rmtree(folder, ignore_errors=True)


def _folders(folder: Path, files: Sequence[StoredFile]) -> list[Path]:
    """Return the folder of a release and those inside it, parents first."""
    found = {folder}
    for file in files:
        found.update(parent for parent in (folder / file.path).parents if folder in parent.parents)
    return sorted(found)


def _matches(path: Path, file: StoredFile) -> bool:
    try:
        with path.open("rb") as opened:
            if os.fstat(opened.fileno()).st_size != file.size_bytes:
                return False
            return hash_file(opened, progress=no_progress)[0] == file.digest
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False


def _link_to(pointer: Pointer) -> str:
    return f"releases/{pointer.release}"
