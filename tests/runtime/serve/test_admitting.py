"""Places and the queue for them; time stands still here, or is over from the beginning."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest

from modelreg.runtime.serve.admitting import Admission, Gate
from modelreg.runtime.serve.problems import ExpiredError, GoneError, NoRoomError


def in_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


async def nobody_leaves() -> None:
    await asyncio.Event().wait()


def enter(admission: Admission, *, until_s: float = math.inf, gone: Any = nobody_leaves) -> asyncio.Task[None]:
    return asyncio.ensure_future(admission.enter(until_s=min(until_s, time.monotonic() + 1000), gone=gone))


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@in_a_loop
async def test_places_then_a_queue_in_order_then_a_refusal() -> None:
    admission = Admission(concurrency=2, max_queue=2)
    tasks = [enter(admission) for _ in range(5)]
    await settle()
    assert [task.done() for task in tasks] == [True, True, False, False, True]
    assert admission.waiting == 2
    with pytest.raises(NoRoomError, match="2 requests wait already"):
        await tasks[4]
    admission.leave()
    await settle()
    assert [task.done() for task in tasks[2:4]] == [True, False]
    admission.leave()
    await tasks[3]
    for _ in range(2):
        admission.leave()
    await asyncio.gather(enter(admission), enter(admission))  # both places are free again


@in_a_loop
async def test_who_goes_away_or_expires_leaves_the_queue_and_no_place_is_lost() -> None:
    admission = Admission(concurrency=1, max_queue=9)
    left = asyncio.Event()
    await enter(admission)
    leaving, expiring, staying = (
        enter(admission, gone=left.wait),
        enter(admission, until_s=time.monotonic() + 0.01),
        enter(admission),
    )
    await settle()
    left.set()
    with pytest.raises(GoneError):
        await leaving
    with pytest.raises(ExpiredError, match="while the request waited"):
        await expiring
    assert admission.waiting == 1
    admission.leave()
    await staying


@in_a_loop
async def test_a_place_that_comes_as_the_client_goes_is_passed_on() -> None:
    admission = Admission(concurrency=1, max_queue=9)
    left = asyncio.Event()
    await enter(admission)
    leaving, staying = enter(admission, gone=left.wait), enter(admission)
    await settle()
    left.set()
    admission.leave()  # both in the same turn of the loop
    with pytest.raises(GoneError):
        await leaving
    await staying


@in_a_loop
async def test_a_task_that_is_cancelled_leaves_the_queue() -> None:
    admission = Admission(concurrency=1, max_queue=9)
    await enter(admission)
    waiting = enter(admission)
    await settle()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert admission.waiting == 0
    admission.leave()
    await enter(admission)


@in_a_loop
async def test_a_deadline_that_has_passed_is_said_though_there_is_room() -> None:
    with pytest.raises(ExpiredError):
        await enter(Admission(concurrency=1, max_queue=0), until_s=0.0)


@in_a_loop
async def test_the_gate_knows_when_nothing_is_under_way() -> None:
    gate = Gate()
    assert await gate.wait_until_idle(timeout_s=0.01)
    with gate:
        assert not await gate.wait_until_idle(timeout_s=0.01)
        assert gate.under_way == 1
    assert await gate.wait_until_idle(timeout_s=10)
