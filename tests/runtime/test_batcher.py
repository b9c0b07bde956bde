"""The queue of dynamic batching, with an engine that says what it was asked and can be held up."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from modelreg.registry.errors import WorkerError
from modelreg.registry.toolchains.pieces import Pieces, whole
from modelreg.runtime.batcher import Batcher, Queued
from modelreg.runtime.batches import Batching
from modelreg.runtime.runner import RunError
from modelreg.runtime.serving import DeadlineExceededError, NotServingError, QueueFullError
from modelreg.runtime.turns import Turn
from modelreg_testing.serving import eventually

Array = NDArray[Any]


class Doubler:
    """Doubles, notes the rows of each call, refuses negative numbers; waits for `go` before it answers."""

    profiles: Any = ({"x": {"min": [1, 1], "opt": [4, 1], "max": [6, 1]}},)
    instances = ()
    waiting = 0

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.go = threading.Event()
        self.go.set()
        self.is_closed = False
        self.fatal = False

    def run(self, inputs: Mapping[str, Array | Pieces], *, until_s: float | None = None) -> dict[str, Array]:
        x = whole(inputs["x"])
        self.calls.append(len(x))
        self.go.wait()
        if self.fatal:
            raise WorkerError("dead")
        if (x < 0).any():
            raise RunError("negative")
        return {"y": x * 2}

    def read_free_memory(self) -> int | None:
        return None

    def close(self) -> None:
        self.is_closed = True

    def is_gone(self) -> bool:
        return self.is_closed


@contextmanager
def batcher(*, dispatchers: int = 1, **rules: Any) -> Iterator[tuple[Batcher, Doubler]]:
    engine = Doubler()
    batching = Batching(**{"max_batch": 4, **rules})
    made = Batcher(engine, batching, run_batch=engine.run, dispatchers=dispatchers)
    try:
        yield made, engine
    finally:
        engine.go.set()
        made.close()
        assert engine.is_closed


def rows(*numbers: float, width: int = 1) -> dict[str, Array]:
    return {"x": np.array([[number] * width for number in numbers], np.float32)}


def answers(futures: Sequence[Future[Any]]) -> list[list[float]]:
    return [future.result(60)["y"][:, 0].tolist() for future in futures]


def hold(made: Batcher, engine: Doubler) -> Queued:
    """Have the engine at work on a request, so that what comes next waits."""
    engine.go.clear()
    first = made.submit(rows(100))
    eventually(lambda: engine.calls == [1])
    return first


def test_what_waits_while_the_engine_works_goes_together_in_its_order() -> None:
    with batcher() as (made, engine):
        first = hold(made, engine)
        rest = [made.submit(rows(*each)) for each in ([1], [2, 3], [4], [5])]
        assert made.waiting == 4
        engine.go.set()
        assert answers([first, *rest]) == [[200], [2], [4, 6], [8], [10]]
        assert engine.calls == [1, 4, 1]
        assert made.waiting == 0


def test_an_idle_engine_waits_for_others_as_long_as_it_may() -> None:
    with batcher(max_batch=2, max_delay_us=60_000_000) as (made, engine):
        one = made.submit(rows(1))
        assert not one.done()
        other = made.submit(rows(2))  # now it is full
        assert answers([one, other]) == [[2], [4]]
        assert engine.calls == [2]
    with batcher(max_batch=4, max_delay_us=60_000_000, preferred=(1,)) as (made, engine):
        assert made.run(rows(1))["y"].tolist() == [[2]]
    with batcher(max_batch=4, max_delay_us=1000) as (made, engine):
        assert made.run(rows(1))["y"].tolist() == [[2]]


def test_other_shapes_do_not_share_a_batch_and_none_starves() -> None:
    with batcher() as (made, engine):
        first = hold(made, engine)
        narrow = [made.submit(rows(number)) for number in (1, 2)]
        wide = [made.submit(rows(number, width=2)) for number in (3, 4)]
        engine.go.set()
        assert answers([first, *narrow, *wide]) == [[200], [2], [4], [6], [8]]
        assert engine.calls == [1, 2, 2]


def test_each_answer_says_how_its_turn_came_and_one_of_a_batch_counts_for_it() -> None:
    with batcher() as (made, engine):
        first = hold(made, engine)
        unwanted, one, other = (made.submit(rows(*each)) for each in ([1], [2], [3, 4]))
        taken = made.submit(rows(5))
        assert taken.cancel()
        engine.go.set()
        answers([first, one, other])
        assert first.turn == Turn(first.turn.queue_s, 1, 1)
        assert [each.turn.batch_rows for each in (unwanted, one, other)] == [4, 4, 4]
        assert [each.turn.executions for each in (unwanted, one, other)] == [1, 0, 0]
        assert 0 <= first.turn.queue_s <= one.turn.queue_s
        assert made.run_in_turn(rows(7))[1].executions == 1


def test_a_request_that_nobody_wants_any_more_does_not_count_for_its_batch() -> None:
    with batcher(max_batch=2, max_delay_us=60_000_000) as (made, engine):
        engine.go.clear()
        unwanted, wanted = made.submit(rows(1)), made.submit(rows(2))
        eventually(lambda: engine.calls == [2])
        assert not unwanted.cancel()  # it runs, and its answer is heard by nobody
        engine.go.set()
        assert answers([unwanted, wanted]) == [[2], [4]]
        assert [each.turn.executions for each in (unwanted, wanted)] == [0, 1]


def test_a_bad_request_does_not_fail_its_neighbours() -> None:
    with batcher() as (made, engine):
        hold(made, engine)
        good, bad, also = (made.submit(rows(number)) for number in (1, -2, 3))
        engine.go.set()
        assert answers([good, also]) == [[2], [6]]
        with pytest.raises(RunError, match="negative"):
            bad.result(60)
        assert engine.calls == [1, 3, 1, 1, 1]


def test_a_dead_engine_fails_the_batch_and_is_not_asked_again() -> None:
    with batcher() as (made, engine):
        hold(made, engine)
        both = [made.submit(rows(number)) for number in (1, 2)]
        engine.fatal = True
        engine.go.set()
        for each in both:
            with pytest.raises(WorkerError):
                each.result(60)
        assert engine.calls == [1, 2]


def test_what_is_larger_than_a_batch_goes_alone_and_what_no_profile_takes_is_refused() -> None:
    with batcher() as (made, engine):
        hold(made, engine)
        futures = [made.submit(rows(*range(size))) for size in (1, 6, 1)]
        engine.go.set()
        assert [len(each) for each in answers(futures)] == [1, 6, 1]
        assert engine.calls == [1, 1, 6, 1]
        with pytest.raises(RunError, match="7 rows, and the largest profile takes 6"):
            made.run(rows(*range(7)))


def test_a_request_whose_time_is_over_is_never_run() -> None:
    import time

    with batcher() as (made, engine):
        hold(made, engine)
        with pytest.raises(DeadlineExceededError):  # its own caller gives up, though the engine never comes
            made.run(rows(1), until_s=time.monotonic() + 0.02)
        assert made.waiting == 0
        late = made.submit(rows(2), until_s=time.monotonic() + 0.02)
        kept = made.submit(rows(3), until_s=time.monotonic() + 60)
        with pytest.raises(DeadlineExceededError):
            made.submit(rows(4), until_s=time.monotonic())
        assert not threading.Event().wait(0.03)
        engine.go.set()
        assert answers([kept]) == [[6]]
        with pytest.raises(DeadlineExceededError):
            late.result(60)
        assert engine.calls == [1, 1]


def test_a_full_queue_refuses_at_once_and_a_cancelled_request_makes_room() -> None:
    with batcher(max_queue=2) as (made, engine):
        hold(made, engine)
        one, other = made.submit(rows(1)), made.submit(rows(2))
        with pytest.raises(QueueFullError, match="2 requests wait"):
            made.submit(rows(3))
        assert one.cancel()
        third = made.submit(rows(3))
        engine.go.set()
        assert answers([other, third]) == [[4], [6]]
        assert engine.calls == [1, 2]


def test_several_dispatchers_have_several_batches_on_the_engine() -> None:
    with batcher(dispatchers=2, max_batch=1) as (made, engine):
        engine.go.clear()
        futures = [made.submit(rows(number)) for number in (1, 2, 3)]
        eventually(lambda: engine.calls == [1, 1])
        assert made.waiting == 1
        engine.go.set()
        assert answers(futures) == [[2], [4], [6]]


def test_closing_answers_what_runs_and_refuses_what_waits() -> None:
    with batcher() as (made, engine):
        first = hold(made, engine)
        waiting = made.submit(rows(1))
        closing = threading.Thread(target=made.close)
        closing.start()
        with pytest.raises(NotServingError):
            waiting.result(60)
        engine.go.set()
        closing.join()
        assert answers([first]) == [[200]]
        with pytest.raises(NotServingError):
            made.submit(rows(1))


def test_many_threads_get_their_own_rows() -> None:
    wrong: list[float] = []
    with batcher(dispatchers=3, max_batch=4, max_delay_us=200) as (made, engine):

        def ask(seed: int) -> None:
            random = np.random.default_rng(seed)
            for _ in range(100):
                sent = random.normal(size=(random.integers(1, 7), 1)).astype(np.float32)
                found = made.run({"x": np.abs(sent)})["y"]
                if not np.array_equal(found, np.abs(sent) * 2):
                    wrong.append(float(sent[0, 0]))

        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(engine.calls) < 600  # some went together
    assert wrong == []
