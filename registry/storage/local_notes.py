"""Notes of a local store: small files, each replaced whole under one lock, dated by the file system."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from datetime import datetime, timezone
from pathlib import Path

from modelreg.registry.digests import sha256_hex
from modelreg.registry.errors import InvalidReferenceError
from modelreg.registry.storage.failures import storage_errors
from modelreg.registry.storage.layout import Layout
from modelreg.registry.storage.notes import Note, NoteInfo, check_note_folder, check_note_name
from modelreg.registry.storage.writing import nonce, write_file

_PATIENCE_S = 30.0


class LocalNotes:
    """`Notes` below a `Layout`."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._ops = layout.ops

    def store_time(self) -> datetime:
        """Return the time that the file system gives to a file now."""
        path = self._layout.tmp / nonce()
        with storage_errors(path):
            self._layout.make_folder(self._layout.tmp)
            fd = self._ops.create(path)
            try:
                return _time(os.fstat(fd))
            finally:
                os.close(fd)
                self._ops.unlink(path)

    def list_notes(self, folder: str) -> Iterator[NoteInfo]:
        """Yield what lies below a folder, in no order."""
        top = self._layout.root / check_note_folder(folder)
        with storage_errors(top):
            yield from _notes_below(top, folder)

    def read_note(self, name: str) -> Note | None:
        """Return a note, or None if it is not there."""
        path = self._path(name)
        with storage_errors(path):
            return _read(path, name)

    def write_note(self, name: str, data: bytes, *, replaces: Note | None) -> bool:
        """Write a note in place of `replaces`; return False, and do nothing, if another is there."""
        path = self._path(name)
        with storage_errors(path), self._locked():
            found = _read(path, name)
            if (None if found is None else found.mark) != (None if replaces is None else replaces.mark):
                return False
            self._layout.make_folder(path.parent)
            with self._layout.workspace() as folder:
                write_file(self._ops, folder / "note", data)
                self._ops.replace(folder / "note", path)
            self._ops.fsync_dir(path.parent)
            return True

    def remove_note(self, name: str) -> None:
        """Remove a note, whatever it says; nothing happens where there is none."""
        path = self._path(name)
        with storage_errors(path), self._locked(), suppress(FileNotFoundError, NotADirectoryError):
            self._ops.unlink(path)
            self._ops.fsync_dir(path.parent)

    def _locked(self) -> AbstractContextManager[None]:
        lock = self._layout.root / "locks" / ".notes.lock"  # no model's name begins with a dot
        return self._ops.lock(lock, timeout_s=_PATIENCE_S, what="the notes of the store")

    def _path(self, name: str) -> Path:
        return self._layout.root / check_note_name(name)


def _read(path: Path, name: str) -> Note | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with os.fdopen(fd, "rb") as file:
        data = file.read()
        return Note(name=name, data=data, mark=sha256_hex(data), written_at=_time(os.fstat(fd)))


def _notes_below(folder: Path, name: str) -> Iterator[NoteInfo]:
    try:
        with os.scandir(folder) as opened:
            entries = list(opened)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        inside = f"{name}/{entry.name}"
        with suppress(FileNotFoundError, InvalidReferenceError):
            check_note_name(inside)
            if entry.is_dir(follow_symlinks=False):
                yield from _notes_below(Path(entry.path), inside)
            elif entry.is_file(follow_symlinks=False):
                yield NoteInfo(name=inside, written_at=_time(entry.stat(follow_symlinks=False)))


def _time(state: os.stat_result) -> datetime:
    return datetime.fromtimestamp(state.st_mtime_ns // 1000 / 1e6, timezone.utc)
