"""Dynamic batching: a queue before an engine gathers requests along the first axis and splits the answers again.

One dispatcher a instance takes batches from it, so that while an instance is at work the next batch grows.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from modelreg.registry.toolchains.pieces import Feed, whole
from modelreg.registry.words import Json
from modelreg.runtime.batches import Batching, Lane, count_ready, find_lane, join, largest_batch, split
from modelreg.runtime.engines import Engine, is_dead
from modelreg.runtime.mailbox import one_wakeup
from modelreg.runtime.runner import RunError
from modelreg.runtime.serving import DeadlineExceededError, InstanceState, NotServingError, QueueFullError, expired
from modelreg.runtime.turns import ALONE, Turn

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.generic]
    Outputs = dict[str, Array]

RunBatch = Callable[[Feed], "Outputs"]


class Queued(Future["Outputs"]):
    """
    The outputs of a request, once a batch had it.

    Attributes:
        turn: How its turn came; told before the outputs are there.
        is_unwanted: Whether somebody tried to take it back: whoever counts by answers may not hear of it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.turn: Turn = ALONE
        self.is_unwanted = False

    def cancel(self) -> bool:
        """Take the request back; return whether it still waited."""
        self.is_unwanted = True
        return super().cancel()


@dataclass(slots=True, eq=False)
class _Request:
    """One that waits. Its future is cancelled where nobody wants the answer any more; then it is never run."""

    inputs: Mapping[str, Array]
    rows: int
    came_s: float
    until_s: float | None
    future: Queued
    queue_s: float = 0.0


class Batcher:
    """An engine that batches what it is asked; it owns the engine below."""

    def __init__(self, engine: Engine, batching: Batching, *, run_batch: RunBatch, dispatchers: int) -> None:
        """
        Begin.

        Args:
            engine: What answers.
            batching: The rules; that the model can be batched was checked.
            run_batch: Has the engine run one batch.
            dispatchers: How many batches may be on the engine at a time.
        """
        self._engine, self._batching, self._run_batch = engine, batching, run_batch
        self._largest = largest_batch(engine.profiles)
        self._lanes: dict[Lane, deque[_Request]] = {}
        self._waiting = 0
        self._is_closed = False
        self._lock = threading.Lock()
        self._came = threading.Condition(self._lock)
        self._threads = [
            threading.Thread(target=self._dispatch, name=f"modelreg batch {number}", daemon=True)
            for number in range(dispatchers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def profiles(self) -> Sequence[Json]:
        """Return the profiles of the engine below."""
        return self._engine.profiles

    @property
    def instances(self) -> Sequence[InstanceState]:
        """Return a look at the instances below."""
        return self._engine.instances

    @property
    def waiting(self) -> int:
        """Return how many requests wait."""
        return self._waiting

    def submit(self, inputs: Mapping[str, Array], *, until_s: float | None = None) -> Queued:
        """
        Have a request run with others; return at once. Cancelling what still waits takes it out of the queue.

        Raises:
            RunError: It has no rows, or more than the engine takes.
            QueueFullError: As many wait as may.
            DeadlineExceededError: Its time is over already.
            NotServingError: The engine is closed.
        """
        lane, rows = find_lane(inputs)
        if self._largest is not None and rows > self._largest:
            raise RunError(f"the request has {rows} rows, and the largest profile takes {self._largest}")
        now_s = time.monotonic()
        if until_s is not None and until_s <= now_s:
            raise DeadlineExceededError("the request's time was over before it came")
        request = _Request(inputs, rows, now_s, until_s, Queued())
        with self._lock:
            if self._is_closed:
                raise NotServingError("this engine is closed")
            if self._waiting >= self._batching.max_queue:
                raise QueueFullError(f"{self._waiting} requests wait, and no more may")
            self._lanes.setdefault(lane, deque()).append(request)
            self._waiting += 1
            self._came.notify()
        request.future.add_done_callback(lambda future: self._forget(lane, request) if future.cancelled() else None)
        return request.future

    def run(self, inputs: Feed, *, until_s: float | None = None) -> Outputs:
        """Return every output; raises as `submit`, and what the engine raises."""
        return self.run_in_turn({name: whole(array) for name, array in inputs.items()}, until_s=until_s)[0]

    def run_in_turn(self, inputs: Mapping[str, Array], *, until_s: float | None = None) -> tuple[Outputs, Turn]:
        """Return the same, and how its turn came."""
        future = self.submit(inputs, until_s=until_s)
        try:
            return future.result(None if until_s is None else max(0.0, until_s - time.monotonic())), future.turn
        except FutureTimeoutError:
            if future.cancel():
                raise expired() from None
            return future.result(), future.turn
        except CancelledError:
            raise NotServingError("the request was cancelled") from None
        except BaseException:
            future.cancel()  # the caller was interrupted: what still waits shall not be run for nobody
            raise

    def read_free_memory(self) -> int | None:
        """Return what the engine below says."""
        return self._engine.read_free_memory()

    def close(self) -> None:
        """Refuse what still waits, let the dispatchers end, free the engine."""
        with self._lock:
            self._is_closed = True
            left = [request for lane in self._lanes.values() for request in lane]
            self._lanes.clear()
            self._waiting = 0
            self._came.notify_all()
        for request in left:
            _fail(request, NotServingError("this engine is closed"))
        for thread in self._threads:
            thread.join()
        self._engine.close()

    def is_gone(self) -> bool:
        """Return what the engine below says."""
        return self._engine.is_gone()

    # -- the queue -----------------------------------------------------------------------------------------
    def _forget(self, lane: Lane, request: _Request) -> None:
        """Take a cancelled request out of the queue, where it still is."""
        with self._lock:
            waiting = self._lanes.get(lane)
            if waiting is None or request not in waiting:
                return
            waiting.remove(request)
            self._waiting -= 1
            if not waiting:
                del self._lanes[lane]
            self._came.notify()  # the next one in the lane may be due sooner, or fit now

    def _take(self) -> list[_Request] | None:
        """Return the next batch, once there is one; None when all is closed."""
        with self._lock:
            while not self._is_closed:
                now_s = time.monotonic()
                wait_s: float | None = None
                for lane, waiting in sorted(self._lanes.items(), key=lambda each: each[1][0].came_s):
                    waited_us = (now_s - waiting[0].came_s) * 1e6
                    rows = [request.rows for request in islice(waiting, self._batching.max_batch + 1)]
                    count = count_ready(rows, self._batching, waited_us=waited_us)
                    if count:
                        return self._pop(lane, count)
                    left_s = (self._batching.max_delay_us - waited_us) / 1e6
                    wait_s = left_s if wait_s is None else min(wait_s, left_s)
                self._came.wait(wait_s)
            return None

    def _pop(self, lane: Lane, count: int) -> list[_Request]:
        waiting = self._lanes[lane]
        batch = [waiting.popleft() for _ in range(count)]
        self._waiting -= count
        if not waiting:
            del self._lanes[lane]
        if self._lanes:
            self._came.notify()  # for another dispatcher
        return batch

    # -- the dispatchers -----------------------------------------------------------------------------------
    def _dispatch(self) -> None:
        while (batch := self._take()) is not None:
            now_s = time.monotonic()
            live = []
            for request in batch:
                if request.until_s is not None and request.until_s <= now_s:
                    _fail(request, expired())
                elif request.future.set_running_or_notify_cancel():
                    request.queue_s = now_s - request.came_s
                    live.append(request)
            if live:
                self._answer(live, self._run_batch if len(live) > 1 else self._engine.run)

    def _answer(self, batch: Sequence[_Request], run: RunBatch) -> None:
        try:
            if len(batch) == 1:
                answers = [run(batch[0].inputs)]
            else:
                outputs = run(join([request.inputs for request in batch]))
                answers = split(outputs, [request.rows for request in batch])
        except Exception as error:  # of the engine, or of somebody's array: it must not end the dispatcher
            if len(batch) == 1 or is_dead(error):
                for request in batch:
                    request.future.set_exception(error)
                return
            for request in batch:  # one of them is bad, and the others shall not suffer for it
                self._answer([request], run)
            return
        rows = sum(request.rows for request in batch)
        counting = next((request for request in batch if not request.future.is_unwanted), batch[0])
        with one_wakeup():
            for request, answer in zip(batch, answers, strict=True):
                request.future.turn = Turn(request.queue_s, rows, int(request is counting))
                request.future.set_result(answer)


def _fail(request: _Request, error: Exception) -> None:
    if request.future.set_running_or_notify_cancel():
        request.future.set_exception(error)
