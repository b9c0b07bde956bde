"""Connections: as many as may be, and none kept by clients that do nothing."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from modelreg.runtime.serve.limits import Limits

if TYPE_CHECKING:
    from uvicorn import Server

_SWEEP_S = 1.0
_OTHER_FILES = 512

KeyT = TypeVar("KeyT")


def make_room_for_files(limits: Limits) -> None:
    """Have the system let this process open as many files as its connections need: without, it could read no store."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * limits.max_connections + _OTHER_FILES  # those beyond the limit are open too, until they have their 503
    if soft != resource.RLIM_INFINITY and soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else max(soft, min(wanted, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))


async def sweep_connections(server: Server, limits: Limits) -> None:
    """
    Cut connections on which nothing goes on: headers that do not come to an end, answers that nobody reads, and for
    lack of room what is kept open.

    uvicorn has a limit for the time between two requests alone.
    """
    seen: dict[Any, tuple[object, float]] = {}
    while True:
        await asyncio.sleep(_SWEEP_S)
        now_s = time.monotonic()
        here = {each: _describe_progress(each) for each in server.server_state.connections}
        seen = {
            each: seen[each] if each in seen and seen[each][0] == progress else (progress, now_s)
            for each, progress in here.items()
        }
        idle = {each: now_s - since_s for each, (progress, since_s) in seen.items() if progress is not None}
        for connection in choose_cut(idle, connections=len(seen), limits=limits):
            connection.transport.abort()


def choose_cut(idle: Mapping[KeyT, float], *, connections: int, limits: Limits) -> list[KeyT]:
    """
    Return the idle connections to cut: those that are so too long, and where room is short those that are so longest.

    Where there are as many connections as may be, every request is refused, though most of them may ask nothing. Pure.

    Args:
        idle: Seconds in which nothing happened, by connection.
        connections: How many there are, busy ones too.
        limits: The server's.
    """
    longest = sorted(idle, key=lambda each: -idle[each])
    overdue = sum(seconds > limits.read_timeout_s for seconds in idle.values())
    room = limits.max_connections - limits.max_connections // 10
    surplus = connections - room if connections >= limits.max_connections else 0
    return longest[: max(overdue, surplus)]


def _describe_progress(connection: Any) -> object:
    """Return what changes while a connection makes progress; None while the application is at work for it."""
    cycle, transport = connection.cycle, connection.transport
    unsent_bytes = transport.get_write_buffer_size()
    if cycle is not None and not cycle.response_complete and not unsent_bytes:
        return None
    return (cycle, unsent_bytes)  # the cycle itself: the next one may get the number of one that is gone
