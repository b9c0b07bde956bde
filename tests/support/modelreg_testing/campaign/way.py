"""Part 5: the way to an S3 server fails at each request of a command, once and three times in a row."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from modelreg.registry.storage.s3_limits import S3Limits
from modelreg_testing.campaign.checker import Broken, require
from modelreg_testing.campaign.children import Ran, run_child
from modelreg_testing.campaign.commands import look
from modelreg_testing.campaign.homes import CHANNEL, MODEL, Place, must
from modelreg_testing.campaign.results import Tally, spread
from modelreg_testing.campaign.trials import Prepared, check_told, command_value, recover, temporary_in
from modelreg_testing.s3_proxy import Fault, Proxy, Seen, proxy_to

FAULTS = tuple(fault for fault in Fault if fault is not Fault.NONE)
READ_TIMEOUT_S, HOLD_S = 1.0, 1.5
LONGEST_S = 60.0
"""Less than this is *bounded*: three timeouts, and the waits between."""


@dataclass(frozen=True)
class Ways:
    """What is tried: which faults, how many of a command's (last) requests, 0 for all; how late a late write comes."""

    faults: tuple[Fault, ...] = FAULTS
    limit_requests: int = 0
    last_requests: int = 0
    times: tuple[int, ...] = (1, 3)
    late_s: float = 0.0


def hurried() -> None:
    """Let the child's store time out soon; all else is as it ships."""
    defaults = S3Limits.__init__.__kwdefaults__
    assert defaults is not None
    defaults["read_timeout_s"] = READ_TIMEOUT_S


@contextmanager
def through(proxy: Proxy, place: Place) -> Iterator[None]:
    """Let the registry reach its store through the proxy."""
    assert place.server is not None
    config = place.home / "config.toml"
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace(place.server.endpoint_url, proxy.endpoint_url), encoding="utf-8")
    try:
        yield
    finally:
        config.write_text(text, encoding="utf-8")


def fail_the_way(ready: Prepared, ways: Ways, *, share: tuple[int, int] = (0, 1)) -> list[Tally]:
    """Let every fault happen at every request of a command; a row for each fault."""
    server = ready.template.place.server
    assert server is not None
    tallies = []
    with proxy_to(server.endpoint_url) as proxy:
        proxy.hold_s = HOLD_S
        requests = _count_requests(ready, proxy)
        numbers = spread(list(range(1, requests + 1))[-ways.last_requests :], ways.limit_requests)
        for fault in ways.faults:
            tally = Tally("way", f"{ready.command.name}, {fault.name.lower().replace('_', ' ')}", ready.template.store)
            plans = [(number, times) for number in numbers for times in ways.times][share[0] :: share[1]]
            trials = [_Trial(ready, proxy, ways, fault, number, times) for number, times in plans]
            longest = max([_try(tally, trial) for trial in trials], default=0.0)
            tally.notes.append(f"longest {longest:.1f} s")
            tallies.append(tally)
    return tallies


def _count_requests(ready: Prepared, proxy: Proxy) -> int:
    with ready.template.copy(f"requests-{os.getpid()}") as place, temporary_in(place.folder), through(proxy, place):
        proxy.plan = lambda _seen: Fault.NONE
        proxy.seen.clear()
        ran = run_child(place, ready.command.words(place), prepare=hurried)
        assert ran.code == 0, ran.err
        return len(proxy.seen)


@dataclass(frozen=True)
class _Trial:
    """A fault at the `number`-th request of a command, and at the ones after it, `times` in all."""

    ready: Prepared
    proxy: Proxy
    ways: Ways
    fault: Fault
    number: int
    times: int

    def __str__(self) -> str:
        return f"{self.ready.command.name}, {self.fault.name} at request {self.number} x{self.times}"


def _try(tally: Tally, trial: _Trial) -> float:
    """Run one trial and return how long its command took."""
    started, seconds = time.monotonic(), 0.0
    ready, proxy, left = trial.ready, trial.proxy, [trial.times]

    def plan(seen: Seen) -> Fault:
        if seen.number >= trial.number and left[0]:
            left[0] -= 1
            return trial.fault
        return Fault.NONE

    with ready.template.copy(f"way-{os.getpid()}") as place, temporary_in(place.folder):
        try:
            with through(proxy, place):
                proxy.seen.clear()
                proxy.plan = plan
                ran = run_child(place, ready.command.words(place), prepare=hurried)
                proxy.plan = lambda _seen: Fault.NONE
            seconds = ran.seconds
            tally.count(_judge(place, trial, ran))
        except (Broken, AssertionError, OSError) as error:
            proxy.deliver_late()
            tally.count("VIOLATION")
            tally.violations.append(f"[s3] {trial}: {' '.join(str(error).split())[:600]}")
    tally.seconds += time.monotonic() - started
    return seconds


def _judge(place: Place, trial: _Trial, ran: Ran) -> str:
    ready = trial.ready
    require(ran.code != -signal.SIGXCPU and ran.seconds < LONGEST_S, "time", f"it took {ran.seconds:.0f} s")
    require(ran.code != 4, "told", f"a conflict, and nobody else was there: {ran.err[-300:]}")
    value = command_value(place, ready)
    check_told(ran, value=value, ready=ready)
    if trial.fault is Fault.LATE and trial.ways.late_s and ran.code == 0:
        _overtake(place, trial.proxy, trial.ways.late_s)
        gone_on = replace(ready, command=replace(ready.command, moves_on=True))
        recover(place, gone_on, fix_first=False, value=value, ran=ran)
        return "new, then overtaken, exit 0"
    if trial.fault is Fault.LATE:
        value = _let_it_arrive(place, ready, trial.proxy, ran)
    recover(place, ready, fix_first=trial.number % 2 == 0, value=value, ran=ran)
    name = "old" if value == ready.old else "new"
    return f"{name}, exit {ran.code}"


def _let_it_arrive(place: Place, ready: Prepared, proxy: Proxy, ran: Ran) -> object:
    """Deliver what was held back; it may change only what was called unknown."""
    value = command_value(place, ready)
    proxy.deliver_late()
    after = command_value(place, ready)
    require(ran.code == 5 or after == value, "told", f"exit {ran.code}, and a late write changed that")
    return after


def _overtake(place: Place, proxy: Proxy, late_s: float) -> None:
    """Let somebody else promote, and the late write arrive long after that: it changes nothing."""
    must(place, "promote", f"{MODEL}:1", "--to", CHANNEL)
    time.sleep(late_s)
    before = look(place).generation
    proxy.deliver_late()
    after = look(place).generation
    require(before == after, "I2", f"a late write moved the channel from {before} to {after}")
