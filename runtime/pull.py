"""Bring the active release of a channel to a folder of this host, and make it current in one step. No database.

    DIR/releases/DIGEST/    manifest.json, and the files of the targets that were asked for, as the manifest names them
    DIR/pointer.json        the channel's pointer, replaced last: what is complete here
    DIR/current             a link to the release's folder, for servers that read no pointer
    DIR/.modelreg-pull      a lock, and the sign that the folder is ours

What is missing is downloaded by its digest, unless a release that is here already has the same file. A folder that is
current is never changed but to add to it or to mend it, file by file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from modelreg.registry.contents import StoredFile
from modelreg.registry.digests import sha256_hex
from modelreg.registry.errors import ActivationUnknownError, IntegrityError
from modelreg.registry.manifest import Manifest, ReleasedEngine, parse_manifest
from modelreg.registry.pointers import Pointer, parse_pointer
from modelreg.registry.storage.files import FileOps
from modelreg.registry.storage.interface import Progress, Storage, no_progress
from modelreg.registry.storage.rules import MANIFEST_NAME, check_digest, check_release_files
from modelreg.registry.storage.writing import TEMPORARY_SUFFIX, nonce, temporary_file, write_hashing
from modelreg.runtime.pull_place import (
    MARKER_NAME,
    POINTER_NAME,
    STATE_NAME,
    folder_errors,
    known_files,
    matches,
    prune_releases,
    release_folders,
    require_ours,
)
from modelreg.runtime.pull_request import Pulled, PullRequest, choose_engines, require_forward

_LOCK_TIMEOUT_S = 60.0


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
        path = self.root / POINTER_NAME
        with folder_errors(path):
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
            state = json.loads((self.root / STATE_NAME).read_bytes())
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
        with folder_errors(self.root):
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
            ActivationUnknownError: The pointer has moved here, and the link beside it perhaps not.
            UsageError: The folder holds another channel, or something else.
        """
        with folder_errors(self.root):
            document, engines = self._choose(storage, request, pointer)
            self.root.mkdir(parents=True, exist_ok=True)
            with self._ops.lock(self.root / MARKER_NAME, timeout_s=_LOCK_TIMEOUT_S, what=f"folder {self.root}"):
                before = self.read_pointer()
                require_forward(before, pointer, self.root)
                self._make_folders()
                work = _Work(storage=storage, known=known_files(self._releases), progress=progress)
                self._complete(work, pointer.release, engines, document)
                changed = before != pointer or bool(work.brought)
                previous = self._find_previous(before, pointer)
                self._note(request, pointer, mark=mark, previous=previous)
                self._make_current(pointer)
                if previous:
                    prune_releases(self._releases, keep={pointer.release, previous})
        return self._tell(pointer, engines, changed=changed, work=work)

    def preview(self, storage: Storage, request: PullRequest, pointer: Pointer) -> Pulled:
        """
        Return what `pull` would come to; nothing is written.

        Raises:
            ModelregError: As `pull`.
        """
        with folder_errors(self.root):
            _, engines = self._choose(storage, request, pointer)
            before = self.read_pointer()
            work = _Work(storage=storage, known=known_files(self._releases), progress=no_progress)
            folder = self._releases / check_digest(pointer.release)
            for file in [file for engine in engines for file in engine.files]:
                if matches(folder / file.path, file):
                    work.reused_bytes += file.size_bytes
                    continue
                work.brought.append(file.path)
                if any(matches(path, file) for path in work.known.get(file.digest, ())):
                    work.reused_bytes += file.size_bytes
                else:
                    work.fetched_bytes += file.size_bytes
        return self._tell(pointer, engines, changed=before != pointer or bool(work.brought), work=work)

    def _choose(
        self, storage: Storage, request: PullRequest, pointer: Pointer
    ) -> tuple[bytes, tuple[ReleasedEngine, ...]]:
        """Return the manifest and the engines to bring; whatever can be refused is refused here, before a change."""
        require_ours(self.root)
        require_forward(self.read_pointer(), pointer, self.root)
        document = storage.read_manifest(pointer.release)
        engines = choose_engines(parse_manifest(document, where=pointer.release[:12]), request)
        check_release_files([file for engine in engines for file in engine.files])
        return document, engines

    def _make_folders(self) -> None:
        for folder in (self._releases, self._tmp):
            with suppress(FileExistsError):
                self._ops.mkdir(folder)
        for left in self._tmp.iterdir():  # we hold the lock, so whoever wrote it died
            if left.is_dir() and not left.is_symlink():
                self._ops.remove_tree(left)
            else:
                self._ops.unlink(left)
        self._ops.fsync_dir(self.root)

    def _complete(self, work: _Work, release: str, engines: Sequence[ReleasedEngine], document: bytes) -> None:
        folder = self._releases / check_digest(release)
        files = [file for engine in engines for file in engine.files]
        for inside in release_folders(folder, files):
            with suppress(FileExistsError):
                self._ops.mkdir(inside)
        for file in files:
            if matches(folder / file.path, file):
                work.reused_bytes += file.size_bytes
            else:
                self._bring(work, file, folder / file.path)
        stated = StoredFile(path=MANIFEST_NAME, digest=sha256_hex(document), size_bytes=len(document))
        if not matches(folder / MANIFEST_NAME, stated):
            with temporary_file(self._ops, self._tmp, document) as temporary:
                self._ops.replace(temporary, folder / MANIFEST_NAME)
        for inside in reversed(release_folders(folder, files)):
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
            self._ops.replace(temporary, self.root / POINTER_NAME)
        try:
            self._move_link(self.root / "current", _link_to(pointer))
            self._ops.fsync_dir(self.root)
        except OSError as error:
            raise ActivationUnknownError(
                f"{self.root} has generation {pointer.generation} in its pointer, and `current` may lead to the one"
                f" before: {error.strerror or error}",
                hint="Both are complete. Pull again: that moves what was not moved.",
            ) from error

    def _move_link(self, link: Path, points_to: str) -> None:
        if not link.is_symlink() or os.readlink(link) != points_to:  # noqa: PTH115 - as text
            temporary = self._tmp / f"{nonce()}{TEMPORARY_SUFFIX}"
            self._ops.symlink(points_to, temporary)
            self._ops.replace(temporary, link)

    def _find_previous(self, before: Pointer | None, pointer: Pointer) -> str:
        """Return the release that was current before `pointer`'s, or an empty string where nobody knows it."""
        if before is None:
            return ""
        if before.release != pointer.release:
            return before.release
        with suppress(OSError, ValueError, LookupError, TypeError):
            state = json.loads((self.root / STATE_NAME).read_bytes())
            if state["txn"] == before.txn:  # else it was noted for a switch that never came
                return str(state["previous"])
        return ""

    def _note(self, request: PullRequest, pointer: Pointer, *, mark: str, previous: str) -> None:
        """Write what the next pull wants to know; before the switch, since only then `previous` is known for sure."""
        state = {"mark": mark, "txn": pointer.txn, "request": request.to_json(), "previous": previous}
        with temporary_file(self._ops, self._tmp, (json.dumps(state) + "\n").encode()) as temporary:
            self._ops.replace(temporary, self.root / STATE_NAME)


def _link_to(pointer: Pointer) -> str:
    return f"releases/{pointer.release}"
