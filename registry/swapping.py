"""The steps that a promotion and a rollback share: the intent, the swap, and the outcome, told to the database.

After the swap nothing here may fail a command: the pointer has moved, and what the database could not be told, the
next promote or rollback of the channel records, or `doctor --fix` (`settling`).
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

import sqlalchemy as sa

from modelreg.registry import operations, releases
from modelreg.registry.database import Database
from modelreg.registry.errors import (
    ActivationConflictError,
    ActivationUnknownError,
    BusyError,
    DatabaseError,
    ModelregError,
)
from modelreg.registry.pointers import Pointer
from modelreg.registry.records import OperationRecord
from modelreg.registry.storage.interface import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class Swapper:
    """Moves one registry's pointers. `database` is None when it is gone."""

    database: Database | None
    storage: Storage
    actor: str

    def begin(
        self, connection: sa.Connection, *, channel_id: int, release_id: int, pointer: Pointer
    ) -> OperationRecord:
        """Write the intent."""
        return operations.begin_operation(
            connection,
            channel_id=channel_id,
            release_id=release_id,
            pointer=pointer,
            owner={"host": socket.gethostname(), "pid": os.getpid()},
            actor=self.actor,
        )

    def begin_known(self, pointer: Pointer) -> OperationRecord | None:
        """Write the intent of a rollback if the database is there and knows the release."""
        if self.database is None:
            return None
        try:
            with self.database.write_intent() as connection:
                channel_id = releases.find_channel(connection, model=pointer.model, name=pointer.channel)
                release_id = releases.find_release(connection, manifest_digest=pointer.release)
                if channel_id is None or release_id is None:
                    return None
                return self.begin(connection, channel_id=channel_id, release_id=release_id, pointer=pointer)
        except (DatabaseError, BusyError):
            return None

    def swap(self, pointer: Pointer, *, current: Pointer | None, operation: OperationRecord | None) -> bool:
        """
        Move the pointer and return whether the database was told.

        Raises:
            ActivationConflictError: Somebody else was first; the intent is aborted.
            ActivationUnknownError: It may have happened; the intent stays open until it is settled.
            StorageError: It did not happen and will not; the intent is aborted.
        """
        try:
            self.storage.swap_pointer(pointer, expected=current)
            return self._commit(operation, pointer)
        except KeyboardInterrupt as error:
            place = f"{pointer.model}@{pointer.channel}"
            raise ActivationUnknownError(
                f"interrupted while {place} was moved to generation {pointer.generation}: it may have happened",
                hint=f"Run `modelreg show {place}` to see what is active.",
            ) from error
        except ActivationUnknownError as error:
            self._close(operation, error, unknown=True)
            raise
        except ModelregError as error:
            self.abort(operation, error)
            raise

    def abort(self, operation: OperationRecord | None, error: ModelregError) -> None:
        """Note that an intent came to nothing."""
        self._close(operation, error, unknown=False)

    def _close(self, operation: OperationRecord | None, error: ModelregError, *, unknown: bool) -> None:
        if operation is None or self.database is None:
            return
        note = operations.mark_unknown if unknown else operations.abort_operation
        try:
            with self.database.write() as connection:
                note(connection, operation=operation, error=str(error), actor=self.actor)
        except (DatabaseError, BusyError):
            return  # it stays open, and the next command settles it

    def _commit(self, operation: OperationRecord | None, pointer: Pointer) -> bool:
        if operation is None or self.database is None:
            return False
        try:
            with self.database.write() as connection:
                operations.commit_operation(connection, operation=operation, pointer=pointer, actor=self.actor)
        except (DatabaseError, BusyError):
            return False
        return True


def new_txn() -> str:
    """Return a random transaction id, so that no two pointers have equal bytes."""
    return os.urandom(16).hex()


def check_expected(place: str, current: Pointer | None, expected: int | None) -> None:
    """
    Let `place`, `NAME@CHANNEL`, pass if it is at the generation that the user expects.

    None expects any, 0 that nothing is active yet.

    Raises:
        ActivationConflictError: It is at another one; who moved it there is named.
    """
    found = current.generation if current else 0
    if expected is not None and expected != found:
        raise ActivationConflictError(place, expected=expected, found=found, holder=current.actor if current else "")
