"""The protocol of a store without locks, in every order and with every fault that a small number of clients can meet.

What is checked in every state: the pointer goes on by one generation at a time and is what the history says; the
history is a chain without gap or rewriting; at most one generation is reserved beyond the pointer; an acknowledged swap
is in the history and visible; one that was told as lost or failed is not, and cannot come any more; and whoever comes
next finishes what is reserved, once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from random import Random
from typing import Any

import pytest

from modelreg.registry.clock import parse_iso
from modelreg.registry.errors import ActivationUnknownError, IntegrityError, StorageError
from modelreg.registry.pointers import Pointer, next_pointer
from modelreg.registry.storage import s3_protocol
from modelreg.registry.storage.s3_protocol import (
    Document,
    MovePointer,
    Pause,
    Reserve,
    complete_steps,
    read_steps,
    swap_steps,
)
from modelreg.registry.words import ActivationKind
from modelreg_testing.s3_model import Checker, Explored, Flaws, Program, Store, document_of, ending, named

EVERY_OUTCOME = {"done", "conflict", "unknown", "failed"}
AT = parse_iso("2026-11-30T10:00:00+00:00")


def after(document: Document | None, txn: str) -> Pointer:
    return named(
        next_pointer(
            None if document is None else document.pointer,
            model="lenet",
            channel="production",
            release="r",
            version=1,
            kind=ActivationKind.PROMOTE,
            rolls_back_to=None,
            txn=txn,
            actor=txn,
            message="",
            at=AT,
        )
    )


def swapper(name: str, *, swaps: int = 1, swap: Callable[..., Any] = swap_steps) -> Program:
    """Return a client that reads the pointer and moves it, as a command does, so many times."""

    def program(wrote: list[Pointer]) -> Generator[Any, Any, None]:
        for number in range(swaps):
            wrote.clear()  # what was done before is in the history, and that is never rewritten
            seen = yield from complete_steps()
            wrote.append(after(seen, f"{name}{number}"))
            yield from swap(wrote[-1], expected=None if seen is None else seen.pointer)

    return ending(program)


def hasty(name: str) -> Program:
    """Return a client that finishes nobody's work before its own."""

    def program(wrote: list[Pointer]) -> Generator[Any, Any, None]:
        seen = yield from read_steps()
        wrote.append(after(seen, name))
        yield from swap_steps(wrote[-1], expected=None if seen is None else seen.pointer)

    return ending(program)


def trusting(name: str) -> Program:
    """Return a client that expects the generation that is reserved, not the one that is served."""

    def program(wrote: list[Pointer]) -> Generator[Any, Any, None]:
        reserved = yield from s3_protocol._ask_document(s3_protocol.ReadHistory(1))
        wrote.append(after(reserved, name))
        yield from swap_steps(wrote[-1], expected=None if reserved is None else reserved.pointer)

    return ending(program)


def returning(name: str) -> Program:
    """Return a client that swaps the same again when it did not hear how it went."""

    def program(wrote: list[Pointer]) -> Generator[Any, Any, None]:
        seen = yield from read_steps()
        wrote.append(after(seen, name))
        expected = None if seen is None else seen.pointer
        try:
            yield from swap_steps(wrote[-1], expected=expected)
        except ActivationUnknownError as first:
            try:
                yield from swap_steps(wrote[-1], expected=expected)
            except StorageError:
                raise first from None  # the second try was not even begun

    return ending(program)


def healer() -> Program:
    """Return a client that only finishes what others began."""

    def program(_wrote: list[Pointer]) -> Generator[Any, Any, None]:
        yield from complete_steps()

    return ending(program)


# -- every order -------------------------------------------------------------------------------------------
def test_without_faults_of_two_one_wins_and_one_is_told() -> None:
    found = Checker([hasty("a"), hasty("b")], faults=0).explore()
    assert found.outcomes == {"done", "conflict"}
    assert found.generations == {0, 1, 2}
    assert found.states > 50


@pytest.mark.parametrize(
    ("clients", "faults"), [([hasty("a"), hasty("b"), healer()], 1), ([hasty("a"), hasty("b")], 2)], ids=["3", "2"]
)
def test_every_fault_in_every_order(clients: list[Program], faults: int) -> None:
    found = Checker(clients, faults=faults).explore()
    assert found.outcomes == EVERY_OUTCOME
    assert found.generations == {0, 1, 2}
    assert found.states > 5_000


@pytest.mark.parametrize("other", [trusting("b"), returning("b")], ids=["trusts", "repeats"])
def test_clients_of_other_habits_meet_every_fault(other: Program) -> None:
    found = Checker([swapper("a"), other], faults=2).explore()
    assert found.outcomes == EVERY_OUTCOME


@pytest.mark.slow
def test_a_client_that_swaps_more_than_once_meets_every_fault() -> None:
    found = Checker([swapper("a", swaps=2), swapper("b")], faults=1).explore()
    assert found.outcomes == EVERY_OUTCOME
    assert found.generations == {0, 1, 2, 3}


@pytest.mark.parametrize("seed", range(4))
def test_random_ways_of_six_clients_with_eight_faults(seed: int) -> None:
    found = Explored()
    random = Random(seed)
    checker = Checker([*(swapper(name, swaps=2) for name in "abc"), hasty("d"), returning("e"), healer()], faults=8)
    for _ in range(150):
        checker.wander(random, found)
    assert found.outcomes == EVERY_OUTCOME
    assert max(found.generations) >= 4


# -- the checker notices -----------------------------------------------------------------------------------
@pytest.mark.parametrize("flaws", [Flaws(ignores_if_match=True), Flaws(ignores_if_none_match=True)], ids=str)
def test_a_server_that_ignores_conditions_is_noticed(flaws: Flaws) -> None:
    checker = Checker([swapper("a"), swapper("b", swaps=2)], faults=1, flaws=flaws)
    with pytest.raises(AssertionError):
        checker.explore()


def unreserved(new: Pointer, *, expected: Pointer | None) -> Generator[Any, Any, None]:
    """Move the pointer alone, and write the history afterwards."""
    seen = yield from read_steps()
    yield from s3_protocol._move(Document(new, b"", ""), seen)
    yield Reserve(new)


def unconditional(new: Pointer, *, expected: Pointer | None) -> Generator[Any, Any, None]:
    """Reserve, and then write the pointer over whatever the pointer is by now."""
    yield Reserve(new)
    seen = yield from read_steps()
    yield MovePointer(new, b"", None if seen is None else seen.etag)


def pessimistic(new: Pointer, *, expected: Pointer | None) -> Generator[Any, Any, None]:
    """Take a lost answer for a failure."""
    seen = yield from read_steps()
    if (yield Reserve(new)) is not s3_protocol.Written.YES:
        raise StorageError("timeout")
    yield from s3_protocol._move(Document(new, b"", ""), seen)


def withdrawn(new: Pointer, *, expected: Pointer | None) -> Generator[Any, Any, None]:
    """Report a conflict when the pointer cannot be moved, though the generation is reserved."""
    seen = yield from read_steps()
    assert seen is None or seen.pointer == expected
    yield from s3_protocol._reserve(new)
    if (yield MovePointer(new, b"", None if seen is None else seen.etag)) is not s3_protocol.Written.YES:
        raise StorageError("conflict")


def impatient(new: Pointer, *, expected: Pointer | None) -> Generator[Any, Any, None]:
    """Report success once the generation is reserved, whatever becomes of the pointer."""
    seen = yield from read_steps()
    if (yield from s3_protocol._reserve(new)) is None:
        yield MovePointer(new, new.to_bytes(), None if seen is None else seen.etag)
    yield Pause(0)


@pytest.mark.parametrize(
    "broken", [unreserved, unconditional, pessimistic, withdrawn, impatient], ids=lambda each: str(each.__name__)
)
def test_a_protocol_with_a_step_done_wrong_is_noticed(broken: Callable[..., Any]) -> None:
    checker = Checker([swapper("a", swap=broken), swapper("b")], faults=1)
    with pytest.raises(AssertionError):
        checker.explore()


# -- stores that somebody touched --------------------------------------------------------------------------
FIRST = after(None, "1")
SECOND = after(document_of(FIRST), "2")


def alone(store: Store, steps: Generator[Any, Any, Any]) -> Any:
    return Checker([], faults=0).run_alone(store, steps)[1]


def refusing(steps: Generator[Any, Any, Any], answers: Callable[[Any], object]) -> Any:
    """Run a program against a store that answers as it likes."""
    answer: object = None
    try:
        while True:
            answer = answers(steps.send(answer))
    except StopIteration as stop:
        return stop.value


def test_a_pointer_that_is_gone_is_damage() -> None:
    with pytest.raises(IntegrityError, match="missing"):
        alone(Store(None, ((1, FIRST), (2, SECOND))), read_steps())


def test_a_pointer_that_was_put_back_is_damage_and_not_rolled_forward() -> None:
    third = after(document_of(SECOND), "3")
    with pytest.raises(IntegrityError, match="goes on from"):
        alone(Store(FIRST, ((1, FIRST), (2, SECOND), (3, third))), complete_steps())
    stranger = after(document_of(after(None, "x")), "y")
    with pytest.raises(IntegrityError, match="goes on from"):
        alone(Store(FIRST, ((1, FIRST), (2, stranger))), complete_steps())


def test_a_pointer_that_changes_under_a_reservation_is_damage() -> None:
    pointers = iter([FIRST, after(None, "other")])

    def answers(request: Any) -> object:
        if isinstance(request, s3_protocol.ReadPointer):
            return document_of(next(pointers))
        return s3_protocol.Written.YES if isinstance(request, Reserve) else s3_protocol.Written.REFUSED

    with pytest.raises(IntegrityError, match="on its own"):
        refusing(swap_steps(SECOND, expected=FIRST), answers)


@pytest.mark.parametrize(
    ("reserved", "moved", "error"),
    [
        (s3_protocol.Written.REFUSED, s3_protocol.Written.YES, StorageError),
        (s3_protocol.Written.LOST, s3_protocol.Written.YES, ActivationUnknownError),
        (s3_protocol.Written.YES, s3_protocol.Written.LOST, ActivationUnknownError),
        (s3_protocol.Written.YES, s3_protocol.Written.REFUSED, ActivationUnknownError),
    ],
)
def test_a_store_that_never_says_yes_is_given_up(
    reserved: s3_protocol.Written, moved: s3_protocol.Written, error: type[Exception]
) -> None:
    def answers(request: Any) -> object:
        if isinstance(request, s3_protocol.ReadPointer):
            return document_of(FIRST)
        if isinstance(request, Reserve):
            return reserved
        return moved if isinstance(request, MovePointer) else None

    with pytest.raises(error):
        refusing(swap_steps(SECOND, expected=FIRST), answers)


def test_a_swap_of_somebody_else_that_cannot_be_finished_is_no_outcome_of_ours() -> None:
    def answers(request: Any) -> object:
        if isinstance(request, s3_protocol.ReadPointer):
            return document_of(FIRST)
        if isinstance(request, s3_protocol.ReadHistory):
            return document_of(SECOND)
        return s3_protocol.Written.LOST if isinstance(request, MovePointer) else None

    with pytest.raises(StorageError, match="does not answer"):
        refusing(complete_steps(), answers)
