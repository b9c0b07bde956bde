"""A proxy between a store and its server that loses answers, refuses, delays and cuts, request by request."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum, auto
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

_HOP = {"connection", "keep-alive", "transfer-encoding"}


class Fault(Enum):
    """What happens to a request."""

    NONE = auto()
    RESET_BEFORE = auto()
    """The connection breaks, and the server never heard of it."""
    RESET_AFTER = auto()
    """The server acts; the connection breaks before the answer."""
    LATE = auto()
    """The connection breaks; the server hears of it when `deliver_late` is called."""
    SLOW_DOWN = auto()
    TOO_MANY = auto()
    ERROR = auto()
    ERROR_AFTER = auto()
    """The server acts, and the answer is a 500."""
    ERROR_AS_200 = auto()
    """The server acts, and the answer is an error under status 200, as S3 may end a long completion."""
    CUT = auto()
    """The server's answer breaks off in the middle of its body."""
    CHANGED = auto()
    """A bit of the answer's body is not what the server sent."""
    CHANGED_BEFORE = auto()
    """A bit of the request's body is not what the client sent: the server finds a wrong checksum."""
    SLOW_BEFORE = auto()
    """Nothing is heard for `Proxy.hold_s`, and the server never heard of it."""
    SLOW_AFTER = auto()
    """The server acts; the answer is held back for `Proxy.hold_s`."""
    SKEWED = auto()
    """The server finds that the client's clock is wrong."""


_REFUSALS = {
    Fault.SLOW_DOWN: (503, "SlowDown"),
    Fault.TOO_MANY: (429, "TooManyRequestsException"),
    Fault.ERROR: (500, "InternalError"),
    Fault.ERROR_AFTER: (500, "InternalError"),
    Fault.ERROR_AS_200: (200, "InternalError"),
    Fault.SKEWED: (403, "RequestTimeTooSkewed"),
}


@dataclass(frozen=True)
class Seen:
    """A request as the plan sees it: its number from 1 on, its method, and its path with the query."""

    number: int
    method: str
    path: str
    body: bytes

    @property
    def is_pointer(self) -> bool:
        return self.path.partition("?")[0].endswith("/pointer.json")

    @property
    def is_history(self) -> bool:
        return "/history/" in self.path and self.path.partition("?")[0].endswith(".json")


Plan = Callable[[Seen], Fault]


def no_fault(_seen: Seen) -> Fault:
    """Let everything pass."""
    return Fault.NONE


class Proxy:
    """Passes requests on to a server; `plan` says what becomes of each."""

    def __init__(self, upstream: str, port: int) -> None:
        self.endpoint_url = f"http://127.0.0.1:{port}"
        self.plan: Plan = no_fault
        self.hold_s = 3.0
        self.seen: list[Seen] = []
        self._upstream = urlsplit(upstream)
        self._late: list[tuple[str, str, dict[str, str], bytes]] = []
        self._lock = threading.Lock()

    def plan_once(self, fault: Fault, matches: Callable[[Seen], bool], *, times: int = 1) -> None:
        """Let `fault` happen to the first requests that match."""
        left = [times]

        def plan(seen: Seen) -> Fault:
            if left[0] and matches(seen):
                left[0] -= 1
                return fault
            return Fault.NONE

        self.plan = plan

    def deliver_late(self) -> list[int]:
        """Send what was held back to the server now; return what it said."""
        with self._lock:
            late, self._late = self._late, []
        return [self._pass_on(*request)[0] for request in late]

    def note(self, method: str, path: str, body: bytes) -> Fault:
        with self._lock:
            seen = Seen(len(self.seen) + 1, method, path, body)
            self.seen.append(seen)
            return self.plan(seen)

    def keep(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        with self._lock:
            self._late.append((method, path, headers, body))

    def _pass_on(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(str(self._upstream.hostname), self._upstream.port, timeout=30)
        try:
            connection.request(method, path, body=body, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    pass_on = _pass_on


@contextmanager
def proxy_to(upstream: str) -> Iterator[Proxy]:
    """Run a proxy on loopback."""
    holder: list[Proxy] = []

    class Handler(_Handler):
        @property
        def proxy(self) -> Proxy:
            return holder[0]

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        holder.append(Proxy(upstream, server.server_address[1]))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield holder[0]
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def proxy(self) -> Proxy:
        raise NotImplementedError

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def handle(self) -> None:
        with suppress(ConnectionError):
            super().handle()

    def do_any(self) -> None:
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.send_response_only(100)
            self.end_headers()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in {*_HOP, "expect"}}
        fault = self.proxy.note(self.command, self.path, body)
        if fault is Fault.LATE:
            self.proxy.keep(self.command, self.path, headers, body)
        if fault is Fault.SLOW_BEFORE:
            time.sleep(self.proxy.hold_s)
        if fault in (Fault.LATE, Fault.RESET_BEFORE, Fault.SLOW_BEFORE):
            self._reset()
            return
        if fault is Fault.CHANGED_BEFORE and body:
            body = body[:-1] + bytes([body[-1] ^ 1])
        if fault in (Fault.SLOW_DOWN, Fault.TOO_MANY, Fault.ERROR, Fault.SKEWED):
            self._answer(_REFUSALS[fault][0], [], _refusal(fault))
            return
        status, said, data = self.proxy.pass_on(self.command, self.path, headers, body)
        if fault is Fault.SLOW_AFTER:
            time.sleep(self.proxy.hold_s)
        if fault in (Fault.RESET_AFTER, Fault.SLOW_AFTER):
            self._reset()
        elif fault in (Fault.ERROR_AFTER, Fault.ERROR_AS_200):
            self._answer(_REFUSALS[fault][0], [], _refusal(fault))
        elif fault is Fault.CUT:
            self._answer(status, said, data, cut=max(1, len(data) // 2))
            self._reset()
        elif fault is Fault.CHANGED and data:
            self._answer(status, said, data[:-1] + bytes([data[-1] ^ 1]))
        else:
            self._answer(status, said, data)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = do_any  # noqa: N815 - the names that http.server looks for

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes, *, cut: int = 0) -> None:
        self.send_response_only(status)
        length = None
        for name, value in headers:
            if name.lower() == "content-length":
                length = value
            elif name.lower() not in _HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", length if self.command == "HEAD" and length else str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[:-cut] if cut else data)

    def _reset(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)


def _refusal(fault: Fault) -> bytes:
    return f"<Error><Code>{_REFUSALS[fault][1]}</Code><Message>by the proxy</Message></Error>".encode()
