"""Small documents beside blobs, releases and pointers: who serves what, what is pinned, what is to be removed.

A note is replaced only by who has seen what it says: a write is a compare-and-swap, as for a pointer. Its time is
the store's own, never the writer's: two hosts need not agree on theirs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import NamedTuple, Protocol

from modelreg.registry.errors import InvalidReferenceError

LEASES, PINS, COLLECTION = "leases", "pins", "gc"
NOTE_FOLDERS = (LEASES, PINS, COLLECTION)
"""All that notes may lie in, below the root of a store."""

_PART = re.compile(r"[a-z0-9][a-z0-9._-]{0,150}", re.ASCII)


class NoteInfo(NamedTuple):  # and no dataclass: every command that opens a store makes it
    """That there is a note, and when it was written, by the store's clock."""

    name: str
    written_at: datetime


class Note(NamedTuple):  # as `NoteInfo`
    """What a note says; `mark` is what a writer has to show to replace it."""

    name: str
    data: bytes
    mark: str
    written_at: datetime


MayTake = Callable[[Note], bool]
"""Tells whether what a note's writer was at can be taken over: it is dead, and its last words are over."""


class Notes(Protocol):
    """Notes below the root of a store. Names are paths such as `leases/lenet/production/0123.json`.

    Two notes never have the same bytes: whoever writes one puts something random in.
    """

    def store_time(self) -> datetime:
        """Return what time it is by the store's clock: that of its file system, or of its server."""
        ...

    def list_notes(self, folder: str) -> Iterator[NoteInfo]:
        """Yield what lies below a folder, in no order."""
        ...

    def read_note(self, name: str) -> Note | None:
        """Return a note, or None if it is not there."""
        ...

    def write_note(self, name: str, data: bytes, *, replaces: Note | None) -> bool:
        """Write a note in place of `replaces` (None: where none is); return False, and do nothing, if another is there.

        A write whose answer was lost is settled by reading back.
        """
        ...

    def remove_note(self, name: str) -> None:
        """Remove a note, whatever it says; nothing happens where there is none."""
        ...


def check_note_name(name: str) -> str:
    """
    Return `name` unchanged if a note may have it.

    Raises:
        InvalidReferenceError: It could leave the folders of notes, or is one of them.
    """
    if name in NOTE_FOLDERS:
        raise InvalidReferenceError(f"{name!r} is a folder of notes")
    return check_note_folder(name)


def check_note_folder(name: str) -> str:
    """
    Return `name` unchanged if a folder of notes may have it.

    Raises:
        InvalidReferenceError: It could leave the folders of notes.
    """
    parts = name.split("/")
    if parts[0] not in NOTE_FOLDERS or not all(_PART.fullmatch(part) for part in parts):
        raise InvalidReferenceError(f"{name[:200]!r} is no name of a note")
    return name
