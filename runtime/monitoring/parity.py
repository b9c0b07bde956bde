"""Online parity: a sampled share of live requests is answered again by a reference, in the background.

A request pays for the choice alone, and, where it is chosen, for a copy of its arrays: nothing waits for the reference.
What does not fit into the queue, or comes too fast, is dropped and counted.
"""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modelreg.config.policy import Metric, Scope, load_shipped_policy
from modelreg.registry.words import Precision, Word
from modelreg.runtime.monitoring.differences import Difference, add_up, compare
from modelreg.runtime.monitoring.facts import ParityFacts
from modelreg.runtime.monitoring.references import Reference, ReferenceSource
from modelreg.runtime.runner import RunError
from modelreg.runtime.serving import ServedEngine

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.generic]
    Arrays = Mapping[str, Array]

_log = logging.getLogger("modelreg.runtime")

_WINDOW = 256
"""Answers that a figure is made of: the last so many of a generation."""
_FEWEST = 8
"""Of fewer answers no drift is called: a gate would not go by them either."""
_KEPT_GENERATIONS = 3
_RETRY_S = 30.0
_MOST_BYTES = 64 << 20


class Dropped(Word):
    """Why a sampled request was not compared: `rate`: more than `max_per_s`; `queue`: the reference is behind;
    `size`: too large to copy; `no-reference`: its release has none; `failed`: the reference, or the comparison, did."""

    RATE = "rate"
    QUEUE = "queue"
    SIZE = "size"
    NO_REFERENCE = "no-reference"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class _Work:
    served: ServedEngine
    inputs: dict[str, Array]
    outputs: dict[str, Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputParity:
    """What was found of one output of one generation, over its last answers."""

    served: ServedEngine
    output: str
    difference: Difference


class OnlineParity:
    """
    Compares live answers of one model with a reference's. `offer` may be called by any thread.

    Args:
        source: Finds the reference of what is served; each answer is compared with that of its own release.
        share: The part of the requests that is compared, 0 to 1.
        max_per_s: At most so many a second, so that a busy server does not run twice.
        queue_size: So many wait for the reference.
        limit_db: The smallest signal to noise ratio that is no drift; None: the shipped policy's for a slice, by the
            precision that answers.
        seed: Of the choice; None: another one each time.
    """

    def __init__(
        self,
        source: ReferenceSource,
        *,
        share: float = 0.01,
        max_per_s: float = 2.0,
        queue_size: int = 16,
        limit_db: float | None = None,
        seed: int | None = None,
    ) -> None:
        if not 0 <= share <= 1 or not max_per_s > 0:
            raise ValueError(f"a share of {share} at most {max_per_s} times a second cannot be sampled")
        self._source, self._share, self._limit_db = source, share, limit_db
        self._random = random.Random(seed).random  # noqa: S311 - a sample, no secret
        self._pause_s = 1 / max_per_s
        self._next_s = 0.0
        self._queue: queue.Queue[_Work | None] = queue.Queue(queue_size)
        self._lock = threading.Lock()
        self._found: OrderedDict[int, dict[str, deque[Difference]]] = OrderedDict()
        self._served: dict[int, ServedEngine] = {}
        self._references: OrderedDict[str, Reference] = OrderedDict()
        self._refused_until_s: dict[str, float] = {}
        self._proven: set[str] = set()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self.compared = 0
        self.dropped = dict.fromkeys(Dropped, 0)
        self.problem = ""

    # -- on the way of a request ---------------------------------------------------------------------------
    def offer(self, served: ServedEngine, inputs: Arrays, outputs: Arrays) -> None:
        """Take a request and its answer, if it is chosen; what is kept is copied, so the caller may go on with both."""
        if self._random() >= self._share or self._thread is None:
            return
        now_s = time.monotonic()
        with self._lock:
            is_early = now_s < self._next_s
            if not is_early:
                self._next_s = now_s + self._pause_s
        if is_early:
            self._drop(Dropped.RATE)
        elif self._queue.full():
            self._drop(Dropped.QUEUE)
        elif sum(each.nbytes for arrays in (inputs, outputs) for each in arrays.values()) > _MOST_BYTES:
            self._drop(Dropped.SIZE)
        else:
            self._put(_Work(served, _copy(inputs), _copy(outputs)))

    def _put(self, work: _Work) -> None:
        try:
            self._queue.put_nowait(work)
        except queue.Full:
            self._drop(Dropped.QUEUE)

    def _drop(self, reason: Dropped) -> None:
        with self._lock:
            self.dropped[reason] += 1

    # -- for whoever looks ---------------------------------------------------------------------------------
    def found(self) -> Iterator[OutputParity]:
        """Yield what was found of every output, of the last three generations."""
        with self._lock:
            kept = [
                (self._served[generation], output, tuple(window))
                for generation, outputs in self._found.items()
                for output, window in outputs.items()
            ]
        for served, output, window in kept:
            difference = add_up(window)
            if difference is not None:
                yield OutputParity(served=served, output=output, difference=difference)

    def facts(self, served: ServedEngine | None) -> tuple[ParityFacts, ...]:
        """Return what the health rules need of the generation that is served."""
        if served is None:
            return ()
        limit_db = find_limit_db(served.precision) if self._limit_db is None else self._limit_db
        return tuple(
            ParityFacts(
                output=each.output,
                samples=each.difference.samples,
                sqnr_db=each.difference.sqnr_db if each.difference.samples >= _FEWEST else None,
                limit_db=limit_db,
                not_finite=each.difference.not_finite,
            )
            for each in self.found()
            if each.served.generation == served.generation
        )

    def start(self) -> None:
        """Begin; before that, nothing is taken."""
        if self._thread is None:
            self._stopping = False
            self._thread = threading.Thread(target=self._run, name="modelreg parity", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End, with what is at work; what waits is dropped."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._stopping = True
        while not self._queue.empty():
            try:
                self._queue.get_nowait()
            except queue.Empty:
                break
        self._queue.put(None)
        thread.join()

    # -- the thread's own ----------------------------------------------------------------------------------
    def _run(self) -> None:
        try:
            while (work := self._queue.get()) is not None and not self._stopping:
                self._compare(work)
        finally:
            for reference in self._references.values():
                reference.close()
            self._references.clear()

    def _compare(self, work: _Work) -> None:
        reference = self._find_reference(work.served)
        if reference is None:
            self._drop(Dropped.NO_REFERENCE)
            return
        found = self._answer(reference, work)
        if found is None:
            return
        with self._lock:
            self.compared += 1
            self._served[work.served.generation] = work.served
            outputs = self._found.setdefault(work.served.generation, {})
            for name, difference in found.items():
                outputs.setdefault(name, deque(maxlen=_WINDOW)).append(difference)
            while len(self._found) > _KEPT_GENERATIONS:
                generation = min(self._found)
                del self._found[generation], self._served[generation]
        self._say("")

    def _answer(self, reference: Reference, work: _Work) -> dict[str, Difference] | None:
        """Return what came of one answer, None where the reference, or the comparison, failed."""
        release = work.served.release
        try:
            wanted = reference.run(work.inputs)
        except Exception as error:  # a reference is anybody's code, and no request depends on it
            self._fail(work, error)
            if not isinstance(error, RunError):  # else it lives on, and refuses these inputs alone
                self._forget(release)
            return None
        self._proven.add(release)
        try:
            return {name: compare(wanted[name], array) for name, array in work.outputs.items()}
        except Exception as error:  # an output of another name, shape or kind
            self._fail(work, error)
            return None

    def _fail(self, work: _Work, error: Exception) -> None:
        self._drop(Dropped.FAILED)
        self._say(f"parity of {work.served}: {_one_line(error)}")

    def _find_reference(self, served: ServedEngine) -> Reference | None:
        """Return the reference of a release, opened once; where there is none, it is asked for again after a while."""
        known = self._references.get(served.release)
        if known is not None:
            self._references.move_to_end(served.release)
            return known
        now_s = time.monotonic()
        if now_s < self._refused_until_s.get(served.release, 0.0):
            return None
        try:
            opened = self._source.open(served)
        except Exception as error:  # as above
            self._refused_until_s = {served.release: now_s + _RETRY_S}
            self._say(f"parity of {served} has no reference: {_one_line(error)}")
            return None
        self._references[served.release] = opened
        while len(self._references) > 2:  # a swap has answers of both on the way
            release, old = self._references.popitem(last=False)
            self._proven.discard(release)
            old.close()
        return opened

    def _forget(self, release: str) -> None:
        """Close a reference that failed: a child may be dead. One that had answered is opened again at once."""
        reference = self._references.pop(release, None)
        if reference is not None:
            reference.close()
        if release not in self._proven:
            self._refused_until_s = {release: time.monotonic() + _RETRY_S}
        self._proven.discard(release)

    def _say(self, problem: str) -> None:
        if problem and problem != self.problem:
            _log.warning("%s", problem)
        self.problem = problem


def find_limit_db(precision: Precision) -> float:
    """
    Return the smallest SQNR of a slice that the shipped policy of a precision lets pass.

    A few live answers are like a slice of a golden set: fewer values, so a wider limit than that of the whole set.
    """
    rules = load_shipped_policy(precision).rules_for(Scope.SLICE)
    return next(each.limit for each in rules if each.metric is Metric.SQNR_DB)


def _copy(arrays: Arrays) -> dict[str, Array]:
    return {name: array.copy() for name, array in arrays.items()}


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
