"""What a collector does to a store in S3, where there is no lock, and no removal under a condition."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta

from modelreg.registry.digests import sha256_hex
from modelreg.registry.storage.files import FileOps
from modelreg.registry.storage.notes import MayTake, Note, Notes
from modelreg.registry.storage.s3_channels import lock_folder
from modelreg.registry.storage.s3_objects import S3Objects

LAST_WORDS = timedelta(minutes=15)
"""So long after it was signed a server may still act on a request of somebody who died: then its signature is void."""


class S3Collection:
    """Removal among the objects of a store."""

    def __init__(self, objects: S3Objects, notes: Notes) -> None:
        self._objects = objects
        self._notes = notes

    @contextmanager
    def collecting(self, *, timeout_s: float) -> Iterator[MayTake]:
        """Be the only collector of this user on this host; between hosts, marks decide one by one."""
        with ExitStack() as stack:
            folder = lock_folder()
            if folder is not None:
                name = sha256_hex(f"collection of {self._objects.where('')}".encode())
                path = folder / f"{name[:32]}.lock"
                stack.enter_context(FileOps().lock(path, timeout_s=timeout_s, what="the collection of the store"))
            yield self.is_left

    def is_left(self, note: Note) -> bool:
        """Return whether not even a late request of the collector that wrote a mark can remove anything now."""
        return self._notes.store_time() - note.written_at >= LAST_WORDS
