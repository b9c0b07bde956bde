"""What every store does alike with notes and marks, whatever it is made of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from modelreg.registry.storage.rules import manifest_files

if TYPE_CHECKING:
    from modelreg.registry.storage.marks import Mark, Marks
    from modelreg.registry.storage.notes import MayTake, Note, NoteInfo, Notes


class _Blobs(Protocol):
    def has_blob(self, digest: str) -> bool: ...


class _Releases(Protocol):
    def read_manifest(self, release: str) -> bytes: ...


class _Collection(Protocol):
    def collecting(self, *, timeout_s: float) -> AbstractContextManager[MayTake]: ...

    def is_left(self, note: Note, /) -> bool: ...


class NotedStorage:
    """The part of a `Storage` that its notes and marks are; a store that has these parts inherits it."""

    _blobs: _Blobs
    _releases: _Releases

    @property
    def _notes(self) -> Notes:
        raise NotImplementedError

    @property
    def _collection(self) -> _Collection:
        raise NotImplementedError

    @cached_property
    def _marks(self) -> Marks:
        """Return what reads marks; who only reads what is active has no need of it."""
        from modelreg.registry.storage.marks import Marks  # noqa: PLC0415 - start-up time

        return Marks(self._notes, is_left=self._collection.is_left)

    # -- notes ---------------------------------------------------------------------------------------------
    def store_time(self) -> datetime:
        """Return what time it is by the store's clock."""
        return self._notes.store_time()

    def list_notes(self, folder: str) -> Iterator[NoteInfo]:
        """Yield the notes below a folder, in no order."""
        return self._notes.list_notes(folder)

    def read_note(self, name: str) -> Note | None:
        """Return a note, or None if it is not there."""
        return self._notes.read_note(name)

    def write_note(self, name: str, data: bytes, *, replaces: Note | None) -> bool:
        """Write a note in place of `replaces`; return False, and do nothing, if another is there."""
        return self._notes.write_note(name, data, replaces=replaces)

    def remove_note(self, name: str) -> None:
        """Remove a note, whatever it says; nothing happens where there is none."""
        self._notes.remove_note(name)

    # -- collection ----------------------------------------------------------------------------------------
    def keep_blob(self, digest: str) -> bool:
        """Return whether a blob is there; if it is, no collector that has marked it removes it now."""
        self._marks.claim_blob(digest)
        return self._blobs.has_blob(digest)

    def keep_release(self, release: str) -> None:
        """See to it that no collector removes a release and its blobs; raises NotFoundError where one has."""
        self._marks.claim_release(release)
        for file in manifest_files(self._releases.read_manifest(release), where=f"of release {release}"):
            self._marks.claim_blob(file.digest)

    def find_swept(self, release: str) -> Mark | None:
        """Return what a collector noted of a release that it removed."""
        return self._marks.find_swept(release)

    def collecting(self, *, timeout_s: float) -> AbstractContextManager[MayTake]:
        """Be the only collector of the store, as far as locks reach; raise `BusyError` after `timeout_s`."""
        return self._collection.collecting(timeout_s=timeout_s)
