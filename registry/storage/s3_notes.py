"""Notes of a store in S3: small objects, each replaced under its ETag, dated by the server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime

from modelreg.registry.errors import InvalidReferenceError, StorageError
from modelreg.registry.storage.notes import Note, NoteInfo, check_note_folder, check_note_name
from modelreg.registry.storage.s3_objects import Part, S3Objects
from modelreg.registry.storage.s3_protocol import Written


class S3Notes:
    """`Notes` among the objects of a store."""

    def __init__(self, objects: S3Objects) -> None:
        self._objects = objects

    def store_time(self) -> datetime:
        """
        Return the server's time.

        Raises:
            StorageError: It does not tell.
        """
        now = self._objects.server_time()
        if now is None:
            raise StorageError(f"the server of {self._objects.client.location} does not say what time it is")
        return now

    def list_notes(self, folder: str) -> Iterator[NoteInfo]:
        """Yield what lies below a folder, in no order."""
        for name, written_at in self._objects.list_dated(check_note_folder(folder)):
            with suppress(InvalidReferenceError):
                yield NoteInfo(name=check_note_name(f"{folder}/{name}"), written_at=written_at)

    def read_note(self, name: str) -> Note | None:
        """Return a note, or None if it is not there."""
        found = self._objects.read(check_note_name(name))
        if found is None:
            return None
        written_at = found.written_at if found.written_at is not None else self.store_time()
        return Note(name=name, data=found.data, mark=found.etag, written_at=written_at)

    def write_note(self, name: str, data: bytes, *, replaces: Note | None) -> bool:
        """Write a note in place of `replaces`; return False, and do nothing, if another is there."""
        path = check_note_name(name)
        for attempt in range(self._objects.client.limits.tries):
            if replaces is None:
                written = self._objects.create(path, data)
            else:
                written = self._objects.replace(path, data, etag=replaces.mark)
            if written is Written.YES:
                return True
            found = self._objects.read(path)
            if found is not None and found.data == data:
                return True  # an earlier try of ours, whose answer was lost
            if written is Written.REFUSED and not _is_as_expected(found, replaces):
                return False
            self._objects.client.pause(attempt)
        raise StorageError(
            f"store key {self._objects.where(path)}: the server does not answer",
            hint="Check the network, the endpoint and the server; what was active stays active.",
        )

    def remove_note(self, name: str) -> None:
        """Remove a note, whatever it says; nothing happens where there is none."""
        self._objects.delete_surely(check_note_name(name))


def _is_as_expected(found: Part | None, replaces: Note | None) -> bool:
    """Return whether what is there is what was to be replaced: then the refusal was of another kind (409)."""
    return (None if found is None else found.etag) == (None if replaces is None else replaces.mark)
