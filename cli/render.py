"""What commands print: one document for programs, lines for people, and how they write sizes, times and numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

import click

from modelreg.registry.errors import ModelregError

JSON_SCHEMA = 1
"""The number in every document; it changes when a field changes its meaning or goes away."""

_LONE_DIGEST = re.compile(r"(?<![\w/.:-])[0-9a-f]{64}(?!\w|[/-]|\.\w)")


class OutputError(ModelregError):
    """The result could not be printed; what the command did before stands."""

    default_hint = "What the command did stands, only its result was lost: look with `modelreg show` or `history`."


def echo(text: str, *, color: bool | None = None) -> None:
    """
    Print a part of the result.

    Raises:
        OutputError: Standard output cannot be written, a file on a full disk perhaps.
    """
    try:
        click.echo(text, color=color)
    except BrokenPipeError:  # the reader had enough, which is no trouble
        raise
    except OSError as error:
        raise OutputError(f"the result could not be printed to standard output: {error.strerror or error}") from error


def tell(text: str) -> None:
    """Print to stderr; where that cannot be written, nobody can be told, and the work goes on all the same."""
    with suppress(OSError):
        click.echo(text, err=True)


def print_document(body: Mapping[str, Any]) -> None:
    """Print the one document of `--json`; any text in it survives any locale."""
    echo(json.dumps({"schema": JSON_SCHEMA, **body}, indent=2, allow_nan=False))


def print_line(text: str = "") -> None:
    """Print one line of a result; a line end in it, of a name for example, is shown as one."""
    echo(clean(text).replace("\n", "\\n"))


def print_text(text: str) -> None:
    """Print what has lines of its own, such as a log."""
    echo(clean(text))


def print_warning(text: str) -> None:
    """Tell the user of something that did not stop the command."""
    tell(f"modelreg: warning: {one_line(text)}")


def print_note(text: str) -> None:
    """Tell the user what happens, on stderr."""
    tell(one_line(text))


def clean(text: str) -> str:
    """Return `text` without control characters but line ends: names come from files, and files from anywhere."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def one_line(text: str) -> str:
    """Return `text` on one line."""
    return clean(" ".join(text.split()) if "\n" in text else text)


def short(digest: str) -> str:
    """Return the first 12 hex digits of a digest, or `-` for none."""
    return digest[:12] or "-"


def shorten_digests(text: str) -> str:
    """Return `text` with its digests shortened; those in a path or a reference are needed whole."""
    return _LONE_DIGEST.sub(lambda found: short(found.group()), text)


def size(size_bytes: int) -> str:
    """Return a size for people, in binary units."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    value = float(size_bytes)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1024:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} TiB"


def when(moment: datetime) -> str:
    """Return a time for people: UTC, to the second."""
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def number(value: float | None) -> str:
    """Return a measurement for people: four significant digits, more just below 1, or `-` for none."""
    if value is None:
        return "-"
    if abs(value) < 1e15 and value == int(value):
        return str(int(value))
    if 0.99 <= abs(value) < 1:  # a cosine of 0.99996 is not 1
        return f"{value:.6f}".rstrip("0").rstrip(".")
    return f"{value:.4g}"


def limit(value: float | None) -> str:
    """Return a limit as somebody wrote it: 0.9999999 is not 1, as it may be for a measurement."""
    return "-" if value is None else f"{value:.15g}"


def count(number_of: int, noun: str) -> str:
    """Return `1 file`, `2 files`."""
    return f"{number_of} {noun}" + ("" if number_of == 1 else "s")
