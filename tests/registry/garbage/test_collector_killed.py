"""A collector killed at every step, or whose steps fail: nothing needed is missing, and the next one finishes."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from modelreg.registry.doctor import Doctor, Level
from modelreg.registry.errors import ModelregError
from modelreg.registry.storage import s3_collection
from modelreg.registry.storage.local import LocalStorage
from modelreg.registry.storage.s3 import S3Storage
from modelreg_testing.postgresql import PostgresServer
from modelreg_testing.registry import ACTOR, url_of
from modelreg_testing.s3_server import LIMITS, S3Server, reopened
from modelreg_testing.stock import ORPHAN, Stock, plan_of
from modelreg_testing.storage_faults import counting_ops, failing_ops, in_child, killing_ops

EVERY = int(os.environ.get("MODELREG_GC_EVERY_STEP", "13"))
"""Every so-manieth step is tried; `1` tries all, in some minutes."""
MUTATING = ("put_object", "delete_object")


def prepared(stock: Stock) -> Stock:
    stock.release(1, 2, 3)
    stock.storage.put_bytes(ORPHAN)
    return stock


@pytest.fixture
def template(in_memory: Path) -> Stock:
    return prepared(Stock.local(in_memory / "template"))


def require_sound(stock: Stock) -> None:
    """Check what a collector that died left: all that is needed, a doctor who is content, and work that goes on."""
    stock.check()
    assert stock.has(plan_of(2))
    assert stock.has(plan_of(3))
    with stock.database() as database:
        doctor = Doctor(database=database, storage=stock.storage, actor=ACTOR)
        doctor.repair()
        left = [finding for finding in doctor.examine() if finding.level is not Level.OK]
        # What the collector was at may be nobody's any more, and still there: the next one removes it.
        assert {(finding.level, finding.check) for finding in left} <= {(Level.WARNING, "orphans")}


def require_finished(stock: Stock) -> None:
    """Check that the next collector does what is left, and the one after it nothing."""
    stock.collect()
    assert not stock.has(plan_of(1))
    assert not stock.has(ORPHAN)
    stock.check()
    again = stock.collect()
    assert (again.swept.things, again.marked.things, again.garbage) == (0, 0, [])
    assert [engine.is_swept for engine in stock.engines_of(1)] == [True]
    stock.build(1)
    stock.promote(1)
    stock.check()
    assert stock.rollback().pointer.version == 3


def steps_of(template: Stock, folder: Path) -> list[str]:
    ops, steps = counting_ops()
    stock = template.copy_to(folder)
    stock.collect(storage=LocalStorage(folder / "store", ops=ops))
    return steps


@pytest.mark.slow
def test_killed_at_any_step_on_a_folder_nothing_needed_is_missing(template: Stock, in_memory: Path) -> None:
    folder = in_memory / "copy"
    total = len(steps_of(template, folder))
    assert total > 60
    for number in range(1, total + 1, EVERY):
        stock = template.copy_to(folder)
        killed = LocalStorage(folder / "store", ops=killing_ops(number))
        assert in_child(lambda stock=stock, killed=killed: stock.collect(storage=killed)) in (-signal.SIGKILL, 0)  # type: ignore[misc]
        require_sound(stock)
        require_finished(stock)


@pytest.mark.slow
def test_so_it_is_with_the_database_on_a_server(postgres: PostgresServer, template: Stock, in_memory: Path) -> None:
    total = len(steps_of(template, in_memory / "copy"))
    for number in (total // 3, 2 * total // 3):  # every connection costs as much as a whole collection
        with postgres.registry() as database:
            stock = prepared(Stock.local(in_memory / str(number), database_url=url_of(database)))
            killed = LocalStorage(stock.folder / "store", ops=killing_ops(number))
            assert in_child(lambda stock=stock, killed=killed: stock.collect(storage=killed)) == -signal.SIGKILL  # type: ignore[misc]
            require_sound(stock)
            require_finished(stock)


@pytest.mark.slow
@pytest.mark.parametrize("lasting", [False, True])
def test_where_any_step_fails_the_next_collector_finishes(template: Stock, in_memory: Path, lasting: bool) -> None:
    folder = in_memory / "copy"
    total = len(steps_of(template, folder))
    for number in range(1 + int(lasting), total + 1, 2 * EVERY):
        stock = template.copy_to(folder)
        failing = LocalStorage(folder / "store", ops=failing_ops(number, 28, lasting=lasting))
        with suppress(ModelregError):  # leftovers, for example, it may fail to remove and go on
            stock.collect(storage=failing)
        require_sound(stock)
        require_finished(stock)


@pytest.mark.slow
def test_killed_at_any_write_in_s3_nothing_needed_is_missing(
    s3_server: S3Server, in_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_collection, "LAST_WORDS", timedelta())  # nobody waits for the last words of the dead here
    number, killed = 1, True
    while killed:
        location = s3_server.make_store().location
        stock = prepared(Stock.create(in_memory / f"{number}", lambda at=location: S3Storage(at, limits=LIMITS)))  # type: ignore[misc]
        seen: list[str] = []

        def kill(_number: int, operation: str, _key: str, seen: list[str] = seen, last: int = number) -> None:
            if operation in MUTATING:
                seen.append(operation)
                if len(seen) == last:
                    os.kill(os.getpid(), signal.SIGKILL)

        storage = stock.storage
        assert isinstance(storage, S3Storage)
        dying = reopened(storage, on_step=kill)
        killed = in_child(lambda stock=stock, dying=dying: stock.collect(storage=dying)) == -signal.SIGKILL  # type: ignore[misc]
        require_sound(stock)
        require_finished(stock)
        number += 5


def test_who_died_in_s3_is_not_taken_for_dead_too_early(s3_server: S3Server, in_memory: Path) -> None:
    location = s3_server.make_store().location
    stock = prepared(Stock.create(in_memory, lambda: S3Storage(location, limits=LIMITS)))
    storage = stock.storage
    assert isinstance(storage, S3Storage)

    def kill(_number: int, operation: str, key: str) -> None:
        if operation == "delete_object" and "blobs" in key:
            os.kill(os.getpid(), signal.SIGKILL)

    dying = reopened(storage, on_step=kill)
    assert in_child(lambda: stock.collect(storage=dying)) == -signal.SIGKILL
    found = stock.collect()
    assert (found.swept.things, found.passed_over) == (0, 2)  # a request of the dead one may yet arrive
    stock.check()
