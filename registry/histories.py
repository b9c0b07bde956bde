"""Histories of channels: what is wrong with one, and lost documents written again by who still knows them.

A document is known to the pointer, if it is of the generation that is served, and to the database, if that generation
was activated with it: the intent keeps the whole pointer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from modelreg.registry.chains import find_history_faults
from modelreg.registry.database import Database
from modelreg.registry.errors import ModelregError
from modelreg.registry.operations import find_activated_pointer
from modelreg.registry.pointers import Pointer
from modelreg.registry.storage.interface import RestoresHistory, Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFault:
    """One fault of a history; `known` is the lost document, where somebody knows it and the store takes it back."""

    message: str
    known: Pointer | None = None


def find_faults(
    storage: Storage, database: Database | None, pointer: Pointer | None, *, model: str, channel: str
) -> list[HistoryFault]:
    """
    Return what is wrong with a channel's history, in order; a document that cannot be read hides all other faults.

    Args:
        storage: Where it is.
        database: Who may know what is lost, None if it is gone.
        pointer: What the channel serves.
        model: Of the channel.
        channel: Its name.
    """
    documents: dict[int, Pointer] = {}
    unreadable: list[HistoryFault] = []
    for generation in storage.list_generations(model, channel):
        try:
            documents[generation] = storage.read_history(model, channel, generation)
        except ModelregError as error:
            unreadable.append(HistoryFault(message=str(error)))
    if unreadable:
        return unreadable
    faults = find_history_faults(pointer, documents)
    lost = {generation for generation, _ in faults if generation not in documents}
    known = dict(_known_documents(storage, database, pointer, lost)) if pointer is not None else {}
    return [
        HistoryFault(message=f"generation {generation}: {problem}", known=known.get(generation))
        for generation, problem in faults
    ]


def _known_documents(
    storage: Storage, database: Database | None, pointer: Pointer, lost: set[int]
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
    for fault in find_faults(storage, database, pointer, model=model, channel=channel):
        if fault.known is not None and isinstance(storage, RestoresHistory):
            storage.restore_history(fault.known)
