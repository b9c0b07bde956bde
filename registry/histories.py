"""Histories of channels: what is wrong with one, and lost documents written again by who still knows them.

A document is known to the pointer, if it is of the generation that is served, and to the database, if that generation
was activated with it: the intent keeps the whole pointer. What is immutable is what a document says: one that cannot be
read any more says nothing, and is written again like one that is gone; one that can be read is never replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from modelreg.registry.chains import find_history_faults
from modelreg.registry.database import Database
from modelreg.registry.errors import IntegrityError
from modelreg.registry.operations import find_activated_pointer
from modelreg.registry.pointers import Pointer
from modelreg.registry.storage.interface import RestoresHistory, Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What a channel's history says: `documents` by generation, and why others cannot be read (`unreadable`)."""

    documents: Mapping[int, Pointer] = field(default_factory=dict)
    unreadable: Mapping[int, str] = field(default_factory=dict)

    @property
    def newest(self) -> int:
        """Return the newest generation that has a document, readable or not; 0 for none."""
        return max((*self.documents, *self.unreadable), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFault:
    """One fault of a history; `known` is the lost document, where somebody knows it and the store takes it back."""

    message: str
    known: Pointer | None = None


def read_history(storage: Storage, *, model: str, channel: str) -> History:
    """Read every document of a channel's history once; a damaged one is noted, a store that is away raises."""
    documents: dict[int, Pointer] = {}
    unreadable: dict[int, str] = {}
    for generation in storage.list_generations(model, channel):
        try:
            documents[generation] = storage.read_history(model, channel, generation)
        except IntegrityError as error:
            unreadable[generation] = str(error)
    return History(documents=documents, unreadable=unreadable)


def find_faults(
    history: History, pointer: Pointer | None, *, storage: Storage, database: Database | None
) -> list[HistoryFault]:
    """
    Return what is wrong with a channel's history up to its pointer, in order.

    Args:
        history: As it was read.
        pointer: What the channel serves.
        storage: Where it is.
        database: Who may know what is lost, None if it is gone.
    """
    faults = find_history_faults(pointer, history.documents)
    lost = [generation for generation, _ in faults if generation not in history.documents]
    known = {} if pointer is None else dict(_known_documents(storage, database, pointer, lost))
    return [
        HistoryFault(
            message=history.unreadable.get(generation, f"generation {generation}: {problem}"),
            known=known.get(generation),
        )
        for generation, problem in faults
    ]


def _known_documents(
    storage: Storage, database: Database | None, pointer: Pointer, lost: Iterable[int]
) -> Iterator[tuple[int, Pointer]]:
    if not isinstance(storage, RestoresHistory):
        return
    for generation in lost:
        if generation == pointer.generation:
            yield generation, pointer
        elif database is not None:
            with database.read() as connection:
                found = find_activated_pointer(
                    connection, model=pointer.model, channel=pointer.channel, generation=generation
                )
            if found is not None:
                yield generation, found


def restore_documents(storage: Storage, database: Database | None, *, model: str, channel: str) -> None:
    """
    Write again what was lost and is known; the caller holds the channel's lock.

    Raises:
        IntegrityError: A document is not chained to those that are there.
    """
    pointer = storage.read_pointer(model, channel)
    history = read_history(storage, model=model, channel=channel)
    for fault in find_faults(history, pointer, storage=storage, database=database):
        if fault.known is not None and isinstance(storage, RestoresHistory):
            storage.restore_history(fault.known)
