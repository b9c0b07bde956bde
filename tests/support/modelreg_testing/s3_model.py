"""A checker for protocols of conditional writes: it tries every order, crash, lost answer and late arrival.

The program under test is a generator of requests (`modelreg.registry.storage.s3_protocol`). What a client asks next
depends on nothing but the answers that it got, so a state is small (what the store holds, what each client was
answered, what is still under way), and states that were seen are not explored again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from random import Random
from typing import Any

from modelreg.registry.errors import (
    ActivationConflictError,
    ActivationUnknownError,
    IntegrityError,
    NotFoundError,
    StorageError,
)
from modelreg.registry.pointers import Pointer
from modelreg.registry.storage.s3_protocol import (
    Document,
    HasHistory,
    MovePointer,
    Pause,
    ReadHistory,
    ReadPointer,
    RequireRelease,
    Reserve,
    Written,
    complete_steps,
)

Program = Callable[[], Generator[Any, Any, Any]]
AWAY = StorageError("away")


class Named(Pointer):
    """A pointer that is compared by its transaction alone, which is what tells pointers apart; it is fast."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named) and self.txn == other.txn

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.txn)


def named(pointer: Pointer) -> Pointer:
    """Return the pointer as a `Named` one."""
    return Named(**pointer._asdict())


@dataclass(frozen=True)
class Store:
    """Pointers by generation, as history documents and as the pointer; an ETag is the transaction."""

    pointer: Pointer | None = None
    history: tuple[tuple[int, Pointer], ...] = ()

    def document(self, generation: int) -> Pointer | None:
        return dict(self.history).get(generation)


@dataclass(frozen=True)
class Flaws:
    """What a bad server does: ignores a condition."""

    ignores_if_match: bool = False
    ignores_if_none_match: bool = False


@dataclass(frozen=True)
class State:
    """One moment. `answers` are those of each client so far, None for one that died; `late` is still under way."""

    store: Store
    answers: tuple[tuple[object, ...] | None, ...]
    late: tuple[Reserve | MovePointer, ...] = ()
    faults_left: int = 0


@dataclass(frozen=True)
class End:
    """How a client's program ended: `done`, `conflict`, `unknown`, `failed` or `integrity`, and what it wrote."""

    outcome: str
    wrote: Pointer | None = None


@dataclass
class Explored:
    """What a search came upon: states, how clients ended, and the generations that were reached."""

    states: int = 0
    outcomes: set[str] = field(default_factory=set)
    generations: set[int] = field(default_factory=set)


class Checker:
    """Explores what clients can do to one store."""

    def __init__(self, programs: list[Program], *, faults: int, flaws: Flaws | None = None) -> None:
        self._programs = programs
        self._faults = faults
        self._flaws = flaws or Flaws()
        self._recovered: set[Store] = set()
        self.next_step = lru_cache(maxsize=None)(self._next_step)

    @property
    def start(self) -> State:
        return State(store=Store(), answers=((),) * len(self._programs), faults_left=self._faults)

    # -- searching -----------------------------------------------------------------------------------------
    def explore(self) -> Explored:
        """Visit every state that can be reached and check each."""
        found, waiting, seen = Explored(), [self.start], {self.start}
        while waiting:
            state = waiting.pop()
            self._check(state, found)
            for following in self._followers(state):
                self._check_move(state.store, following.store)
                if following not in seen:
                    seen.add(following)
                    waiting.append(following)
        found.states = len(seen)
        return found

    def wander(self, random: Random, found: Explored) -> None:
        """Walk one random way to its end and check each state of it."""
        state = self.start
        while True:
            self._check(state, found)
            found.states += 1
            following = list(self._followers(state))
            if not following:
                return
            smooth = [each for each in following if each.faults_left == state.faults_left]
            chosen = random.choice(smooth if smooth and random.random() < 0.9 else following)
            self._check_move(state.store, chosen.store)
            state = chosen

    # -- clients -------------------------------------------------------------------------------------------
    def _next_step(self, client: int, answers: tuple[object, ...]) -> Any:
        """Return a client's next request after these answers, or its `End`."""
        program = self._programs[client]()
        try:
            request = next(program)
            for answer in answers:
                request = program.throw(answer) if isinstance(answer, Exception) else program.send(answer)
        except StopIteration as stop:
            return stop.value
        return request

    def _followers(self, state: State) -> Iterator[State]:
        for number, late in enumerate(state.late):
            rest = state.late[:number] + state.late[number + 1 :]
            store, _ = self._write(state.store, late)
            yield replace(state, store=store, late=rest)
        for client, answers in enumerate(state.answers):
            if answers is None:
                continue
            request = self.next_step(client, answers)
            if isinstance(request, End):
                continue
            yield from self._answers_to(state, client, answers, request)

    def _answers_to(self, state: State, client: int, answers: tuple[object, ...], request: Any) -> Iterator[State]:
        """Yield the states after the store answered, and after each thing that may go wrong instead."""

        def after(answer: object, **changes: Any) -> State:
            told = (*state.answers[:client], (*answers, answer), *state.answers[client + 1 :])
            return replace(state, answers=told, **changes)

        is_write = isinstance(request, (Reserve, MovePointer))
        if is_write:
            store, written = self._write(state.store, request)
            yield after(written, store=store)
        else:
            yield after(self._read(state.store, request))
        if not state.faults_left or isinstance(request, Pause):
            return
        left = state.faults_left - 1
        yield replace(state, answers=(*state.answers[:client], None, *state.answers[client + 1 :]), faults_left=left)
        if is_write:
            yield after(Written.LOST, store=store, faults_left=left)
            yield after(Written.LOST, late=(*state.late, request), faults_left=left)
            yield after(AWAY, faults_left=left)  # refused outright: no permission
        else:
            yield after(AWAY, faults_left=left)

    # -- the store -----------------------------------------------------------------------------------------
    def _read(self, store: Store, request: Any) -> object:
        if isinstance(request, ReadPointer):
            return document_of(store.pointer)
        if isinstance(request, ReadHistory):
            return document_of(store.document(request.generation))
        if isinstance(request, HasHistory):
            return store.document(request.generation) is not None
        if isinstance(request, RequireRelease):
            return None if request.release else NotFoundError("release")
        assert isinstance(request, Pause)
        return None

    def _write(self, store: Store, request: Reserve | MovePointer) -> tuple[Store, Written]:
        if isinstance(request, Reserve):
            number = request.pointer.generation
            if store.document(number) is not None and not self._flaws.ignores_if_none_match:
                return store, Written.REFUSED
            history = tuple(sorted({**dict(store.history), number: request.pointer}.items(), key=lambda item: item[0]))
            return replace(store, history=history), Written.YES
        etag = None if store.pointer is None else store.pointer.txn
        ignored = self._flaws.ignores_if_none_match if request.etag is None else self._flaws.ignores_if_match
        if etag != request.etag and not ignored:
            return store, Written.REFUSED
        return replace(store, pointer=request.pointer), Written.YES

    # -- what must hold ------------------------------------------------------------------------------------
    def _check_move(self, before: Store, after: Store) -> None:
        """The pointer goes on by one generation at a time, and what is in the history stays as it is."""
        if before.pointer != after.pointer:
            assert after.pointer is not None, "the pointer went away"
            at = 0 if before.pointer is None else before.pointer.generation
            assert after.pointer.generation == at + 1, f"the pointer went from {at} to {after.pointer.generation}"
        kept = dict(after.history)
        assert all(kept.get(number) == document for number, document in before.history), "history was rewritten"

    def _check(self, state: State, found: Explored) -> None:
        store = state.store
        numbers = [number for number, _ in store.history]
        assert numbers == list(range(1, len(numbers) + 1)), f"the history has a gap: {numbers}"
        previous = ""
        for _, document in store.history:
            assert document.previous_txn == previous, "the history is no chain"
            previous = document.txn
        served = 0 if store.pointer is None else store.pointer.generation
        assert store.document(served) == store.pointer, "the pointer is not what the history says"
        assert len(numbers) - served in (0, 1), "more than one generation is reserved"
        found.generations.add(served)
        self._check_ends(state, served, found)
        self._check_recovery(state)

    def _check_ends(self, state: State, served: int, found: Explored) -> None:
        under_way = {late.pointer.txn for late in state.late if isinstance(late, Reserve)}
        for client, answers in enumerate(state.answers):
            end = None if answers is None else self.next_step(client, answers)
            if not isinstance(end, End):
                continue
            found.outcomes.add(end.outcome)
            assert end.outcome != "integrity", "a sound store was called damaged"
            if end.wrote is None:
                continue
            written = state.store.document(end.wrote.generation)
            is_there = written is not None and written.txn == end.wrote.txn
            if end.outcome == "done":
                assert is_there, "a swap that was acknowledged is lost"
                assert served >= end.wrote.generation, "a swap that was acknowledged is not visible"
            if end.outcome in ("conflict", "failed"):
                assert not is_there, f"a swap that was told as {end.outcome} happened"
                can_come = end.wrote.txn in under_way and written is None
                assert not can_come, f"a swap that was told as {end.outcome} may yet happen"

    def _check_recovery(self, state: State) -> None:
        """From any state, one client alone finishes what is reserved, and a second time changes nothing."""
        store = state.store
        if store in self._recovered:
            return
        self._recovered.add(store)
        for _ in range(2):
            store, seen = self.run_alone(store, complete_steps())
            newest = store.history[-1][1] if store.history else None
            assert (None if seen is None else seen.pointer) == newest == store.pointer

    def run_alone(self, store: Store, steps: Generator[Any, Any, Any]) -> tuple[Store, Any]:
        """Run a program to its end with nobody else at work."""
        answer: object = None
        try:
            while True:
                request = steps.send(answer)
                if isinstance(request, (Reserve, MovePointer)):
                    store, answer = self._write(store, request)
                else:
                    answer = self._read(store, request)
        except StopIteration as stop:
            return store, stop.value


def document_of(pointer: Pointer | None) -> Document | None:
    """Return a pointer as the store would give it."""
    return None if pointer is None else Document(pointer, pointer.to_bytes(), pointer.txn)


def ending(program: Callable[[list[Pointer]], Generator[Any, Any, Any]]) -> Program:
    """Return a program that ends in an `End`; it notes what it writes in the list that it is given."""

    def run() -> Generator[Any, Any, End]:
        wrote: list[Pointer] = []
        outcome = "done"
        try:
            yield from program(wrote)
        except ActivationConflictError:
            outcome = "conflict"
        except ActivationUnknownError:
            outcome = "unknown"
        except IntegrityError:
            outcome = "integrity"
        except StorageError:
            outcome = "failed"
        return End(outcome, wrote[-1] if wrote else None)

    return run
