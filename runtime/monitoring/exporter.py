"""Serve a monitor over HTTP: on a port of its own with the standard library, or as routes of a Starlette server."""

from __future__ import annotations

import json
import threading
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from modelreg.registry.errors import MissingDependencyError, ModelregError
from modelreg.registry.words import Json

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from modelreg.runtime.monitoring.monitor import Monitor

METRICS_PATH = "/metrics"
DOCUMENT_PATH = "/v2/modelreg/monitor"

_SLOWEST_S = 10.0
"""A client that says nothing for so long is left: it must not keep a thread."""
_MOST_CLIENTS = 16


class ExporterError(ModelregError):
    """The port cannot be listened on."""

    default_hint = "Choose another port, or 0 for one that is free."


class Exporter:
    """Answers GET of `/metrics` and `/v2/modelreg/monitor` in threads of its own, until it is closed."""

    def __init__(self, monitor: Monitor, *, host: str, port: int) -> None:
        try:
            self._server = _Server((host, port), partial(_Handler, monitor))
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise ExporterError(f"metrics cannot be served on {host}:{port}: {why}") from None
        self.port: int = self._server.server_address[1]
        self.url = f"http://{host}:{self.port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="modelreg exporter", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Exporter:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = _MOST_CLIENTS

    def __init__(self, address: tuple[str, int], handler: Any) -> None:
        self._places = threading.BoundedSemaphore(_MOST_CLIENTS)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, if there are not too many already."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that went away is no trouble of ours."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "modelreg"
    sys_version = ""
    timeout = _SLOWEST_S

    def __init__(self, monitor: Monitor, *arguments: Any) -> None:
        self._monitor = monitor
        super().__init__(*arguments)

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == METRICS_PATH:
            self._answer(*self._monitor.render())
        elif path == DOCUMENT_PATH:
            self._answer(write_document(self._monitor.document()), "application/json")
        else:
            text = f"There are {METRICS_PATH} and {DOCUMENT_PATH}.\n"
            self._answer(text.encode(), "text/plain; charset=utf-8", status=HTTPStatus.NOT_FOUND)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self, body: bytes, kind: str, *, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log no scrape: there is one every few seconds."""


def write_document(document: Json) -> bytes:
    """Return a document as JSON."""
    return json.dumps(document, allow_nan=False).encode()


def routes(monitor: Monitor) -> list[Route]:
    """
    Return `/metrics` and `/v2/modelreg/monitor` for a Starlette application; both run in its threads.

    Raises:
        MissingDependencyError: Starlette is not installed.
    """
    try:
        from starlette.responses import Response
        from starlette.routing import Route
    except ImportError:
        raise MissingDependencyError("starlette", extra="serve") from None

    def metrics(_request: Request) -> Response:
        body, kind = monitor.render()
        return Response(body, headers={"content-type": kind})

    def document(_request: Request) -> Response:
        return Response(write_document(monitor.document()), media_type="application/json")

    return [Route(METRICS_PATH, metrics), Route(DOCUMENT_PATH, document)]
