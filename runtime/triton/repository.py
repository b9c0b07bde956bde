"""One model of a Triton repository on disk: what is there, and a version more, whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from modelreg.registry.contents import StoredFile
from modelreg.registry.digests import canonical_json, json_digest
from modelreg.registry.errors import UsageError
from modelreg.registry.regular_files import write_whole
from modelreg.registry.storage.files import FileOps
from modelreg.registry.storage.interface import Progress, Storage, no_progress
from modelreg.registry.storage.writing import write_file
from modelreg.registry.words import Json
from modelreg.runtime.pull_place import folder_errors
from modelreg.runtime.staging import fill_folder, move_into_place, staged_folder
from modelreg.runtime.triton.configuration import Configuration
from modelreg.runtime.triton.tensors import TritonRefusalError

CONFIG_NAME = "config.pbtxt"
MARK_NAME = "modelreg.json"
"""In each version's folder: which release it is. Triton does not look at it."""
_MARK_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """
    A model of a repository as it was found.

    Attributes:
        versions: The integer versions, ascending, whoever made them.
        marks: What we noted in those that are ours.
        config: The text of its configuration; None where there is none.
    """

    path: Path
    versions: tuple[int, ...]
    marks: dict[int, Json]
    config: str | None

    @property
    def exists(self) -> bool:
        """Return whether there is such a model."""
        return self.config is not None or bool(self.versions)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPlan:
    """
    What an export will do.

    Attributes:
        version: The version that holds the release.
        is_new: Whether it has to be written.
        changes_config: Whether the configuration has to be written.
    """

    entry: Entry
    version: int
    is_new: bool
    changes_config: bool
    mark: Json
    files: tuple[StoredFile, ...]
    config: str

    @property
    def folder(self) -> Path:
        """Return the folder of the version."""
        return self.entry.path / str(self.version)

    @property
    def size_bytes(self) -> int:
        """Return the bytes that are copied."""
        return sum(file.size_bytes for file in self.files) if self.is_new else 0


def read_entry(repository: Path, name: str) -> Entry:
    """
    Return what a repository has of a model.

    Raises:
        UsageError: The repository or the model is no folder.
    """
    path = repository / name
    for place in (repository, path):
        if place.exists() and not place.is_dir():
            raise UsageError(f"{place} is no folder", hint="Name the folder of a Triton model repository.")
    if not path.is_dir():
        return Entry(path=path, versions=(), marks={}, config=None)
    with folder_errors(path):
        names = [each.name for each in path.iterdir() if each.is_dir()]
        versions = sorted(int(each) for each in names if each.isascii() and each.isdigit() and not each.startswith("0"))
        marks = {number: mark for number in versions if (mark := _read_mark(path / str(number))) is not None}
        config = path / CONFIG_NAME
        text = config.read_text(encoding="utf-8", errors="replace") if config.is_file() else None
    return Entry(path=path, versions=tuple(versions), marks=marks, config=text)


def _read_mark(folder: Path) -> Json | None:
    try:
        mark = json.loads((folder / MARK_NAME).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return mark if isinstance(mark, dict) and mark.get("format") == _MARK_FORMAT else None


def make_mark(configuration: Configuration, *, release: Json) -> Json:
    """Return what is noted of a version: its release, and what Triton must be told to serve it."""
    body = configuration.body
    needed = ("platform", "input", "output", "default_model_filename", "cc_model_filenames")
    return {"format": _MARK_FORMAT, "interface": json_digest([body[key] for key in needed]), **release}


def plan_export(entry: Entry, configuration: Configuration, *, mark: Json, files: Sequence[StoredFile]) -> ExportPlan:
    """
    Decide what has to be written; nothing is.

    The release that the newest version holds is recognised. An older one that comes back, after a rollback, is a new
    version: Triton serves the largest number.

    Raises:
        UsageError: The model is there and was not written by us.
        TritonRefusalError: Versions that are to be served side by side have different interfaces.
    """
    if entry.exists and not entry.marks:
        raise UsageError(
            f"{entry.path} is a Triton model that modelreg did not write",
            hint="Choose another --name, or move it away.",
        )
    newest = entry.versions[-1] if entry.versions else 0
    same = _is_same(entry.marks.get(newest), mark)
    version = newest if same else newest + 1
    served = _served_beside(configuration, entry.versions, version)
    others = [each for each in served if entry.marks.get(each, {}).get("interface") != mark["interface"]]
    if others:
        raise TritonRefusalError(
            f"version {others[0]} in {entry.path} has another interface, and one configuration serves all versions",
            hint="Keep --version-policy latest:1, or choose another --name.",
        )
    return ExportPlan(
        entry=entry,
        version=version,
        is_new=not same,
        changes_config=entry.config != configuration.text,
        mark=mark,
        files=tuple(files),
        config=configuration.text,
    )


def _is_same(known: Json | None, mark: Json) -> bool:
    """Return whether two versions hold the same files of the same release; by which generation, does not matter."""
    keys = ("release", "files", "interface")
    return known is not None and all(known.get(key) == mark[key] for key in keys)


def _served_beside(configuration: Configuration, versions: Sequence[int], new: int) -> list[int]:
    """Return the versions that Triton would serve besides the new one."""
    policy = configuration.body["version_policy"]
    assert isinstance(policy, dict)
    older = [version for version in versions if version != new]
    if "latest" in policy:
        return older[::-1][: policy["latest"]["num_versions"] - 1]
    if "specific" in policy:
        wanted = policy["specific"]["versions"]
        missing = [version for version in wanted if version not in (*versions, new)]
        if missing:
            raise UsageError(f"--version-policy names version {missing[0]}, which is not there")
        if new not in wanted:
            raise UsageError(f"--version-policy leaves out version {new}, which holds this release")
        return [version for version in older if version in wanted]
    return older


def carry_out(plan: ExportPlan, storage: Storage, *, progress: Progress = no_progress) -> None:
    """
    Write what a plan says: the version's folder whole, then the configuration.

    A Triton that polls loads a new version when it sees it, and again when the configuration changed; until both are
    there it keeps what it serves.

    Raises:
        IntegrityError: A stored file is damaged; nothing has its name then.
        ConflictError: Another export was faster.
        StorageError: The folder cannot be written.
    """
    entry = plan.entry
    with folder_errors(entry.path):
        entry.path.parent.mkdir(parents=True, exist_ok=True)
        if not plan.is_new:
            if plan.changes_config:
                write_whole(entry.path / CONFIG_NAME, plan.config.encode())
            return
        place = entry.path if entry.exists else entry.path.parent
        with staged_folder(place) as staged:
            version = staged if entry.exists else staged / str(plan.version)
            version.mkdir(exist_ok=True)
            fill_folder(version, plan.files, storage, progress=progress)
            write_file(FileOps(), version / MARK_NAME, canonical_json(plan.mark) + b"\n")
            if not entry.exists:
                write_file(FileOps(), staged / CONFIG_NAME, plan.config.encode())
            move_into_place(staged, plan.folder if entry.exists else entry.path)
        if entry.exists and plan.changes_config:
            write_whole(entry.path / CONFIG_NAME, plan.config.encode())
