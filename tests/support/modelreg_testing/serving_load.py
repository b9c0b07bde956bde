"""Load on a served model: what it can do, how long answers take, and whether each is of the engine that it names."""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelreg.runtime.active import ActiveModel
from modelreg.runtime.serving import Answer

Array = NDArray[Any]
Inputs = Mapping[str, Array]
Json = dict[str, Any]
Infer = Callable[[Inputs], Answer]


@dataclass(frozen=True, kw_only=True)
class Known:
    """
    What each engine answers to each request, found by asking it alone.

    Attributes:
        requests: The requests.
        answers: By version, the first output for each request.
    """

    requests: Sequence[Inputs]
    answers: Mapping[int, Sequence[Array]]

    def is_of(self, version: int, number: int, found: Array) -> bool:
        """
        Return whether an answer is that of a version: no further from it than a tenth of what another one is.

        Batches of another size round otherwise, so bytes cannot be asked for.
        """
        own = self.answers[version][number]
        others = [each[number] for other, each in self.answers.items() if other != version]
        apart = min((float(np.abs(own - other).max()) for other in others), default=float(np.abs(own).max()))
        return found.shape == own.shape and bool(np.abs(found - own).max() <= 0.1 * apart)


@dataclass
class Found:
    """What clients saw: latencies with the time when each request was due, in seconds."""

    due_s: list[float] = field(default_factory=list)
    latency_s: list[float] = field(default_factory=list)
    mixed: int = 0
    failed: list[str] = field(default_factory=list)
    generations: set[int] = field(default_factory=set)

    def p_ms(self, part: float, *, within: Sequence[tuple[float, float]] = ((0.0, float("inf")),)) -> float:
        """Return a percentile of the latencies of requests that were due within some spans, in milliseconds."""
        pairs = zip(self.due_s, self.latency_s, strict=True)
        chosen = [latency for due, latency in pairs if any(first <= due <= last for first, last in within)]
        return float(np.quantile(chosen, part)) * 1000 if chosen else float("nan")


def know(model: ActiveModel, requests: Sequence[Inputs], known: dict[int, list[Array]]) -> None:
    """Ask what is served now for every request, one by one."""
    known[model.served.version] = [first_output(model.infer(each)) for each in requests]


def first_output(answer: Answer) -> Array:
    """Return the first output of an answer."""
    return next(iter(answer.outputs.values()))


def run_closed(
    infer: Infer, requests: Sequence[Inputs], *, clients: int, seconds: float, known: Known | None = None
) -> tuple[float, list[float]]:
    """
    Have clients ask one request after the other; return requests a second, and every latency in seconds.

    With `known` each answer is looked at, as `run_open` does: what clients that do so can ask for is less.
    """
    latencies: list[list[float]] = [[] for _ in range(clients)]
    until = time.monotonic() + seconds

    def ask(number: int) -> None:
        turn = number
        while (began := time.monotonic()) < until:
            answer = infer(requests[turn % len(requests)])
            if known is not None:
                known.is_of(answer.served.version, turn % len(requests), first_output(answer))
            latencies[number].append(time.monotonic() - began)
            turn += clients

    began = time.monotonic()
    _in_threads(ask, clients)
    took_s = time.monotonic() - began
    every = [each for client in latencies for each in client]
    return len(every) / took_s, every


def run_open(
    infer: Infer, known: Known, *, rate: float, clients: int, seconds: float, meanwhile: Callable[[], None]
) -> Found:
    """
    Have requests come at a rate, whatever becomes of those before; `meanwhile` runs beside it, and they come until both
    it and the time are over.

    A latency counts from when its request was due: a pause delays all that are due in it, and is not hidden.
    """
    found, lock = Found(), threading.Lock()
    began = time.monotonic()
    beside = threading.Thread(target=meanwhile)

    def ask(client: int) -> None:
        for number in itertools.count(client, clients):
            due = began + number / rate
            if due > began + seconds and not beside.is_alive():
                return
            time.sleep(max(0.0, due - time.monotonic()))
            which = number % len(known.requests)
            try:
                answer = infer(known.requests[which])
            except Exception as error:
                with lock:
                    found.failed.append(f"{type(error).__name__}: {error}")
                continue
            done = time.monotonic()
            is_own = known.is_of(answer.served.version, which, first_output(answer))
            with lock:
                found.due_s.append(due - began)
                found.latency_s.append(done - due)
                found.mixed += not is_own
                found.generations.add(answer.generation)

    beside.start()
    _in_threads(ask, clients)
    beside.join()
    return found


def _in_threads(work: Callable[[int], None], number: int) -> None:
    threads = [threading.Thread(target=work, args=(each,)) for each in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Swaps:
    """Moves a channel while requests come, and notes when each swap began and was served, in seconds of the run."""

    def __init__(self, model: ActiveModel, move: Callable[[int], None], *, number: int, seconds: float) -> None:
        self._model, self._move, self._number, self._seconds = model, move, number, seconds
        self.spans: list[tuple[float, float]] = []
        self.failed: list[str] = []

    def __call__(self) -> None:
        """Move it `number` times, evenly over the run, the first and last part without."""
        began = time.monotonic()
        pause = self._seconds / (self._number + 1)
        for turn in range(self._number):
            time.sleep(max(0.0, began + pause * (turn + 1) - time.monotonic()))
            first, before = time.monotonic() - began, self._model.state().swaps
            try:
                self._move(turn)
                self._wait(before)
            except Exception as error:
                self.failed.append(f"{type(error).__name__}: {error}")
                return
            self.spans.append((first, time.monotonic() - began))

    def _wait(self, before: int) -> None:
        until = time.monotonic() + 60
        while self._model.state().swaps == before or self._model.state().retired:
            if time.monotonic() > until:
                raise TimeoutError("the swap did not come")
            time.sleep(0.005)

    def outside(self, seconds: float) -> list[tuple[float, float]]:
        """Return the spans of the run that no swap was in; each swap's goes on for a moment."""
        ends = [0.0, *(last + 0.2 for _, last in self.spans)]
        begins = [*(first for first, _ in self.spans), seconds]
        return [(end, begin) for end, begin in zip(ends, begins, strict=True) if begin > end]


def describe_swaps(found: Found, swaps: Swaps, *, rate: float, capacity: float) -> Json:
    """Return what came of a run with swaps."""
    whole_s = max(found.due_s, default=0.0)
    before, during = found.p_ms(0.99, within=swaps.outside(whole_s)), found.p_ms(0.99, within=swaps.spans)
    return {
        "requests": len(found.latency_s) + len(found.failed),
        "rate": rate,
        "capacity": capacity,
        "swaps": len(swaps.spans),
        "swap_s": statistics.median([last - first for first, last in swaps.spans] or [float("nan")]),
        "failed": found.failed[:5] + swaps.failed if found.failed or swaps.failed else [],
        "failures": len(found.failed),
        "mixed": found.mixed,
        "generations": len(found.generations),
        "p50_ms": found.p_ms(0.5),
        "p99_before_ms": before,
        "p99_during_ms": during,
        "ratio": during / before,
    }
