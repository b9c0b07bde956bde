"""The life of a server: load, listen, serve, and end without losing a request. On uvicorn, imported here alone."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from modelreg.registry.errors import MissingDependencyError, ModelregError
from modelreg.runtime.active_async import AsyncActiveModel
from modelreg.runtime.monitoring.exporter import routes
from modelreg.runtime.requests import RequestObserver
from modelreg.runtime.serve.admitting import Gate
from modelreg.runtime.serve.app import make_app
from modelreg.runtime.serve.connections import make_room_for_files, sweep_connections
from modelreg.runtime.serve.limits import Limits
from modelreg.runtime.serve.listening import describe_address, listen
from modelreg.runtime.serve.models import ServedModel, serve_models
from modelreg.runtime.serving import ServedEngine

if TYPE_CHECKING:
    from uvicorn import Server

    from modelreg.runtime.monitoring.monitor import Monitor

Leave = Callable[[int], None]
"""Ends the process with this exit code."""

_LOOK_S = 0.25
_CONNECTIONS_END_S = 2
_MODELS_CLOSE_S = 10.0


class AbandonedError(ModelregError):
    """Requests were still under way when the time for them was over."""

    default_hint = "Give them longer with --shutdown-timeout, or ask less of a request with --request-timeout."


class Told(Protocol):
    """Hears what happens to a server."""

    def listening(self, url: str, models: Sequence[ServedModel]) -> None:
        """Hear that requests are answered now."""
        ...

    def swapped(self, model: ServedModel, served: ServedEngine) -> None:
        """Hear that another generation answers."""
        ...

    def stopping(self, under_way: int) -> None:
        """Hear that the server ends, with so many requests under way."""
        ...

    def abandoned(self, why: str) -> None:
        """Hear that it ends before all that was under way has."""
        ...


@dataclass(frozen=True, kw_only=True)
class Serving:
    """
    What to serve and how.

    Attributes:
        actives: The models by NAME@CHANNEL, not open yet.
        limits: The limits.
        told: Hears what happens.
        observers: Hear of every inference request.
        make_monitor: Returns what counts and watches the open models, and tells of them at `/metrics`; None: nothing.
        version: What the server says it is.
        ready_delay_s: How long requests are still taken after the readiness probe says no.
        shutdown_timeout_s: How long requests that are under way may take in the end.
    """

    actives: Mapping[str, AsyncActiveModel]
    told: Told
    limits: Limits = field(default_factory=Limits)
    observers: Sequence[RequestObserver] = ()
    make_monitor: Callable[[Sequence[ServedModel]], Monitor] | None = None
    version: str = ""
    ready_delay_s: float = 0.0
    shutdown_timeout_s: float = 30.0


def require_libraries() -> None:
    """Raise MissingDependencyError where the extra is not installed: before a model is loaded."""
    for library in ("starlette", "uvicorn"):
        try:
            importlib.import_module(library)
        except ImportError as error:
            raise MissingDependencyError(library, extra="serve") from error


async def serve(serving: Serving, bound: socket.socket) -> None:
    """
    Serve until SIGTERM or SIGINT; a second one ends the process at once.

    Raises:
        ModelregError: A model cannot be served, or the port is taken after all.
        AbandonedError: Requests were still under way after `shutdown_timeout_s`.
    """
    make_room_for_files(serving.limits)
    leave = partial(_leave, Path(bound.getsockname()) if bound.family == socket.AF_UNIX else None)
    async with contextlib.AsyncExitStack() as stack:
        stop = stack.enter_context(_stop_signals(leave))
        if not await _open_all(serving, stack, stop, leave):
            return
        listen(bound)
        models = serve_models(serving.actives, serving.limits)
        gate = Gate()
        monitor = None if serving.make_monitor is None else serving.make_monitor(models)
        if monitor is not None:
            stack.push_async_callback(_end_in_time, partial(asyncio.to_thread, monitor.stop), serving.told, leave)
            monitor.start()
        server = make_server(serving, models, gate, monitor)
        running = asyncio.ensure_future(server.serve(sockets=[bound]))
        beside = [
            asyncio.ensure_future(_tell_swaps(models, serving.told)),
            asyncio.ensure_future(sweep_connections(server, serving.limits)),
        ]
        left = 0
        try:
            serving.told.listening(describe_address(bound), models)
            await asyncio.wait((running, asyncio.ensure_future(stop.wait())), return_when=asyncio.FIRST_COMPLETED)
            left = await _end(serving, gate)
        finally:
            for task in beside:
                task.cancel()
            server.should_exit = True
            await running
        if left:
            raise AbandonedError(f"requests still under way after {serving.shutdown_timeout_s:g} s: {left}")


async def _open_all(serving: Serving, stack: contextlib.AsyncExitStack, stop: asyncio.Event, leave: Leave) -> bool:
    """Load every model; return whether nobody said stop meanwhile. What is being loaded then is loaded, and freed."""
    for active in serving.actives.values():
        await active.open()
        stack.push_async_callback(_end_in_time, active.close, serving.told, leave)
        if stop.is_set():
            return False
    return True


async def _end_in_time(end: Callable[[], Awaitable[None]], told: Told, leave: Leave) -> None:
    """Free a model, or stop the monitor; where a call does not end, end the process: nobody can end a thread."""
    try:
        await asyncio.wait_for(end(), _MODELS_CLOSE_S)
    except asyncio.TimeoutError:
        told.abandoned("an engine did not end what it was asked")
        leave(1)


async def _end(serving: Serving, gate: Gate) -> int:
    """Say no to the probe, then to requests, and wait for those under way; return how many did not end."""
    gate.is_ready = False
    serving.told.stopping(gate.under_way)
    await asyncio.sleep(serving.ready_delay_s)
    gate.is_open = False
    is_idle = await gate.wait_until_idle(timeout_s=serving.shutdown_timeout_s)
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # it shows each request that it gives up as a fault
    return 0 if is_idle else gate.under_way


def make_server(serving: Serving, models: Sequence[ServedModel], gate: Gate, monitor: Monitor | None = None) -> Server:
    """Return uvicorn's server of the application, without signals of its own."""
    from uvicorn import Config, Server

    class OurServer(Server):
        """Leaves signals to us: what comes first is ours to order."""

        @contextlib.contextmanager
        def capture_signals(self) -> Any:
            yield

    watching = [] if monitor is None else [monitor]
    app = make_app(
        models,
        limits=serving.limits,
        gate=gate,
        observers=[*serving.observers, *watching],
        takers=watching,
        routes=[route for each in watching for route in routes(each)],
        version=serving.version,
    )
    limits = serving.limits
    return OurServer(
        Config(
            app,
            lifespan="off",
            ws="none",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=limits.max_connections + 1,  # uvicorn refuses at this number, who asks included
            timeout_keep_alive=max(1, round(limits.read_timeout_s)),
            timeout_graceful_shutdown=_CONNECTIONS_END_S,
        )
    )


@contextlib.contextmanager
def _stop_signals(leave: Leave) -> Iterator[asyncio.Event]:
    """Give what is set by the first SIGTERM or SIGINT; the second one ends the process."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def hear(number: int) -> None:
        if stop.is_set():
            leave(128 + number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, hear, number)
    try:
        yield stop
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _leave(path: Path | None, code: int) -> None:
    """End the process at once: children notice that, and the Unix socket is removed."""
    with contextlib.suppress(OSError):
        if path is not None:
            path.unlink()
    os._exit(code)


async def _tell_swaps(models: Sequence[ServedModel], told: Told) -> None:
    known = {model.name: model.served for model in models}
    while True:
        await asyncio.sleep(_LOOK_S)
        for model in models:
            served = model.served
            if served is not None and served != known[model.name]:
                known[model.name] = served
                told.swapped(model, served)
