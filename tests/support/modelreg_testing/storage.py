"""A store in memory that keeps every promise of `Storage`, and small things to put in any store."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from modelreg.registry.clock import utc_now
from modelreg.registry.contents import StoredFile
from modelreg.registry.digests import canonical_json, sha256_hex
from modelreg.registry.errors import BusyError, IntegrityError, NotFoundError, SourceError, StorageError
from modelreg.registry.pointers import Pointer, next_pointer
from modelreg.registry.storage.interface import BlobInfo, News, Progress, Storage, no_progress
from modelreg.registry.storage.marks import Mark, MarkedKind, Marks
from modelreg.registry.storage.notes import MayTake, Note, NoteInfo, check_note_folder, check_note_name
from modelreg.registry.storage.rules import (
    MANIFEST_NAME,
    check_channel,
    check_digest,
    check_release,
    check_swap,
    follows,
    manifest_files,
    no_pointer,
    parse_channel_pointer,
    require_expected,
)
from modelreg.registry.words import ActivationKind


@dataclass
class _Channel:
    pointer: bytes | None = None
    history: dict[int, bytes] = field(default_factory=dict)
    swap_lock: threading.Lock = field(default_factory=threading.Lock)
    command_lock: threading.Lock = field(default_factory=threading.Lock)


class MemoryStorage:
    """`Storage` in dictionaries; safe between threads, gone with the process.

    `blobs`, `releases` and `channels` are public so that tests can damage them.
    """

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.releases: dict[str, dict[str, bytes]] = {}
        self.channels: dict[tuple[str, str], _Channel] = {}
        self.notes: dict[str, tuple[bytes, datetime]] = {}
        self._making = threading.Lock()
        self._noting = threading.Lock()
        self._collecting = threading.Lock()
        self._marks = Marks(self, is_left=self._is_left)

    @property
    def url(self) -> str:
        return "memory://"

    def require_writable(self) -> None:
        pass

    # -- blobs ---------------------------------------------------------------------------------------------
    def put_file(self, path: Path, *, progress: Progress = no_progress) -> BlobInfo:
        if not path.is_file():
            raise SourceError(f"{path} is not a regular file")
        stored = self.put_bytes(path.read_bytes())
        progress(stored.size_bytes)
        return stored

    def put_bytes(self, data: bytes) -> BlobInfo:
        digest = sha256_hex(data)
        self._marks.claim(MarkedKind.BLOB, digest)
        self.blobs[digest] = bytes(data)
        return BlobInfo(digest=digest, size_bytes=len(data))

    def has_blob(self, digest: str) -> bool:
        return check_digest(digest) in self.blobs

    def open_blob(self, digest: str) -> BinaryIO:
        if not self.has_blob(digest):
            raise NotFoundError(f"blob {digest} is not in the store")
        return io.BytesIO(self.blobs[digest])

    def read_blob(self, digest: str) -> bytes:
        data = self.open_blob(digest).read()
        if sha256_hex(data) != digest:
            raise IntegrityError(f"blob {digest} is damaged")
        return data

    def fetch_blob(self, digest: str, destination: Path, *, progress: Progress = no_progress) -> int:
        data = self.read_blob(digest)
        try:
            with destination.open("xb") as file:
                file.write(data)
        except OSError as error:
            raise StorageError(f"{destination}: {error.strerror}") from error
        progress(len(data))
        return len(data)

    def verify_blob(self, digest: str, *, progress: Progress = no_progress) -> int:
        size_bytes = len(self.read_blob(digest))
        progress(size_bytes)
        return size_bytes

    def iterate_blobs(self) -> Iterator[BlobInfo]:
        for digest, data in list(self.blobs.items()):
            yield BlobInfo(digest=digest, size_bytes=len(data))

    # -- upkeep --------------------------------------------------------------------------------------------
    def count_leftovers(self) -> int:
        return 0

    def sweep_leftovers(self) -> int:
        return 0

    # -- releases ------------------------------------------------------------------------------------------
    def publish_release(self, manifest: bytes, files: Sequence[StoredFile]) -> str:
        check_release(manifest, files)
        for file in files:
            self._marks.claim(MarkedKind.BLOB, file.digest)
        content = {MANIFEST_NAME: bytes(manifest)}
        for file in files:
            content[file.path] = self.read_blob(file.digest)
            if len(content[file.path]) != file.size_bytes:
                raise IntegrityError(f"release file {file.path!r} has another size than stated")
        digest = sha256_hex(manifest)
        self._marks.claim(MarkedKind.RELEASE, digest)
        self.releases[digest] = content
        return digest

    def read_manifest(self, release: str) -> bytes:
        return self._release_file(release, MANIFEST_NAME, release)

    def _release_file(self, release: str, path: str, digest: str) -> bytes:
        if check_digest(release) not in self.releases:
            raise NotFoundError(f"release {release} is not in the store")
        data = self.releases[release].get(path)
        if data is None or sha256_hex(data) != digest:
            raise IntegrityError(f"release {release} is damaged: {path}")
        return data

    def verify_release(self, release: str, *, progress: Progress = no_progress) -> int:
        manifest = self.read_manifest(release)
        sizes = [len(manifest)]
        for file in manifest_files(manifest, where=release):
            sizes.append(len(self._release_file(release, file.path, file.digest)))
        for size_bytes in sizes:
            progress(size_bytes)
        return sum(sizes)

    def release_path(self, release: str) -> Path | None:
        self.read_manifest(release)
        return None

    def iterate_releases(self) -> Iterator[str]:
        yield from list(self.releases)

    # -- notes ---------------------------------------------------------------------------------------------
    def store_time(self) -> datetime:
        return utc_now()

    def list_notes(self, folder: str) -> Iterator[NoteInfo]:
        check_note_folder(folder)
        for name, (_, written_at) in list(self.notes.items()):
            if name.startswith(f"{folder}/"):
                yield NoteInfo(name=name, written_at=written_at)

    def read_note(self, name: str) -> Note | None:
        if (found := self.notes.get(check_note_name(name))) is None:
            return None
        return Note(name=name, data=found[0], mark=sha256_hex(found[0]), written_at=found[1])

    def write_note(self, name: str, data: bytes, *, replaces: Note | None) -> bool:
        with self._noting:
            found = self.read_note(name)
            if (found and found.mark) != (replaces and replaces.mark):
                return False
            self.notes[name] = (bytes(data), self.store_time())
            return True

    def remove_note(self, name: str) -> None:
        with self._noting:
            self.notes.pop(check_note_name(name), None)

    # -- collection ----------------------------------------------------------------------------------------
    def keep_blob(self, digest: str) -> bool:
        self._marks.claim(MarkedKind.BLOB, digest)
        return self.has_blob(digest)

    def keep_release(self, release: str) -> None:
        self._marks.claim_release(release)
        for file in manifest_files(self.read_manifest(release), where=release):
            self._marks.claim(MarkedKind.BLOB, file.digest)

    def find_swept(self, release: str) -> Mark | None:
        return self._marks.find_swept(release)

    @contextmanager
    def collecting(self, *, timeout_s: float) -> Iterator[MayTake]:
        if not self._collecting.acquire(timeout=timeout_s):
            raise BusyError(f"the collection of the store stayed locked for {timeout_s:g} s")
        try:
            yield lambda _note: True
        finally:
            self._collecting.release()

    def _is_left(self, _note: Note) -> bool:
        return not self._collecting.locked()

    def delete_blob(self, digest: str) -> None:
        self.blobs.pop(check_digest(digest), None)

    def delete_release(self, release: str) -> None:
        files = self.releases.get(check_digest(release), {})
        for path in [path for path in files if path != MANIFEST_NAME]:
            del files[path]

    def measure_release(self, release: str) -> int:
        files = self.releases.get(check_digest(release), {})
        return sum(len(data) for path, data in files.items() if path != MANIFEST_NAME)

    # -- pointers ------------------------------------------------------------------------------------------
    def _channel(self, model: str, channel: str) -> _Channel:
        check_channel(model, channel)
        return self.channels.get((model, channel), _Channel())

    def made_channel(self, model: str, channel: str) -> _Channel:
        """Return the channel, made if missing."""
        check_channel(model, channel)
        with self._making:
            return self.channels.setdefault((model, channel), _Channel())

    @contextmanager
    def exclusive(self, model: str, channel: str, *, timeout_s: float) -> Iterator[None]:
        lock = self.made_channel(model, channel).command_lock
        if not lock.acquire(timeout=timeout_s):
            raise BusyError(f"channel {model}@{channel} stayed locked for {timeout_s:g} s")
        try:
            yield
        finally:
            lock.release()

    def read_pointer(self, model: str, channel: str) -> Pointer | None:
        data = self._channel(model, channel).pointer
        if data is None:
            return None
        return parse_channel_pointer(data, model=model, channel=channel, where=f"{model}@{channel}")

    def poll_pointer(self, model: str, channel: str, *, mark: str) -> News | None:
        pointer = self.read_pointer(model, channel)
        if pointer is None:
            raise no_pointer(model, channel)
        return None if pointer.txn == mark else News(pointer=pointer, mark=pointer.txn)

    def swap_pointer(self, new: Pointer, *, expected: Pointer | None) -> None:
        check_swap(new, expected=expected)
        self.read_manifest(new.release)
        place = self.made_channel(new.model, new.channel)
        with place.swap_lock:
            current = self._complete(place, new.model, new.channel)
            if current is not None and current.txn == new.txn:
                return
            require_expected(current, new=new, expected=expected)
            place.history[new.generation] = new.to_bytes()
            place.pointer = new.to_bytes()

    def complete_reserved(self, model: str, channel: str) -> Pointer | None:
        place = self._channel(model, channel)
        with place.swap_lock:
            return self._complete(place, model, channel)

    def _complete(self, place: _Channel, model: str, channel: str) -> Pointer | None:
        current = self.read_pointer(model, channel)
        following = 1 if current is None else current.generation + 1
        if following not in place.history:
            return current
        reserved = self.read_history(model, channel, following)
        if not follows(reserved, current):
            raise IntegrityError(f"history of {model}@{channel} does not go on from its pointer")
        place.pointer = place.history[following]
        return reserved

    def read_history(self, model: str, channel: str, generation: int) -> Pointer:
        data = self._channel(model, channel).history.get(generation)
        if data is None:
            raise NotFoundError(f"channel {model}@{channel} has no generation {generation}")
        where = f"{model}@{channel} generation {generation}"
        return parse_channel_pointer(data, model=model, channel=channel, where=where, generation=generation)

    def list_generations(self, model: str, channel: str) -> list[int]:
        return sorted(self._channel(model, channel).history)

    def list_channels(self) -> list[tuple[str, str]]:
        return sorted(key for key, place in self.channels.items() if place.history)


def manifest_of(files: Sequence[StoredFile], *, note: str = "") -> bytes:
    """Return the least that a store reads in a manifest; `note` makes another release of the same files."""
    body = {"note": note, "engines": [{"files": [file.to_json() for file in files]}]}
    return canonical_json(body)


def stored_files(storage: Storage, content: dict[str, bytes]) -> tuple[StoredFile, ...]:
    """Store `content` as blobs and return the files of a release."""
    infos = {path: storage.put_bytes(data) for path, data in content.items()}
    return tuple(StoredFile(path=path, digest=info.digest, size_bytes=info.size_bytes) for path, info in infos.items())


def published(storage: Storage, *, note: str = "", content: dict[str, bytes] | None = None) -> str:
    """Publish a small release and return its digest."""
    files = stored_files(storage, content or {"cpu/model.onnx": b"plan of " + note.encode()})
    return storage.publish_release(manifest_of(files, note=note), files)


def pointer_after(
    current: Pointer | None,
    *,
    release: str,
    model: str = "lenet",
    channel: str = "production",
    txn: str = "",
    actor: str = "ada",
) -> Pointer:
    """Return a pointer that follows `current`."""
    return next_pointer(
        current,
        model=model,
        channel=channel,
        release=release,
        version=1,
        kind=ActivationKind.PROMOTE,
        rolls_back_to=None if current is None else current.generation,
        txn=txn or os.urandom(8).hex(),
        actor=actor,
        message="",
        at=utc_now(),
    )


def chain_of(storage: Storage, *, length: int, release: str) -> list[Pointer]:
    """Swap `length` times and return every pointer."""
    pointers: list[Pointer] = []
    for _ in range(length):
        current = pointers[-1] if pointers else None
        new = pointer_after(current, release=release)
        storage.swap_pointer(new, expected=current)
        pointers.append(new)
    return pointers
