from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from modelreg.registry.errors import UsageError
from modelreg.runtime.monitoring.monitor import Monitor
from modelreg.runtime.monitoring.remote import UnreachableError, ask, ask_all, locate_document, require_document
from modelreg_testing.monitoring import LIMITS


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("gpu-7:9400", "http://gpu-7:9400/v2/modelreg/monitor"),
        ("http://gpu-7:9400/", "http://gpu-7:9400/v2/modelreg/monitor"),
        ("https://gpu-7/metrics", "https://gpu-7/v2/modelreg/monitor"),
        ("http://proxy/gpu-7/monitor?a=b#c", "http://proxy/gpu-7/monitor?a=b"),
        ("[::1]:9400", "http://[::1]:9400/v2/modelreg/monitor"),
    ],
)
def test_an_address_is_that_of_the_document(url: str, address: str) -> None:
    assert locate_document(url) == address


@pytest.mark.parametrize(
    "url", ["", "ftp://x", "file:///etc/passwd", "http://", "host:port", "x:0", "x:99999", "http:///a"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is no address of HTTP"):
        locate_document(url)


@contextmanager
def answering(reply: bytes, *, drips: bool = False) -> Iterator[str]:
    """Answer every connection with some bytes, whatever they are; of none, say nothing. `drips`: then one by one."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        kept = []
        over = threading.Event()

        def serve() -> None:
            while True:
                try:
                    client, _ = listening.accept()
                except OSError:
                    return
                kept.append(client)
                if reply:
                    with client, suppress(OSError):
                        client.recv(4096)
                        client.sendall(reply)
                        while drips and not over.wait(0.02):
                            client.sendall(b"1")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/x"
        over.set()
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
        for client in kept:
            client.close()


def http(body: bytes, code: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {code}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (http(b"x", "404 Not Found"), "answers 404"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "does not answer as HTTP"),
        (http(b"<html>"), "something else than a document of modelreg"),
        (http(b"[]"), "something else than"),
        (http(b'{"monitor": 1}'), "something else than"),
        (http(b'{"monitor": 1, "a": ' + b"[" * 100_000), "something else than"),
    ],
)
def test_a_server_of_another_kind_is_said_in_one_line(reply: bytes, message: str) -> None:
    with answering(reply) as url, pytest.raises(UnreachableError, match=message) as caught:
        ask(url, timeout_s=20)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 1


def test_a_process_that_hangs_costs_its_timeout_and_no_more() -> None:
    began_s = time.monotonic()
    with answering(b"") as url:
        first, second = ask_all([url, "http://127.0.0.1:1/x"], timeout_s=0.3)
    assert first.error is not None
    assert "timed out" in str(first.error)
    assert second.error is not None
    assert "Connection refused" in str(second.error)
    assert time.monotonic() - began_s < 60
    assert ask_all([], timeout_s=1) == []


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\r\nContent-Length: 999999\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: "], ids=["body", "headers"]
)
def test_an_answer_that_comes_byte_by_byte_holds_up_nobody(head: bytes) -> None:
    with answering(head, drips=True) as url:
        dripping, refused = ask_all([url, "http://127.0.0.1:1/x"], timeout_s=0.3)
    assert dripping.error is not None
    assert "does not come to an end" in str(dripping.error) or "did not answer within 0.3 s" in str(dripping.error)
    assert refused.error is not None
    assert "Connection refused" in str(refused.error)


def document(**changes: Any) -> bytes:
    return json.dumps(Monitor({}, limits=LIMITS).document() | changes).encode()


def test_a_document_of_another_format_is_said_with_both_numbers() -> None:
    with pytest.raises(UnreachableError, match="speaks format 2, and this modelreg 1"):
        require_document(document(monitor=2), where="x")
    assert require_document(document(), where="x")["health"]["state"] in ("UNKNOWN", "HEALTHY", "WARNING")


@pytest.mark.parametrize(
    "changes",
    [
        {"models": []},
        {"models": {"m": {}}},
        {"health": {"state": "FINE", "findings": []}},
        {"health": {"state": "HEALTHY", "findings": [1]}},
        {"devices": {}},
        {"pid": "1"},
        {"models": {"m": {"requests": {"latency_ms": [1]}}}},
        {"models": {"m": {"requests": {"batch": "many"}}}},
        {"models": {"m": {"requests": {}, "state": {"served": 3}}}},
        {"models": {"m": {"requests": {"latency_ms": {"p50": float("nan")}}}}},
        {"models": {"m": {"requests": {"per_second": 10**400}}}},
        {"devices": {"gpus": [{"memory_used_bytes": "x"}]}},
        {"devices": {"gpus": [{"throttle_reasons": 3}]}},
        {"load": {"memory_used_bytes": {}}},
        {"health": {"state": "HEALTHY", "findings": [], "unmeasured": None}},
    ],
)
def test_a_document_with_a_part_missing_is_none(changes: dict[str, Any]) -> None:
    with pytest.raises(UnreachableError, match="something else than"):
        require_document(document(**changes), where="x")
