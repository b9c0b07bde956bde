from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from modelreg.runtime.mailbox import Mailbox, one_wakeup


class CountingLoop:
    """Counts wake-ups and makes the calls at once."""

    def __init__(self) -> None:
        self.wakeups = 0

    def call_soon_threadsafe(self, call: Callable[[], None]) -> None:
        self.wakeups += 1
        call()


def test_many_calls_wake_the_loop_once_and_keep_their_order() -> None:
    loop: Any = CountingLoop()
    other: Any = CountingLoop()
    made: list[int] = []
    box, another = Mailbox(loop), Mailbox(other)
    with one_wakeup():
        for number in range(3):
            box.put(lambda number=number: made.append(number))  # type: ignore[misc]
        another.put(lambda: made.append(7))
        assert made == []
    assert (made, loop.wakeups, other.wakeups) == ([0, 1, 2, 7], 1, 1)
    box.put(lambda: made.append(3))
    assert (made[-1], loop.wakeups) == (3, 2)


def test_calls_of_another_thread_are_made_by_the_loop() -> None:
    async def go() -> list[int]:
        made: list[int] = []
        box, over = Mailbox(asyncio.get_running_loop()), asyncio.Event()

        def put() -> None:
            with one_wakeup():
                box.put(lambda: made.append(threading.get_ident()))
                box.put(over.set)

        thread = threading.Thread(target=put)
        thread.start()
        await over.wait()
        thread.join()
        return made

    assert asyncio.run(go()) == [threading.get_ident()]


def test_a_loop_that_is_closed_is_told_nothing() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    Mailbox(loop).put(lambda: None)
