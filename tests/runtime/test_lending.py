from __future__ import annotations

import threading

import pytest

from modelreg.runtime.lending import Lender, Placed, Seat
from modelreg.runtime.serving import NotServingError


class Engine:
    def close(self) -> None:
        pass


def placed(label: str) -> Placed[Engine, str]:
    return Placed(Seat(Engine()), label)


def test_a_request_keeps_the_engine_that_it_began_with() -> None:
    lender: Lender[Engine, str] = Lender()
    lender.swap(placed("one"))
    first = lender.borrow(wait_s=0)
    lender.swap(placed("two"))
    assert (first.label, lender.borrow(wait_s=0).label) == ("one", "two")
    assert not lender.wait_until_free(first.seat, timeout_s=0)
    lender.give_back(first)
    assert lender.wait_until_free(first.seat, timeout_s=0)


def test_who_comes_while_there_is_none_or_a_broken_one_waits() -> None:
    lender: Lender[Engine, str] = Lender()
    with pytest.raises(NotServingError, match="within 0 s"):
        lender.borrow(wait_s=0)
    lender.swap(placed("one"))
    lender.give_back(lender.borrow(wait_s=0), is_broken=True)
    found: list[str] = []
    waiting = threading.Thread(target=lambda: found.append(lender.borrow(wait_s=60).label))
    waiting.start()
    lender.swap(placed("two"))
    waiting.join()
    assert found == ["two"]


def test_who_waits_when_all_is_closed_gets_an_error() -> None:
    lender: Lender[Engine, str] = Lender()
    found: list[str] = []

    def wait() -> None:
        try:
            lender.borrow(wait_s=60)
        except NotServingError as error:
            found.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    lender.close()
    waiting.join()
    assert found == ["this model is closed"]
