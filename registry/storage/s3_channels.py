"""Channels of a store in S3: `pointer.json`, the only object that changes, beside a history that is only added to.

What to ask for and what to make of the answers is `s3_protocol`'s; here the asking is done.
"""

from __future__ import annotations

import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from modelreg.registry.digests import sha256_hex
from modelreg.registry.errors import (
    IntegrityError,
    InvalidReferenceError,
    ModelregError,
    NotFoundError,
    StorageError,
)
from modelreg.registry.pointers import Pointer
from modelreg.registry.storage.files import FileOps
from modelreg.registry.storage.interface import News
from modelreg.registry.storage.rules import (
    check_advance,
    check_channel,
    check_part_of_history,
    check_swap,
    no_pointer,
    parse_channel_pointer,
)
from modelreg.registry.storage.s3_objects import S3Objects
from modelreg.registry.storage.s3_protocol import (
    Answer,
    Document,
    HasHistory,
    MovePointer,
    Pause,
    ReadHistory,
    ReadPointer,
    Request,
    RequireRelease,
    Reserve,
    Steps,
    Written,
    complete_steps,
    read_steps,
    swap_steps,
)
from modelreg.registry.storage.s3_releases import S3Releases

T = TypeVar("T")

_FOLDER = "channels"


class S3Channels:
    """Channels among the objects of a store, pointing to its releases."""

    def __init__(self, objects: S3Objects, releases: S3Releases) -> None:
        self._objects = objects
        self._releases = releases

    # -- reading -------------------------------------------------------------------------------------------
    def read_pointer(self, model: str, channel: str) -> Pointer | None:
        """Return the verified pointer, read once, or None where the channel never had one."""
        found = self._run(self._talk(model, channel), read_steps())
        return None if found is None else found.pointer

    def poll_pointer(self, model: str, channel: str, *, mark: str) -> News | None:
        """Return the pointer with its ETag, None where it still has this one (one small request)."""
        talk = self._talk(model, channel)
        if mark:
            with suppress(NotFoundError):
                found = talk.read_pointer_if_changed(mark)
                return None if found is None else News(pointer=found.pointer, mark=found.etag)
        found = self._run(talk, read_steps())  # which tells of a lost pointer whose history is there
        if found is None:
            raise no_pointer(model, channel)
        return News(pointer=found.pointer, mark=found.etag)

    def read_history(self, model: str, channel: str, generation: int) -> Pointer:
        """Return one generation's pointer document, verified."""
        found = self._talk(model, channel).read_generation(generation)
        if found is None:
            raise NotFoundError(
                f"channel {model}@{channel} has no generation {generation} in its history",
                hint="Choose one that is there with --to-generation; `modelreg history` lists them.",
            )
        return found.pointer

    def list_generations(self, model: str, channel: str) -> list[int]:
        """Return the generations with a history document, ascending."""
        check_channel(model, channel)
        names = self._objects.list_files(f"{_FOLDER}/{model}/{channel}/history")
        return sorted(int(name[:12]) for name, _ in names if _is_generation(name))

    def list_channels(self) -> list[tuple[str, str]]:
        """Return (model, channel) of every channel that has a folder, sorted."""
        found = []
        for model in self._objects.list_folders(_FOLDER):
            for channel in self._objects.list_folders(f"{_FOLDER}/{model}"):
                with suppress(InvalidReferenceError):
                    check_channel(model, channel)
                    found.append((model, channel))
        return sorted(found)

    # -- moving --------------------------------------------------------------------------------------------
    def swap_pointer(self, new: Pointer, *, expected: Pointer | None) -> None:
        """Move the pointer from `expected` to `new`: the history reserves the generation, then the pointer moves."""
        check_swap(new, expected=expected)
        self._run(self._talk(new.model, new.channel), swap_steps(new, expected=expected))

    def complete_reserved(self, model: str, channel: str) -> Pointer | None:
        """Finish a swap that was reserved and not carried out; return the pointer as it is then."""
        found = self._run(self._talk(model, channel), complete_steps())
        return None if found is None else found.pointer

    def restore_history(self, document: Pointer) -> None:
        """Write a generation's document again that was lost or damaged; nothing happens if it is there."""
        talk = self._talk(document.model, document.channel)
        before, after = (talk.read_if_sound(document.generation + step) for step in (-1, 1))
        check_part_of_history(
            document,
            current=self.read_pointer(document.model, document.channel),
            before=before,
            after=after,
        )
        talk.restore(document)

    def advance_pointer(self, model: str, channel: str, generation: int) -> None:
        """Put the newest document of the history in the place of a pointer that is lost, damaged or older."""
        talk = self._talk(model, channel)
        current, etag = talk.look_at_pointer()
        found = talk.read_generation(generation)
        newest = max(self.list_generations(model, channel), default=0)
        document = None if found is None else found.pointer
        check_advance(document, generation=generation, newest=newest, current=current)
        assert found is not None
        self._releases.read_manifest(found.pointer.release)
        talk.put_pointer(found, etag=etag)

    def _talk(self, model: str, channel: str) -> _Talk:
        check_channel(model, channel)
        return _Talk(self._objects, self._releases, model, channel)

    def _run(self, talk: _Talk, steps: Steps[T]) -> T:
        try:
            request = next(steps)
            while True:
                try:
                    answer = talk.answer(request)
                except ModelregError as error:
                    request = steps.throw(error)
                else:
                    request = steps.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result

    @contextmanager
    def exclusive(self, model: str, channel: str, *, timeout_s: float) -> Iterator[None]:
        """
        Hold the channel against other commands of this user on this host: they wait instead of losing a race.

        Nothing depends on it; where no lock can be had, it is done without.
        """
        check_channel(model, channel)
        with ExitStack() as stack:
            folder = _lock_folder()
            if folder is not None:
                name = sha256_hex(f"{self._objects.where(_FOLDER)} {model}@{channel}".encode())
                path = folder / f"{name[:32]}.lock"
                what = f"channel {model}@{channel}"
                stack.enter_context(FileOps().lock(path, timeout_s=timeout_s, what=what))
            yield


class _Talk:
    """Answers the requests of one run of the protocol about one channel."""

    def __init__(self, objects: S3Objects, releases: S3Releases, model: str, channel: str) -> None:
        self._objects = objects
        self._releases = releases
        self._model = model
        self._channel = channel
        self._folder = f"{_FOLDER}/{model}/{channel}"
        self._pointer = f"{self._folder}/pointer.json"
        self._deadline = time.monotonic() + objects.client.limits.swap_patience_s

    def answer(self, request: Request) -> Answer:
        """Return what came of one request."""
        if isinstance(request, ReadPointer):
            return self._read_document(self._pointer)
        if isinstance(request, ReadHistory):
            return self.read_generation(request.generation)
        if isinstance(request, HasHistory):
            return self._objects.head(self._history(request.generation)) is not None
        if isinstance(request, Reserve):
            return self._objects.create(self._history(request.pointer.generation), request.pointer.to_bytes())
        if isinstance(request, MovePointer):
            return self._move(request)
        if isinstance(request, RequireRelease):
            self._releases.read_manifest(request.release)
            return None
        self._pause(request)
        return None

    def read_generation(self, generation: int) -> Document | None:
        """Return the history document of a generation, verified, or None."""
        return self._read_document(self._history(generation), generation=generation)

    def read_pointer_if_changed(self, etag: str) -> Document | None:
        """Return the pointer, None where it still has this ETag; raises NotFoundError where there is none."""
        found = self._objects.read_if_changed(self._pointer, etag=etag)
        return None if found is None else self._parse(self._pointer, found.data, found.etag)

    def read_if_sound(self, generation: int) -> Pointer | None:
        """Return the history document of a generation, None where it is gone or damaged."""
        with suppress(IntegrityError):
            found = self.read_generation(generation)
            return None if found is None else found.pointer
        return None

    def restore(self, document: Pointer) -> None:
        """Write a history document if it is not there, or over one that cannot be read."""
        path = self._history(document.generation)
        if self._objects.create_surely(path, document.to_bytes()) is Written.YES:
            return
        found = self._objects.read(path)
        if found is not None and self.read_if_sound(document.generation) is None:
            self._settle(lambda: self._objects.replace(path, document.to_bytes(), etag=found.etag), path)

    def look_at_pointer(self) -> tuple[Pointer | None, str | None]:
        """Return the pointer, None where it is gone or damaged, and its ETag, None where it is gone."""
        found = self._objects.read(self._pointer)
        if found is None:
            return None, None
        with suppress(IntegrityError):
            return self._parse(self._pointer, found.data, found.etag).pointer, found.etag
        return None, found.etag

    def put_pointer(self, document: Document, *, etag: str | None) -> None:
        """Write a document over the pointer with this ETag, or where there is none."""
        request = MovePointer(document.pointer, document.data, etag)
        self._settle(lambda: self._move(request), self._pointer)

    def _settle(self, write: Callable[[], Written], path: str) -> None:
        """Do one conditional write, whose answer may be lost: then whoever examines the store sees what came of it."""
        written = write()
        if written is not Written.YES:
            why = "the server does not answer" if written is Written.LOST else "it was changed meanwhile"
            raise StorageError(f"{self._objects.where(path)}: {why}", hint="Run `modelreg doctor` again.")

    def _read_document(self, path: str, *, generation: int | None = None) -> Document | None:
        found = self._objects.read(path)
        return None if found is None else self._parse(path, found.data, found.etag, generation=generation)

    def _parse(self, path: str, data: bytes, etag: str, *, generation: int | None = None) -> Document:
        pointer = parse_channel_pointer(
            data, model=self._model, channel=self._channel, where=self._objects.where(path), generation=generation
        )
        return Document(pointer, data, etag)

    def _move(self, request: MovePointer) -> Written:
        if request.etag is None:
            return self._objects.create(self._pointer, request.data)
        return self._objects.replace(self._pointer, request.data, etag=request.etag)

    def _pause(self, request: Pause) -> None:
        if time.monotonic() >= self._deadline:
            patience_s = self._objects.client.limits.swap_patience_s
            raise StorageError(f"{self._objects.where(self._folder)}: no clear answer for {patience_s:g} s")
        self._objects.client.pause(request.attempt)

    def _history(self, generation: int) -> str:
        return f"{self._folder}/history/{generation:012d}.json"


def _is_generation(name: str) -> bool:
    return len(name) == 17 and name.endswith(".json") and name[:12].isascii() and name[:12].isdigit()


def _lock_folder() -> Path | None:
    """Return a folder of this user for locks, or None where there is none that nobody else can write to."""
    folder = Path(tempfile.gettempdir()) / f"modelreg-locks-{os.geteuid()}"
    with suppress(OSError):
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        state = folder.lstat()
        if stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid() and not state.st_mode & 0o022:
            return folder
    return None
