"""In which line of a TOML file a key stands. Read only where that is asked: to show origins, and in errors."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_MOST_LINES = 10_000


def find_lines(text: str) -> dict[str, int]:
    """
    Return the first line (from 1) of each key of a TOML document by its whole name, `section.key`; of tables too.

    Statements of TOML begin on a line of their own, so each is what is read until the parser is content.

    Args:
        text: A document that can be parsed whole; of another one, what stands before its fault is found.
    """
    found: dict[str, int] = {}
    section: tuple[str, ...] = ()
    pending: list[str] = []
    begin = 0
    for number, line in enumerate(text.splitlines()[:_MOST_LINES], start=1):
        if not pending:
            begin = number
        pending.append(line)
        try:
            statement = tomllib.loads("\n".join(pending))
        except (ValueError, RecursionError):
            continue
        pending = []
        if line.lstrip().startswith("[") and begin == number:
            section = _header(statement)
            found.setdefault(".".join(section), begin)
            continue
        for name in _paths(statement, section):
            found.setdefault(".".join(name), begin)
    return found


def _header(statement: dict[str, Any]) -> tuple[str, ...]:
    path: list[str] = []
    inner: Any = statement
    while inner:
        inner = inner[0] if isinstance(inner, list) else inner
        if not inner:
            break
        name = next(iter(inner))
        path.append(name)
        inner = inner[name]
    return tuple(path)


def _paths(table: dict[str, Any], before: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, value in table.items():
        yield (*before, name)
        if isinstance(value, dict):
            yield from _paths(value, (*before, name))
