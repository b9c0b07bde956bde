"""Ask other processes how they are: their documents over HTTP, and what this host shows without any."""

from __future__ import annotations

import json
import queue
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from modelreg.registry.errors import ModelregError, UsageError
from modelreg.registry.words import Json
from modelreg.runtime.monitoring.documents import FORMAT
from modelreg.runtime.monitoring.exporter import DOCUMENT_PATH, METRICS_PATH
from modelreg.runtime.monitoring.hysteresis import HealthState

_MOST_BYTES = 8 << 20
_CHUNK_BYTES = 1 << 16
_GRACE_S = 1.0
_LARGEST = 1e18
"""Beyond what anything here can measure; what is larger breaks the arithmetic of whoever shows it."""


class UnreachableError(ModelregError):
    """A serving process does not answer, or is none of ours."""

    default_hint = "Is it running, and is it the address that `modelreg serve` or Monitor.serve_http said?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What came of one address: its document, or why there is none."""

    url: str
    document: Json | None
    error: UnreachableError | None = None


def locate_document(url: str) -> str:
    """
    Return the address of a process's document: of `host:port`, of its root, or of its `/metrics`. Pure.

    Raises:
        UsageError: It is no address of HTTP.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        raise UsageError(f"{url!r:.200} is no address of HTTP", hint="Write http://HOST:PORT, or HOST:PORT.")
    path = DOCUMENT_PATH if parts.path in ("", "/", METRICS_PATH) else parts.path
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def ask_all(urls: Sequence[str], *, timeout_s: float) -> list[Answered]:
    """
    Ask several processes at once; one that does not answer holds up none of the others for longer than that.

    A name that is not resolved, and an answer that comes byte by byte, have no end of their own: such a thread is left.
    """
    answers: queue.SimpleQueue[Answered] = queue.SimpleQueue()
    for url in urls:
        threading.Thread(
            target=lambda url: answers.put(_ask(url, timeout_s=timeout_s)),
            args=(url,),
            name="modelreg ask",
            daemon=True,
        ).start()
    until_s = time.monotonic() + timeout_s + _GRACE_S  # each says by itself what took too long, if it can
    found: dict[str, Answered] = {}
    while len(found) < len(urls):
        try:
            answered = answers.get(timeout=max(0.0, until_s - time.monotonic()))
        except queue.Empty:
            break
        found[answered.url] = answered
    return [found.get(url) or _late(url, timeout_s) for url in urls]


def _late(url: str, timeout_s: float) -> Answered:
    return Answered(url=url, document=None, error=UnreachableError(f"{url} did not answer within {timeout_s:g} s"))


def _ask(url: str, *, timeout_s: float) -> Answered:
    try:
        return Answered(url=url, document=ask(url, timeout_s=timeout_s))
    except UnreachableError as error:
        return Answered(url=url, document=None, error=error)


def ask(url: str, *, timeout_s: float) -> Json:
    """
    Return the document of the process at `url`, an address of `locate_document`.

    Raises:
        UnreachableError: It does not answer in time, or with something else.
    """
    until_s = time.monotonic() + timeout_s
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:  # noqa: S310 - HTTP alone, see locate_document
            body = _read(answer, until_s=until_s)
    except urllib.error.HTTPError as error:
        error.close()
        raise UnreachableError(f"{url} answers {error.code}", hint="It serves something else.") from None
    except (OSError, ValueError, urllib.error.URLError) as error:
        reason = getattr(error, "reason", None) or error
        raise UnreachableError(f"{url} cannot be asked: {getattr(reason, 'strerror', None) or reason}") from None
    except Exception as error:  # http.client's own: a server that speaks something else
        raise UnreachableError(f"{url} does not answer as HTTP: {error!r:.100}") from None
    return require_document(body, where=url)


def _read(answer: Any, *, until_s: float) -> bytes:
    """Return a body, or the beginning of one that is too large; raises TimeoutError where it does not end in time."""
    chunks, size_bytes = [], 0
    while size_bytes <= _MOST_BYTES and (chunk := answer.read1(_CHUNK_BYTES)):
        chunks.append(chunk)
        size_bytes += len(chunk)
        if time.monotonic() > until_s:
            raise TimeoutError("its answer does not come to an end")
    return b"".join(chunks)


def require_document(body: bytes, *, where: str) -> Json:
    """
    Return a document, known to have the parts that are read. Pure.

    Raises:
        UnreachableError: It is none.
    """
    try:
        document: Any = _parse(body) if len(body) <= _MOST_BYTES else None
    except (ValueError, RecursionError):
        document = None
    if not _is_document(document):
        raise UnreachableError(f"{where} answers with something else than a document of modelreg")
    found: Json = document
    if found["monitor"] != FORMAT:
        raise UnreachableError(
            f"{where} speaks format {found['monitor']!r:.20}, and this modelreg {FORMAT}",
            hint="Bring both to one version.",
        )
    return found


def _parse(body: bytes) -> Any:
    return json.loads(body, parse_float=_read_number, parse_int=_read_whole, parse_constant=_read_number)


_NUMBER = (int, float)
_LOAD = dict.fromkeys(("cpu_utilization", "memory_used_bytes", "memory_total_bytes"), _NUMBER)
_GPU = {
    **dict.fromkeys(("utilization", "memory_used_bytes", "memory_total_bytes", "temperature_c", "power_w"), _NUMBER),
    "throttle_reasons": list,
}
_LATENCY = dict.fromkeys(("p50", "p90", "p99"), _NUMBER)
_REQUESTS = {**dict.fromkeys(("per_second", "error_rate", "batch"), _NUMBER), "latency_ms": _LATENCY}
_MODEL = {"state": {"served": {}}, "requests": _REQUESTS}
_SHAPE = {
    **{"host": str, "pid": int, "health": {"state": str, "findings": [{}], "unmeasured": [{}]}},
    **{"models": {}, "devices": {"gpus": [_GPU]}, "load": _LOAD},
}


def _is_document(document: Any) -> bool:
    """Return whether a document has what is always there, and no value that breaks whoever shows or adds it up."""
    if not isinstance(document, dict) or "monitor" not in document:
        return False
    if not _fits(document, _SHAPE) or any(document.get(name) is None for name in _SHAPE):
        return False
    health, models = document["health"], document["models"]
    return (
        health.get("state") in tuple(map(str, HealthState))
        and None not in (health.get("findings"), health.get("unmeasured", []), document["devices"].get("gpus"))
        and all(_fits(each, _MODEL) and each and each.get("requests") is not None for each in models.values())
    )


def _fits(value: Any, shape: Any) -> bool:
    """Return whether a value is unknown, or of a shape: a type, a list of a shape, an object with values of shapes."""
    if value is None:
        return True
    if isinstance(shape, list):
        return isinstance(value, list) and all(each is not None and _fits(each, shape[0]) for each in value)
    if isinstance(shape, Mapping):
        return isinstance(value, dict) and all(_fits(value.get(name), each) for name, each in shape.items())
    return isinstance(value, shape)


def _read_number(text: str) -> float:
    """Return a number of JSON; raises ValueError for one that is none, or that nothing here can measure."""
    number = float(text)
    if not abs(number) <= _LARGEST:
        raise ValueError(f"{text:.20} is too large")
    return number


def _read_whole(text: str) -> int:
    _read_number(text)
    return int(text)
