"""A pointer that is behind, moved on because a person said so: to the newest generation that anybody knows.

A pointer is behind where one of two was restored from an older copy: the pointer beside its history, or the store
beside the database. Going forward loses nothing, and what was served meanwhile is one rollback away; going back would
give generations to two releases. Each step is a conditional write as in any swap.
"""

from __future__ import annotations

from collections.abc import Iterator

from modelreg.registry.channel_states import compare, read_channel_state
from modelreg.registry.checks.channels import Place
from modelreg.registry.database import Database
from modelreg.registry.errors import IntegrityError, ModelregError
from modelreg.registry.histories import History, read_history
from modelreg.registry.operations import find_activated_pointer
from modelreg.registry.pointers import Pointer
from modelreg.registry.storage.interface import RestoresHistory
from modelreg.registry.storage.rules import follows


def roll_forward(place: Place) -> list[str]:
    """
    Move a channel's pointer on; the caller holds its lock. Return what was done, nothing where it was not behind.

    Raises:
        IntegrityError: The history has a gap or parts from the pointer or the database: nothing was moved.
        NotFoundError: The release to go on to is not published.
        StorageError: The store could not be written.
    """
    return [*_to_history(place), *_to_database(place)]


def _to_history(place: Place) -> Iterator[str]:
    """Go on to the newest document of the channel's own history."""
    storage = place.storage
    if not isinstance(storage, RestoresHistory):
        return
    pointer = _read_pointer(place)
    served = 0 if pointer is None else pointer.generation
    history = read_history(storage, model=place.model, channel=place.channel)
    if history.newest <= served:
        return
    _require_chain(place, pointer, history)
    storage.verify_release(history.documents[history.newest].release)
    _require_not_before_database(place, history.newest)
    storage.advance_pointer(place.model, place.channel, history.newest)
    yield f"moved on from generation {served or '(none)'} to {history.newest}, the newest of its history"


def _read_pointer(place: Place) -> Pointer | None:
    try:
        return place.storage.read_pointer(place.model, place.channel)
    except IntegrityError:
        return None  # lost or damaged: the history says what it was


def _require_chain(place: Place, pointer: Pointer | None, history: History) -> None:
    """Check that the history goes on from the pointer, or where that is gone from its own newest document."""
    before = pointer
    first = history.newest if pointer is None else pointer.generation + 1
    for generation in range(first, history.newest + 1):
        document = history.documents.get(generation)
        if document is None or (before is not None and not follows(document, before)):
            raise IntegrityError(
                f"{place.name}: generation {generation} of the history is missing or goes on from something else",
                hint="Restore the store from its newest backup.",
            )
        before = document


def _require_not_before_database(place: Place, newest: int) -> None:
    """Check that the database knows no later generation which it could not bring: that would be going back."""
    if place.database is None:
        return
    with place.database.read() as connection:
        known = read_channel_state(connection, model=place.model, channel=place.channel).generation
        missing = [
            generation
            for generation in range(newest + 1, known + 1)
            if _document(place, place.database, generation) is None
        ]
    if missing:
        raise IntegrityError(
            f"{place.name}: the database knows generation {known} and has no document of {missing[0]}",
            hint="Restore the store from its newest backup.",
        )


def _to_database(place: Place) -> Iterator[str]:
    """Go on to the newest generation of the database, which keeps the pointers that it has asked for."""
    database, storage = place.database, place.storage
    if database is None:
        return
    pointer = storage.complete_reserved(place.model, place.channel)
    with database.read() as connection:
        state = compare(read_channel_state(connection, model=place.model, channel=place.channel), pointer)
    documents = [_document(place, database, generation) for generation in range(state.served + 1, state.known + 1)]
    chain = [document for document in documents if document is not None]
    if not chain or len(chain) < len(documents):
        return  # reported by the examination that follows
    before = pointer
    for document in chain:
        if not follows(document, before):
            raise IntegrityError(f"{place.name}: what the database knows does not go on from what the store serves")
        before = document
    storage.verify_release(chain[-1].release)
    for document in chain:
        storage.swap_pointer(document, expected=pointer)
        pointer = document
    yield f"moved on from generation {state.served or '(none)'} to {state.known}, the newest of the database"


def _document(place: Place, database: Database, generation: int) -> Pointer | None:
    try:
        with database.read() as connection:
            return find_activated_pointer(connection, model=place.model, channel=place.channel, generation=generation)
    except ModelregError:
        return None
