"""Every command killed, and every call of it failed, here and there; `make faults` does it everywhere."""

from __future__ import annotations

import pytest

from modelreg_testing.campaign.children import has_strace
from modelreg_testing.campaign.commands import COMMANDS, Command
from modelreg_testing.campaign.homes import Template
from modelreg_testing.campaign.trials import Limits, fail_everywhere, kill_everywhere, prepared

pytestmark = pytest.mark.slow

each_command = pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)


@each_command
def test_a_kill_leaves_old_or_new_whole_and_the_registry_settles(local: Template, command: Command) -> None:
    """Four named points and two system calls of each command, spread from the first to the last."""
    traced = has_strace()
    if not traced:
        print("strace is absent: the named points alone")  # noqa: T201 - shown with the test's output
    limits = Limits(2, 1) if command.is_slow else Limits(4, 2)
    with prepared(command, local, traced=traced) as ready:
        points, calls = kill_everywhere(ready, limits)
    points.require_clean()
    calls.require_clean()
    assert points.trials >= min(limits.points, len(ready.points))
    assert not traced or calls.trials == limits.calls


@each_command
def test_the_same_with_a_store_in_s3(remote: Template, command: Command) -> None:
    if command.is_slow:
        pytest.skip("what it does to the store, register does too; the large form has it")
    with prepared(command, remote, traced=False) as ready:
        limit = 1 if command.waits_in_s3 else 2  # it asks for much, each time
        points, _ = kill_everywhere(ready, Limits(limit))
    points.require_clean()
    assert points.trials >= min(limit, len(ready.points))


@pytest.mark.parametrize("command", [c for c in COMMANDS if not c.is_slow], ids=lambda command: command.name)
def test_an_error_of_the_system_is_told_as_it_is(local: Template, command: Command) -> None:
    with prepared(command, local, traced=has_strace()) as ready:
        points, calls = fail_everywhere(ready, Limits(3, 3))
    points.require_clean()
    calls.require_clean()


@pytest.mark.skipif(not has_strace(), reason="strace is absent or may not trace here: system calls are not injected")
def test_system_calls_can_be_traced_here(local: Template) -> None:
    with prepared(COMMANDS[2], local, traced=True) as ready:
        names = {call.name for call in ready.calls}
    assert {"pwrite64", "fsync", "openat"} <= names
