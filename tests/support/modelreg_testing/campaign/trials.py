"""Parts 1 and 2: a command killed, or one of its calls failed, everywhere; then what is there, and going on from it."""

from __future__ import annotations

import errno
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from modelreg.registry.scratch import sweep_scratch
from modelreg.registry.storage.writing import host_name
from modelreg_testing.campaign.checker import Broken, check_settled, fingerprint, parse_document, require
from modelreg_testing.campaign.children import (
    Call,
    Ran,
    can_fail,
    count_calls,
    count_points,
    fail_at,
    kill_at,
    run_child,
    run_with_fault,
)
from modelreg_testing.campaign.commands import Command, database_is_away, look
from modelreg_testing.campaign.homes import CHANNEL, MODEL, Place, Template, must
from modelreg_testing.campaign.results import Tally, spread

T = TypeVar("T")

ERRORS = ("EIO", "ENOSPC", "EDQUOT", "EMFILE", "EACCES", "EINTR")
_NETWORK = ("sendto", "recvfrom")
_AFTER_THE_ACT = "could not be printed to standard output"


@dataclass(frozen=True)
class Prepared:
    """A template in which a command has work to do, its value before and after, and where it can be stopped."""

    command: Command
    template: Template
    old: object
    new: object
    points: tuple[str, ...]
    calls: tuple[Call, ...]


@contextmanager
def temporary_in(folder: Path) -> Iterator[None]:
    """Let temporary files of this process and its children lie below `folder`."""
    before, variable = tempfile.tempdir, os.environ.get("TMPDIR")
    (folder / "tmp").mkdir(exist_ok=True)
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder / "tmp")
    try:
        yield
    finally:
        tempfile.tempdir = before
        if variable is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = variable


@contextmanager
def prepared(command: Command, template: Template, *, traced: bool) -> Iterator[Prepared]:
    """Bring a copy of the template into the state before the command, and run it undisturbed to know its end."""
    with template.copy(f"{command.name}-{os.getpid()}") as place, temporary_in(place.folder):
        command.before(place)
        ready = Template(place)
        old = command.seen(look(place))
        points: list[str] = []
        calls: list[Call] = []
        new = old
        with ready.copy(f"{command.name}-warm-{os.getpid()}") as warm:
            done = warm.cli(*command.words(warm))  # imports everything, so that the children find it
            assert done.code == 0, done.err
            new = command.seen(look(warm))
        assert new != old, f"{command.name} changes nothing"
        with ready.copy(f"{command.name}-counted-{os.getpid()}") as counted:
            ran, points = count_points(counted, command.words(counted))
            assert ran.code == 0, ran.err
        if traced:
            with ready.copy(f"{command.name}-traced-{os.getpid()}") as counted:
                ran, calls = count_calls(counted, command.words(counted))
                assert ran.code == 0, ran.err
        yield Prepared(command, ready, old, new, tuple(points), tuple(calls))


# -- kills ---------------------------------------------------------------------------------------------------
Case = tuple[str, Callable[[Place], Ran]]
"""What is done, in words; and what does it to a registry and returns what the command left."""


@dataclass(frozen=True)
class Limits:
    """How many points and calls, 0 for all; and which `share` of these, of how many."""

    points: int = 0
    calls: int = 0
    share: int = 0
    of: int = 1

    def mine(self, cases: list[T]) -> list[T]:
        return cases[self.share :: self.of]


def kill_everywhere(ready: Prepared, limits: Limits) -> list[Tally]:
    """Kill a command at its named points, then at its system calls."""
    points: list[Case] = [
        (f"killed at point {number}, {ready.points[number - 1]}", partial(_kill_at_point, ready, number))
        for number in spread(list(range(1, len(ready.points) + 1)), limits.points)
    ]
    calls: list[Case] = [
        (f"killed at {call}", partial(_kill_at_call, ready, call)) for call in spread(list(ready.calls), limits.calls)
    ]
    return [
        _try_all("kills", "named points", ready, limits.mine(points), told=False),
        _try_all("kills", "system calls", ready, limits.mine(calls), told=False),
    ]


def _kill_at_point(ready: Prepared, number: int, place: Place) -> Ran:
    return run_child(place, ready.command.words(place), prepare=kill_at(number))


def _kill_at_call(ready: Prepared, call: Call, place: Place) -> Ran:
    return run_with_fault(place, ready.command.words(place), call, "signal=KILL")


def _try_all(part: str, where: str, ready: Prepared, cases: list[Case], *, told: bool) -> Tally:
    tally = Tally(part, f"{ready.command.name}, {where}", ready.template.store)
    started = time.monotonic()
    for number, (words, act) in enumerate(cases):
        with ready.template.copy(f"trial-{os.getpid()}") as place, temporary_in(place.folder):
            try:
                ran = act(place)
                require(ran.code != -signal.SIGXCPU, "time", "it hangs")
                tally.count(judge(place, ready, ran, told=told, fix_first=number % 2 == 0))
            except (Broken, AssertionError, OSError) as error:
                tally.count("VIOLATION")
                said = " ".join(str(error).split())[:600]
                tally.violations.append(f"[{ready.template.store}] {ready.command.name} {words}: {said}")
    tally.seconds = time.monotonic() - started
    return tally


def judge(place: Place, ready: Prepared, ran: Ran, *, told: bool, fix_first: bool) -> str:
    """Check what is there after a fault, then recover, and check again; return what was there: old or new."""
    value = command_value(place, ready)
    if told:
        check_told(ran, value=value, ready=ready)
    recover(place, ready, fix_first=fix_first, value=value, ran=ran)
    name = "old" if value == ready.old else "new"
    if not ran.met:
        return f"{name} (not met)"
    return f"{name}, exit {ran.code}" if told else name


def command_value(place: Place, ready: Prepared) -> object:
    """Return what the command changes, which must be as before it or as after it."""
    value = ready.command.seen(look(place))
    require(value in (ready.old, ready.new), "old or new", f"{value!r} is neither {ready.old!r} nor {ready.new!r}")
    return value


def recover(place: Place, ready: Prepared, *, fix_first: bool, value: object, ran: Ran) -> None:
    """Go on as a user would: doctor or the next command, whichever comes first, and the command once more."""
    command = ready.command
    if fix_first and not command.repeat_first:
        must(place, "doctor", "--fix")
        after = command_value(place, ready)
        # An error that said "it did not happen" holds; a kill may be finished by whoever comes next.
        require(
            ran.code not in (1, 4, 6) or after == value,
            "told",
            f"exit {ran.code}, and then it happened after all",
        )
        require(value != ready.new or after == ready.new, "I3", "what was done is undone by the doctor")
    must(place, *command.words(place))
    again = command.seen(look(place))
    may_wait = command.waits_in_s3 and place.server is not None
    require(
        again == ready.new or command.moves_on or may_wait, "repeat", f"done again, it is {again!r}, not {ready.new!r}"
    )
    must(place, "doctor", "--fix")
    must(place, "doctor")
    found = look(place)
    check_settled(found.store, found.database)
    require(place.temporary() == [], "I6", f"left behind: {place.temporary()}")
    before = fingerprint(place.marks(), place.database)
    must(place, "doctor", "--fix")
    require(fingerprint(place.marks(), place.database) == before, "I8", "a second recovery changed something")
    sweep_scratch(f"modelreg-worker-{host_name()}.")  # as the next worker does when it begins
    left = [path.name for path in (place.folder / "tmp").glob("modelreg-worker-*")]
    require(not left, "I6", f"left in the temporary folder: {left}")
    database_is_away(place)
    history = {name: data for name, data in place.objects().items() if f"/{CHANNEL}/history/" in name}
    other = next(
        body["generation"]
        for body in map(parse_document, history.values())
        if body["release"] != found.store.channels[f"{MODEL}@{CHANNEL}"].release
    )
    must(place, "rollback", f"{MODEL}@{CHANNEL}", "--to-generation", other)


# -- errors --------------------------------------------------------------------------------------------------
def fail_everywhere(ready: Prepared, limits: Limits) -> list[Tally]:
    """Let every call fail, with all errors, under a limit with one each in turn, and check what is told."""
    able = [number for number, name in enumerate(ready.points, start=1) if can_fail(name)]
    points: list[Case] = [
        (f"{name} at point {number}, {ready.points[number - 1]}", partial(_fail_at_point, ready, number, name))
        for number, name in _with_errors(able, limits.points)
    ]
    files = [call for call in ready.calls if call.name not in _NETWORK]
    calls: list[Case] = [
        (f"{name} at {call}", partial(_fail_at_call, ready, call, name))
        for call, name in _with_errors(files, limits.calls)
    ]
    return [
        _try_all("errors", "named points", ready, limits.mine(points), told=True),
        _try_all("errors", "system calls", ready, limits.mine(calls), told=True),
    ]


def _with_errors(points: list[T], limit: int) -> list[tuple[T, str]]:
    """Pair points with errors: all six each, or under a limit one each, in turn."""
    if limit <= 0:
        return [(point, name) for point in points for name in ERRORS]
    return [(point, ERRORS[index % len(ERRORS)]) for index, point in enumerate(spread(points, limit))]


def _fail_at_point(ready: Prepared, number: int, name: str, place: Place) -> Ran:
    ran = run_child(place, ready.command.words(place), prepare=fail_at(number, getattr(errno, name)))
    return replace(ran, met=True)


def _fail_at_call(ready: Prepared, call: Call, name: str, place: Place) -> Ran:
    return run_with_fault(place, ready.command.words(place), call, f"error={name}")


def check_told(ran: Ran, *, value: object, ready: Prepared) -> None:
    """Check that an exit code and the one line of error say what is the case."""
    require(ran.code in (0, 1, 4, 5, 6), "told", f"exit {ran.code}: {ran.err[-400:]}")
    require("Traceback" not in ran.err, "told", f"a traceback: {ran.err[-400:]}")
    require("internal error" not in ran.err, "told", f"an internal error: {ran.err[-400:]}")
    errors = [line for line in ran.err.splitlines() if line.startswith("modelreg: error: ")]
    if ran.code == 0:
        require(value == ready.new, "told", "exit 0, and it did not happen")
        require(not errors, "told", f"exit 0 with an error: {errors}")
        return
    require(ran.silenced or (len(errors) == 1 and len(errors[0]) > 30), "told", f"exit {ran.code}: {ran.err[-400:]!r}")
    if ran.code != 5 and _AFTER_THE_ACT not in ran.err:
        require(value == ready.old, "told", f"exit {ran.code}, and it happened: {ran.err[-400:]}")
