"""Ways to hurt a store: stop, kill or fail at a step, damage what lies there; and a checker that trusts no API."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import stat
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from modelreg.registry.pointers import Pointer
from modelreg.registry.storage.files import FileOps
from modelreg.registry.storage.interface import Storage
from modelreg.registry.storage.local import LocalStorage
from modelreg.registry.storage.rules import manifest_files
from modelreg.registry.storage.s3 import S3Storage
from modelreg.registry.storage.s3_limits import S3Limits
from modelreg_testing.s3_server import LIMITS, S3Server, reopened
from modelreg_testing.storage import MemoryStorage

STEP_ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EMFILE)


class Stopped(BaseException):
    """The program ended at a step; no error handler is meant to catch it."""


def counting_ops() -> tuple[FileOps, list[str]]:
    """Return operations that write their steps' names to a list."""
    steps: list[str] = []
    return FileOps(lambda _number, name, _path: steps.append(name)), steps


def stopping_ops(step: str) -> FileOps:
    """Return operations that stop before the first step of that name."""

    def stop(_number: int, name: str, _path: Path) -> None:
        if name == step:
            raise Stopped

    return FileOps(stop)


def failing_ops(at: int, code: int, *, lasting: bool = False) -> FileOps:
    """Return operations whose step `at` fails; `lasting`: and every one after it."""

    def fail(number: int, _name: str, _path: Path) -> None:
        if number == at or (lasting and number > at):
            raise OSError(code, os.strerror(code))

    return FileOps(fail)


def killing_ops(at: int) -> FileOps:
    """Return operations that kill this process before step `at`."""

    def kill(number: int, _name: str, _path: Path) -> None:
        if number == at:
            os.kill(os.getpid(), signal.SIGKILL)

    return FileOps(kill)


def in_child(work: Callable[[], object]) -> int:
    """Run `work` in a forked process and return its `exit_code`."""
    return exit_code(start_child(work))


def start_child(work: Callable[[], object]) -> int:
    """Start `work` in a forked process and return its id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the test runner's own threads; the child uses none
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def exit_code(pid: int) -> int:
    """Wait for a child; return 0 if it came to its end, 1 if it raised, minus the signal if it was killed."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# -- kinds of stores ---------------------------------------------------------------------------------------
class StorageKind(Protocol):
    """One implementation of `Storage`, and how to hurt it, for the contract suite."""

    def make(self, folder: Path) -> Storage: ...

    def die_before_pointer(self, storage: Storage, new: Pointer, *, expected: Pointer | None) -> None:
        """Swap as a writer that dies when history is written and the pointer is not."""
        ...

    def damage_blob(self, storage: Storage, digest: str, data: bytes) -> None: ...

    def damage_release(self, storage: Storage, release: str, path: str, data: bytes | None) -> None: ...

    def damage_pointer(self, storage: Storage, model: str, channel: str, data: bytes) -> None: ...

    def damage_history(self, storage: Storage, pointer: Pointer, data: bytes) -> None: ...


class LocalKind:
    def make(self, folder: Path) -> Storage:
        return LocalStorage.create(folder / "store")

    def die_before_pointer(self, storage: Storage, new: Pointer, *, expected: Pointer | None) -> None:
        dying = LocalStorage(Path(storage.url), ops=stopping_ops("replace"))
        try:
            dying.swap_pointer(new, expected=expected)
        except Stopped:
            return
        raise AssertionError("the writer should have died")

    def damage_blob(self, storage: Storage, digest: str, data: bytes) -> None:
        overwrite(Path(storage.url) / "blobs" / "sha256" / digest[:2] / digest, data)

    def damage_release(self, storage: Storage, release: str, path: str, data: bytes | None) -> None:
        overwrite(Path(storage.url) / "releases" / release / path, data)

    def damage_pointer(self, storage: Storage, model: str, channel: str, data: bytes) -> None:
        overwrite(Path(storage.url) / "channels" / model / channel / "pointer.json", data)

    def damage_history(self, storage: Storage, pointer: Pointer, data: bytes) -> None:
        history = Path(storage.url) / "channels" / pointer.model / pointer.channel / "history"
        overwrite(history / f"{pointer.generation:012d}.json", data)


class MemoryKind:
    def make(self, folder: Path) -> Storage:
        return MemoryStorage()

    def die_before_pointer(self, storage: Storage, new: Pointer, *, expected: Pointer | None) -> None:
        assert isinstance(storage, MemoryStorage)
        assert storage.read_pointer(new.model, new.channel) == expected
        storage.made_channel(new.model, new.channel).history[new.generation] = new.to_bytes()

    def damage_blob(self, storage: Storage, digest: str, data: bytes) -> None:
        assert isinstance(storage, MemoryStorage)
        storage.blobs[digest] = data

    def damage_release(self, storage: Storage, release: str, path: str, data: bytes | None) -> None:
        assert isinstance(storage, MemoryStorage)
        if data is None:
            del storage.releases[release][path]
        else:
            storage.releases[release][path] = data

    def damage_pointer(self, storage: Storage, model: str, channel: str, data: bytes) -> None:
        assert isinstance(storage, MemoryStorage)
        storage.made_channel(model, channel).pointer = data

    def damage_history(self, storage: Storage, pointer: Pointer, data: bytes) -> None:
        assert isinstance(storage, MemoryStorage)
        storage.made_channel(pointer.model, pointer.channel).history[pointer.generation] = data


class S3Kind:
    """A store on a real server; `limits` decide what goes in parts."""

    def __init__(self, server: S3Server, *, limits: S3Limits | None = None) -> None:
        self._server = server
        self._limits = limits or LIMITS

    def make(self, folder: Path) -> Storage:
        return self._server.make_store(limits=self._limits)

    def die_before_pointer(self, storage: Storage, new: Pointer, *, expected: Pointer | None) -> None:
        assert isinstance(storage, S3Storage)

        def stop(_number: int, operation: str, key: str) -> None:
            if operation == "put_object" and key.endswith("/pointer.json"):
                raise Stopped

        try:
            reopened(storage, on_step=stop).swap_pointer(new, expected=expected)
        except Stopped:
            return
        raise AssertionError("the writer should have died")

    def damage_blob(self, storage: Storage, digest: str, data: bytes) -> None:
        self._put(storage, f"blobs/sha256/{digest[:2]}/{digest}", data)

    def damage_release(self, storage: Storage, release: str, path: str, data: bytes | None) -> None:
        key = f"releases/{release}/manifest.json"
        if path != "manifest.json":
            (file,) = (f for f in manifest_files(storage.read_manifest(release), where="here") if f.path == path)
            key = f"blobs/sha256/{file.digest[:2]}/{file.digest}"
        self._put(storage, key, data)

    def damage_pointer(self, storage: Storage, model: str, channel: str, data: bytes) -> None:
        self._put(storage, f"channels/{model}/{channel}/pointer.json", data)

    def damage_history(self, storage: Storage, pointer: Pointer, data: bytes) -> None:
        folder = f"channels/{pointer.model}/{pointer.channel}/history"
        self._put(storage, f"{folder}/{pointer.generation:012d}.json", data)

    def _put(self, storage: Storage, path: str, data: bytes | None) -> None:
        assert isinstance(storage, S3Storage)
        where = {"Bucket": storage.location.bucket, "Key": storage.location.key(path)}
        client = self._server.boto
        if data is None:
            client.delete_object(**where)
        else:
            client.put_object(**where, Body=data)


def overwrite(path: Path, data: bytes | None) -> None:
    """Put other bytes in the very file, mode and inode kept; None removes it."""
    if data is None:
        path.unlink()
        return
    mode = stat.S_IMODE(path.stat().st_mode)
    path.chmod(0o644)
    path.write_bytes(data)
    path.chmod(mode)


# -- the checker -------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Found:
    """What a store on disk holds; `reserved` counts history documents beyond the pointers."""

    generations: dict[tuple[str, str], int]
    reserved: int
    releases: frozenset[str]
    blobs: frozenset[str]


def check_store(root: Path) -> Found:
    """Read a store's files without modelreg and check every invariant; raise `AssertionError` at the first broken."""
    blobs = frozenset(_check_blob(path) for path in (root / "blobs" / "sha256").glob("*/*"))
    releases = frozenset(_check_release(path) for path in (root / "releases").iterdir())
    generations, reserved = {}, 0
    for folder in (root / "channels").glob("*/*"):
        generation, ahead = _check_channel(folder, releases)
        generations[folder.parent.name, folder.name] = generation
        reserved += ahead
    return Found(generations, reserved, releases, blobs)


def _check_blob(path: Path) -> str:
    assert _sha256(path.read_bytes()) == path.name, f"blob {path} is not its digest"
    assert path.parent.name == path.name[:2]
    assert path.stat().st_nlink == 1, f"blob {path} has another name"
    return path.name


def _check_release(folder: Path) -> str:
    manifest = (folder / "manifest.json").read_bytes()
    assert _sha256(manifest) == folder.name, f"manifest of {folder} is not its digest"
    for engine in json.loads(manifest)["engines"]:
        for file in engine["files"]:
            path = folder / file["path"]
            assert path.is_file(), f"{path} is missing"
            assert _sha256(path.read_bytes()) == file["sha256"], f"{path} is damaged"
            assert path.stat().st_nlink == 1, f"{path} shares its inode"
    return folder.name


def _check_channel(folder: Path, releases: frozenset[str]) -> tuple[int, int]:
    history = {int(path.stem): path.read_bytes() for path in (folder / "history").glob("*.json")}
    assert sorted(history) == list(range(1, len(history) + 1)), f"{folder} has a gap: {sorted(history)}"
    previous = ""
    for number in sorted(history):
        body = _check_document(history[number])
        assert body["generation"] == number
        assert body["previous_txn"] == previous
        assert body["release"] in releases, f"{folder} names an absent release"
        previous = body["txn"]
    pointer = folder / "pointer.json"
    if not pointer.exists():
        assert len(history) <= 1, f"{pointer} is missing"
        return 0, len(history)
    at = int(_check_document(pointer.read_bytes())["generation"])
    assert history.get(at) == pointer.read_bytes(), f"{pointer} is not in its history"
    assert len(history) - at in (0, 1)
    return at, len(history) - at


def _check_document(data: bytes) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(data)
    stated = body.pop("sha256")
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert _sha256(text.encode()) == stated, "a pointer is torn"
    return body


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
