"""Ask other processes how they are: their documents over HTTP, and what this host shows without any."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from modelreg.registry.errors import ModelregError, UsageError
from modelreg.registry.words import Json
from modelreg.runtime.monitoring.documents import FORMAT
from modelreg.runtime.monitoring.exporter import DOCUMENT_PATH, METRICS_PATH
from modelreg.runtime.monitoring.hysteresis import HealthState

_MOST_BYTES = 8 << 20
_MOST_AT_ONCE = 16


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
    """Ask several processes at once; one that does not answer holds up none of the others for longer than that."""
    with ThreadPoolExecutor(min(len(urls), _MOST_AT_ONCE) or 1, thread_name_prefix="modelreg-ask") as threads:
        return list(threads.map(lambda url: _ask(url, timeout_s=timeout_s), urls))


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
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:  # noqa: S310 - HTTP alone, see locate_document
            body = answer.read(_MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        error.close()
        raise UnreachableError(f"{url} answers {error.code}", hint="It serves something else.") from None
    except (OSError, ValueError, urllib.error.URLError) as error:
        reason = getattr(error, "reason", None) or error
        raise UnreachableError(f"{url} cannot be asked: {getattr(reason, 'strerror', None) or reason}") from None
    except Exception as error:  # http.client's own: a server that speaks something else
        raise UnreachableError(f"{url} does not answer as HTTP: {error!r:.100}") from None
    return require_document(body, where=url)


def require_document(body: bytes, *, where: str) -> Json:
    """
    Return a document, known to have the parts that are read. Pure.

    Raises:
        UnreachableError: It is none.
    """
    try:
        document: Any = json.loads(body) if len(body) <= _MOST_BYTES else None
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


_SHAPE: Mapping[str, type] = {"health": dict, "models": dict, "devices": dict, "load": dict, "host": str, "pid": int}


def _is_document(document: Any) -> bool:
    if not isinstance(document, dict) or "monitor" not in document:
        return False
    if not all(isinstance(document.get(name), kind) for name, kind in _SHAPE.items()):
        return False
    health, models = document["health"], document["models"]
    lists = (health.get("findings"), document["devices"].get("gpus"))
    return (
        health.get("state") in tuple(map(str, HealthState))
        and all(isinstance(each, list) and all(isinstance(one, dict) for one in each) for each in lists)
        and all(isinstance(each, dict) and isinstance(each.get("requests"), dict) for each in models.values())
    )
