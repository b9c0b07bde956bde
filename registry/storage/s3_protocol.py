"""How a channel moves in a store that knows no lock: reserve the generation, then roll the pointer forward. Pure.

Two conditional writes are all it needs: *create if absent* and *replace if still this ETag*. A swap creates the history
document of its generation (the *reservation*: one winner, never taken back), then replaces the pointer with the same
bytes. From the reservation on the swap will happen: whoever comes by finishes it, at once, since the body is fixed and
so doing it twice is doing it once. No lease and no clock is needed.

The functions are generators: they yield what they want from the store and are sent what came of it, so that a test
can try every order, every crash and every lost answer (`tests/registry/storage/test_s3_protocol.py`). Reads answer or
raise `StorageError`; a write may also be `LOST`: it happened, or not, or will.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeVar, cast

from modelreg.registry.errors import ActivationUnknownError, IntegrityError, NotFoundError, StorageError
from modelreg.registry.pointers import Pointer
from modelreg.registry.storage.rules import follows, require_expected

T = TypeVar("T")

TRIES = 6
"""How often a write whose answer was lost is sent again before the outcome is called unknown."""


class Written(Enum):
    """What came of a conditional write. `LOST`: nobody knows, and it may yet arrive."""

    YES = auto()
    REFUSED = auto()
    LOST = auto()


@dataclass(frozen=True, slots=True)
class Document:
    """A pointer as it lies in the store: what it says, its bytes, and the ETag that a replacement must name."""

    pointer: Pointer
    data: bytes
    etag: str


@dataclass(frozen=True, slots=True)
class ReadPointer:
    """Answered with the pointer's `Document`, or None."""


@dataclass(frozen=True, slots=True)
class ReadHistory:
    """Answered with the history `Document` of a generation, or None."""

    generation: int


@dataclass(frozen=True, slots=True)
class HasHistory:
    """Answered with whether a generation has a history document."""

    generation: int


@dataclass(frozen=True, slots=True)
class RequireRelease:
    """Answered with None, or NotFoundError: a release is published, manifest and all."""

    release: str


@dataclass(frozen=True, slots=True)
class Reserve:
    """Create the history document of `pointer`'s generation if there is none; answered with `Written`."""

    pointer: Pointer


@dataclass(frozen=True, slots=True)
class MovePointer:
    """Replace the pointer, if its ETag still is `etag` (None: if there is none); answered with `Written`."""

    pointer: Pointer
    data: bytes
    etag: str | None


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait a little, at random, longer each time; answered with None."""

    attempt: int


Request = ReadPointer | ReadHistory | HasHistory | RequireRelease | Reserve | MovePointer | Pause
Answer = Document | Written | bool | None
Steps = Generator[Request, Answer, T]


def swap_steps(new: Pointer, *, expected: Pointer | None) -> Steps[None]:
    """
    Move a channel from `expected` to `new`, which follows it.

    Raises:
        ActivationConflictError: The channel is not at `expected`, and `new` will never be in its history.
        ActivationUnknownError: `new` may be in its history, or may yet come there.
        StorageError: The store could not be read before anything was written.
    """
    while True:
        seen = yield from _read_pointer()
        at = _number(seen)
        if at >= new.generation:
            return (yield from _require_ours(new, expected, seen))
        if at == new.generation - 1:
            require_expected(_pointer(seen), new=new, expected=expected)
            return (yield from _reserve_and_move(new, expected, seen))
        # The expected generation may be reserved by somebody who died; if not, this raises a conflict.
        if not (yield from _roll_forward(seen)):
            require_expected(_pointer(seen), new=new, expected=expected)


def complete_steps() -> Steps[Document | None]:
    """
    Finish a swap that was reserved and not carried out; return the pointer as it is then.

    Raises:
        IntegrityError: What is reserved does not go on from the pointer, or names a release that is not there.
    """
    seen = yield from _read_pointer()
    if (yield from _roll_forward(seen)):
        seen = yield from _read_pointer()
    return seen


def read_steps() -> Steps[Document | None]:
    """
    Return the pointer; None only where the channel never had one.

    Raises:
        IntegrityError: The channel has a history and its pointer is gone.
    """
    return (yield from _read_pointer())


def _read_pointer() -> Steps[Document | None]:
    found = yield from _ask_document(ReadPointer())
    if found is None and (yield from _has_history(2)):
        found = yield from _ask_document(ReadPointer())  # the first two swaps may have come in between
        if found is None:
            raise IntegrityError(
                "the pointer is missing, though the channel has a history",
                hint="`modelreg doctor --fix --roll-forward NAME@CHANNEL` puts the newest of its history there.",
            )
    return found


def _require_ours(new: Pointer, expected: Pointer | None, seen: Document | None) -> Steps[None]:
    """Return if the generation that was taken was taken by an earlier try of ours, whose answer was lost."""
    document = yield from _ask_document(ReadHistory(new.generation))
    if document is None or document.pointer.txn != new.txn:
        require_expected(_pointer(seen), new=new, expected=expected)


def _reserve_and_move(new: Pointer, expected: Pointer | None, seen: Document | None) -> Steps[None]:
    yield RequireRelease(new.release)
    taken = yield from _reserve(new)
    if taken is None:
        try:
            return (yield from _move(Document(new, new.to_bytes(), ""), seen))
        except StorageError as error:
            raise unknown(new, error) from error
    # Somebody else has the generation, so ours can never come there; they may have died, so finish it for them.
    yield from _carry_out(taken, seen)
    return require_expected(taken.pointer, new=new, expected=expected)


def _reserve(new: Pointer) -> Steps[Document | None]:
    """Return None when the generation is ours, else the document that has it."""
    in_doubt = False
    try:
        for attempt in range(TRIES):
            answer = yield Reserve(new)
            if answer is Written.YES:
                return None
            in_doubt = in_doubt or answer is Written.LOST
            found = yield from _ask_document(ReadHistory(new.generation))
            if found is not None:
                return None if found.pointer.txn == new.txn else found
            yield Pause(attempt)
    except (StorageError, IntegrityError) as error:
        if in_doubt:
            raise unknown(new, error) from error
        raise
    if in_doubt:
        raise unknown(new, None)
    raise StorageError(f"the store refuses to keep generation {new.generation}, though it has none")


def _move(document: Document, seen: Document | None) -> Steps[None]:
    """Move the pointer from `seen` to a document that is reserved; return when it is there, or beyond."""
    etag = None if seen is None else seen.etag
    new = document.pointer
    for attempt in range(TRIES):
        if (yield MovePointer(new, document.data, etag)) is Written.YES:
            return
        try:
            now = yield from _read_pointer()
        except IntegrityError as error:
            # What is reserved will happen, whatever came of reading it back: a damaged answer is no answer.
            raise unknown(new, error) from error
        if _number(now) >= new.generation:
            return  # moved by us and the answer was lost, or for us by somebody who came by
        if now != seen:
            raise IntegrityError(f"the pointer went from generation {_number(seen)} to {_number(now)} on its own")
        yield Pause(attempt)
    raise unknown(new, None)


def _roll_forward(seen: Document | None) -> Steps[bool]:
    """Carry out what is reserved after `seen`; return False where nothing is, or the pointer has gone on anyway."""
    reserved = yield from _ask_document(ReadHistory(_number(seen) + 1))
    if reserved is None:
        return False
    yield from _carry_out(reserved, seen)
    return True


def _carry_out(reserved: Document, seen: Document | None) -> Steps[None]:
    """Move the pointer to what somebody reserved; it may be there by now, or beyond."""
    at = _number(seen)
    if not follows(reserved.pointer, _pointer(seen)):
        raise _forked(at)
    if (yield from _has_history(at + 2)):
        # That was reserved by somebody who had read the pointer at `at + 1`, and pointers do not go back.
        if (yield from _read_pointer()) == seen:
            raise _forked(at)
        return
    try:
        yield RequireRelease(reserved.pointer.release)
    except NotFoundError as error:
        raise IntegrityError(
            f"generation {reserved.pointer.generation} was reserved and cannot be completed: {error}"
        ) from None
    try:
        yield from _move(reserved, seen)
    except ActivationUnknownError as error:
        if isinstance(error.__cause__, IntegrityError):
            raise error.__cause__ from None
        # Theirs, not ours: whoever comes next will finish it.
        raise StorageError(f"{error}: the store does not answer") from error


def _forked(generation: int) -> IntegrityError:
    return IntegrityError(
        f"the pointer is at generation {generation}, which is not what the channel's history goes on from",
        hint="One of the two was restored from a backup: run `modelreg doctor` and decide which is right.",
    )


def unknown(new: Pointer, error: StorageError | IntegrityError | None) -> ActivationUnknownError:
    """Return the error of a swap that may have happened, or may yet."""
    reason = "the store took neither it nor anything else" if error is None else str(error)
    return ActivationUnknownError(
        f"channel {new.model}@{new.channel} may have moved to generation {new.generation}, or may yet: {reason}"
    )


def _ask_document(request: ReadPointer | ReadHistory) -> Steps[Document | None]:
    return cast("Document | None", (yield request))


def _has_history(generation: int) -> Steps[bool]:
    return cast("bool", (yield HasHistory(generation)))


def _pointer(document: Document | None) -> Pointer | None:
    return None if document is None else document.pointer


def _number(document: Document | None) -> int:
    return 0 if document is None else document.pointer.generation
