"""Servers of the KServe protocol to ask: one in the test's own event loop, and `modelreg serve` as a process."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelreg.registry.contents import Signature
from modelreg.runtime.active_async import AsyncActiveModel
from modelreg.runtime.requests import RequestRecord
from modelreg.runtime.serve.admitting import Gate
from modelreg.runtime.serve.connections import sweep_connections
from modelreg.runtime.serve.limits import Limits
from modelreg.runtime.serve.listening import bind_port
from modelreg.runtime.serve.models import ServedModel, serve_models
from modelreg.runtime.serve.server import Serving, make_server
from modelreg.runtime.serve.watching import watch_models
from modelreg.runtime.serving import ActiveState, Answer

Array = NDArray[Any]


@dataclass(frozen=True)
class Response:
    """An answer: `document` is its JSON, `raw` what comes behind that."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        """Return the JSON."""
        return json.loads(self.body[: self._header_length])

    @property
    def raw(self) -> bytes:
        """Return the binary tensors."""
        return b"" if self._header_length is None else self.body[self._header_length :]

    @property
    def _header_length(self) -> int | None:
        length = self.headers.get("inference-header-content-length")
        return None if length is None else int(length)


def adder_request(rows: int = 2, **more: Any) -> bytes:
    """Return a JSON request to a model of `adder`."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [rows, 3], "data": [0.0] * (3 * rows)}
    return json.dumps({"inputs": [tensor], **more}).encode()


def binary_request(name: str, array: Array, datatype: str = "FP32") -> tuple[bytes, dict[str, str]]:
    """Return a binary request that asks for binary answers, and the header that belongs to it."""
    tensor = {
        "name": name,
        "datatype": datatype,
        "shape": list(array.shape),
        "parameters": {"binary_data_size": array.nbytes},
    }
    header = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return header + array.tobytes(), {"Inference-Header-Content-Length": str(len(header))}


class HttpClient:
    """One connection."""

    def __init__(self, port: int, *, timeout_s: float = 60.0) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Response:
        """Send a request and return its answer; raises OSError or HTTPException where there is none."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request(method, path, body, sent)
        answer = self._connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Response(status=answer.status, headers=found, body=answer.read())

    def close(self) -> None:
        """Close it."""
        self._connection.close()

    def __enter__(self) -> HttpClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Held:
    """
    A real model whose calls wait until the test lets them go.

    Attributes:
        began: So many calls came to the engine.
        timeout_s: What the last one was given.
    """

    def __init__(self, active: AsyncActiveModel) -> None:
        self.began = 0
        self.timeout_s: float | None = None
        self.go = asyncio.Event()
        self._active = active

    @property
    def signature(self) -> Signature:
        """Return the model's."""
        return self._active.signature

    @property
    def is_batched(self) -> bool:
        """Return the model's."""
        return self._active.is_batched

    async def infer(self, inputs: Mapping[str, Any], *, timeout_s: float | None = None) -> Answer:
        """Wait, then ask the model."""
        self.began += 1
        self.timeout_s = timeout_s
        await self.go.wait()
        return await self._active.infer(inputs)

    def state(self) -> ActiveState:
        """Return the model's."""
        return self._active.state()


@dataclass
class Records:
    """An observer that keeps what it hears, and fails then if it is told to."""

    seen: list[RequestRecord] = field(default_factory=list)
    fails: bool = False

    def observe(self, record: RequestRecord) -> None:
        """Keep it."""
        self.seen.append(record)
        if self.fails:
            raise RuntimeError("an observer's own fault")

    @property
    def outcomes(self) -> list[str]:
        """Return how the requests ended."""
        return [str(record.outcome) for record in self.seen]


class Untold:
    """Hears nothing of a server."""

    def listening(self, url: str, models: Sequence[ServedModel]) -> None:
        """Hear nothing."""

    def swapped(self, model: ServedModel, served: object) -> None:
        """Hear nothing."""

    def stopping(self, under_way: int) -> None:
        """Hear nothing."""

    def abandoned(self, why: str) -> None:
        """Hear nothing."""


@dataclass
class Server:
    """A server in this event loop."""

    port: int
    gate: Gate
    models: list[ServedModel]
    records: Records
    connections: set[Any]

    async def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Response:
        """Ask on a connection of its own, from a thread."""

        def call() -> Response:
            with HttpClient(self.port) as client:
                return client.ask(method, path, body, **headers)

        return await asyncio.get_running_loop().run_in_executor(None, call)

    async def infer(self, body: bytes | None = None, name: str = "lenet", **headers: str) -> Response:
        """Ask for an inference."""
        return await self.ask("POST", f"/v2/models/{name}/infer", adder_request() if body is None else body, **headers)


@asynccontextmanager
async def serving(actives: Mapping[str, Any], *, monitored: bool = False, **changes: Any) -> AsyncIterator[Server]:
    """Serve open models on a real port with uvicorn; `changes` are of the limits."""
    records, gate, limits = Records(), Gate(), Limits(**changes)
    models = serve_models(actives, limits)
    told = Serving(actives={}, told=Untold(), limits=limits, observers=[records], version="1.2.3")
    monitor = watch_models(models) if monitored else None
    bound = bind_port("127.0.0.1", 0)
    server = make_server(told, models, gate, monitor)
    running = asyncio.ensure_future(server.serve(sockets=[bound]))
    sweeping = asyncio.ensure_future(sweep_connections(server, limits))
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield Server(
            port=bound.getsockname()[1],
            gate=gate,
            models=models,
            records=records,
            connections=server.server_state.connections,
        )
    finally:
        sweeping.cancel()
        server.should_exit = True
        await running


class ServeProcess:
    """`modelreg serve` as a process that listens; its events are read all the time."""

    def __init__(self, *words: object, env: Mapping[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "modelreg.cli", "serve", *map(str, words), "--json"]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=None if env is None else dict(env)
        )
        self.events: list[dict[str, Any]] = []
        self.err = ""
        self._listening = threading.Event()
        self._readers = [threading.Thread(target=self._read_events), threading.Thread(target=self._read_errors)]
        for reader in self._readers:
            reader.start()
        self._listening.wait(120)
        assert self.events, self.err

    def _read_events(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.events.append(json.loads(line))
            self._listening.set()
        self._listening.set()

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self.err = self._process.stderr.read()

    @property
    def url(self) -> str:
        """Return where it listens."""
        url: str = self.events[0]["url"]
        return url

    @property
    def port(self) -> int:
        """Return its port."""
        return int(self.url.rpartition(":")[2])

    def named(self, event: str) -> list[dict[str, Any]]:
        """Return the events of a kind so far."""
        return [each for each in self.events if each["event"] == event]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def wait(self) -> int:
        """Return the exit code, when it has ended and all that it said is read."""
        code = self._process.wait(60)
        for reader in self._readers:
            reader.join()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()
        return code

    def stop(self) -> int:
        """End it as systemd does, and return the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def __enter__(self) -> ServeProcess:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self.wait()


def connect(port: int) -> socket.socket:
    """Return a bare connection."""
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def ones(rows: int) -> Array:
    """Return a batch of LeNet's images."""
    return np.ones((rows, 1, 28, 28), np.float32)
