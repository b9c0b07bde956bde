"""A collector stopped in the middle (a real process, SIGSTOP), somebody at work meanwhile, and the collector again.

Whoever was told that it succeeded finds all that it relies on; whoever was refused changed nothing.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from modelreg.registry import operations, pins
from modelreg.registry.clock import utc_now
from modelreg.registry.errors import ModelregError
from modelreg.registry.leases import Holder, hold
from modelreg.registry.promotion import RollbackRequest
from modelreg.registry.releasing import Releases
from modelreg.registry.storage.interface import Storage
from modelreg.registry.storage.s3 import S3Storage
from modelreg_testing.postgresql import PostgresServer
from modelreg_testing.registry import ACTOR, url_of
from modelreg_testing.s3_server import LIMITS, S3Server
from modelreg_testing.stock import CHANNEL, ORPHAN, Stock, Stop, digest, plan_of, stopping
from modelreg_testing.storage_faults import exit_code, start_child

pytestmark = pytest.mark.slow

REFUSED = 3
TAKING, TAKEN = "before the mark is taken", "after the mark is taken"
REMOVING, REMOVED = "before the blob is removed", "after the blob is removed"
RELEASE = "before the release is removed"
Action = Callable[[Stock], object]


def register(stock: Stock) -> None:
    """Store what an earlier, interrupted registration stored: the bytes are there, marked, and named by nothing."""
    stock.storage.put_bytes(ORPHAN)


def rebuild(stock: Stock) -> None:
    """Build an engine whose plan has the very bytes that are being removed."""
    stock.build(1)


def promote(stock: Stock) -> None:
    """Promote the version whose plan and release are being removed."""
    stock.promote(1)


def rollback(stock: Stock) -> None:
    """Bring back the release that is being removed."""
    stock.rollback(1)


def pin(stock: Stock) -> None:
    """Pin the version, and be told whether its plan is still there."""
    version = stock.register(1)
    pins.set_pin(stock.storage, version, message="", actor=ACTOR, at=utc_now())
    if not stock.storage.keep_blob(digest(plan_of(1))):
        raise ModelregError("engine 1 was removed by gc")


def lease(stock: Stock) -> None:
    """Hold the release, as a host that has its files already and comes back after a long time."""
    hold(stock.storage, stock.storage.read_history("lenet", CHANNEL, 1), Holder(host="h", pid=1, instance="i"))


OF_THE_RELEASE = (rollback, lease)
"""What meets a collector that is at the release; the others meet it at a blob, and then the release is gone already."""
STORING = (register, rebuild)
CASES = [
    (register, TAKING, True),
    (register, TAKEN, True),
    (register, REMOVING, True),
    (register, REMOVED, True),
    (rebuild, TAKING, True),
    (rebuild, TAKEN, True),
    (rebuild, REMOVED, True),
    (promote, TAKING, True),
    (promote, TAKEN, True),  # its intent is there when the collector looks once more, so the plan is taken back
    (promote, REMOVING, False),
    (promote, REMOVED, False),
    (rollback, TAKING, True),
    (rollback, TAKEN, False),
    (rollback, RELEASE, False),
    (pin, TAKING, True),
    (pin, TAKEN, True),
    (pin, REMOVING, False),
    (lease, TAKING, True),
    (lease, TAKEN, True),
]
"""Who meets a collector where, and whether it gets what it wants."""


@pytest.fixture
def local(in_memory: Path) -> Stock:
    return prepared(Stock.local(in_memory))


@pytest.fixture
def remote(s3_server: S3Server, in_memory: Path) -> Stock:
    location = s3_server.make_store().location
    return prepared(Stock.create(in_memory, lambda: S3Storage(location, limits=LIMITS)))


def prepared(stock: Stock) -> Stock:
    """Return a registry where the first version's plan and release are due, and so is an orphan."""
    stock.release(1, 2, 3)
    stock.storage.put_bytes(ORPHAN)
    return stock


def first_release(stock: Stock) -> str:
    return stock.storage.read_history("lenet", CHANNEL, 1).release


def meet(stock: Stock, action: Action, point: str) -> bool:
    """Stop a collector at a point, start the action, let the collector go on; return whether the action succeeded."""
    blob = digest(ORPHAN if action is register else plan_of(1))
    stop = Stop(point, [first_release(stock) if action in OF_THE_RELEASE else blob])
    collector = start_stopping(lambda: stock.collect(storage=stopping(stock.storage, stop)))
    actor = start_child(lambda: act(stock, action))
    # Who only stores is served whenever the collector goes on: it need not have come to where it waits.
    done = None if action in STORING and point is not TAKING else wait_for(actor, stock, action)
    os.kill(collector, signal.SIGCONT)
    assert exit_code(collector) == 0
    code = done if done is not None else exit_code(actor)
    assert code in (0, REFUSED)
    return code == 0


def start_stopping(work: Callable[[], object]) -> int:
    """Start a process and return its id when it has stopped itself."""
    pid = start_child(work)
    _, status = os.waitpid(pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), "it never came to the point"
    return pid


def act(stock: Stock, action: Action) -> None:
    try:
        action(stock)
    except ModelregError:
        os._exit(REFUSED)


def wait_for(pid: int, stock: Stock, action: Action) -> int | None:
    """Wait until a process has come to its end (return how), or has said in the registry what it wants and waits."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if has_said_so(stock, action):
            return None
        time.sleep(0.02)
    raise AssertionError("it neither ended nor said what it wants")


def has_said_so(stock: Stock, action: Action) -> bool:
    if action is promote:
        with stock.database() as database, database.read() as connection:
            return bool(operations.open_operations(connection))
    if action is pin:
        return bool(pins.list_pins(stock.storage))
    return False


def require_kept(stock: Stock, action: Action) -> None:
    """Check that an action which succeeded has what it was told."""
    if action is register:
        assert stock.has(ORPHAN)
        return
    assert stock.has(plan_of(1))
    assert any(not engine.is_swept for engine in stock.engines_of(1))
    if action in (promote, rollback):
        assert stock.served().version == 1
    if action in (promote, rollback, lease):
        stock.storage.verify_release(first_release(stock))


def require_meeting(stock: Stock, action: Action, point: str, *, succeeds: bool) -> None:
    assert meet(stock, action, point) is succeeds
    stock.check()
    if succeeds:
        require_kept(stock, action)
    else:
        assert stock.served().version == 3
    stock.collect(keep=9, keep_versions=9)
    stock.check()


@pytest.mark.parametrize(("action", "point", "succeeds"), CASES)
def test_who_meets_a_collector_is_served_or_refused_and_never_cheated(
    local: Stock, action: Action, point: str, succeeds: bool
) -> None:
    require_meeting(local, action, point, succeeds=succeeds)


@pytest.mark.parametrize(("action", "succeeds"), [(register, True), (promote, True), (rollback, False)])
def test_so_it_is_in_s3_where_there_is_no_lock(remote: Stock, action: Action, succeeds: bool) -> None:
    require_meeting(remote, action, TAKEN, succeeds=succeeds)


@pytest.mark.parametrize(
    ("action", "point", "succeeds"),
    [(rebuild, TAKEN, True), (promote, TAKEN, True), (promote, REMOVING, False), (rollback, TAKEN, False)],
)
def test_so_it_is_with_the_database_on_a_server(
    postgres: PostgresServer, in_memory: Path, action: Action, point: str, succeeds: bool
) -> None:
    with postgres.registry() as database:
        stock = prepared(Stock.local(in_memory, database_url=url_of(database)))
        require_meeting(stock, action, point, succeeds=succeeds)


def rollback_without_database(stock: Stock, storage: Storage) -> object:
    releases = Releases(database=None, storage=storage, actor=ACTOR)
    return releases.rollback("lenet", channel=CHANNEL, request=RollbackRequest(to_generation=1))


@pytest.mark.parametrize("name", ["local", "remote"])
@pytest.mark.parametrize("has_database", [True, False])
def test_who_is_stopped_before_the_swap_finds_the_release_whole_after_a_collection(
    request: pytest.FixtureRequest, name: str, has_database: bool
) -> None:
    """The release was marked long ago; that it is wanted is known by its mark, and where there is a database, there."""
    stock: Stock = request.getfixturevalue(name)
    stock.collect(grace=timedelta(days=7))
    storage = stopping(stock.storage, Stop("before the pointer is moved", [first_release(stock)]))
    if has_database:
        actor = start_stopping(lambda: stock.promote(1, storage=storage))
    else:
        actor = start_stopping(lambda: rollback_without_database(stock, storage))
    stock.collect(grace=timedelta(microseconds=1))
    os.kill(actor, signal.SIGCONT)
    assert exit_code(actor) == 0
    assert stock.served().version == 1
    stock.storage.verify_release(first_release(stock))
    stock.check()
