"""Rows that cannot be read: what comes of a flipped bit is an error that names the table, never a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from modelreg.registry.errors import DatabaseError


class UnreadableRowError(DatabaseError):
    """A row holds what no modelreg wrote."""

    default_hint = "Run `modelreg doctor`: it names the row. Restore a backup of the database."


@contextmanager
def decoding(table: str) -> Iterator[None]:
    """
    Fetch rows of `table` and make records of them; as a decorator, around a function that does little else.

    Raises:
        UnreadableRowError: A row cannot be decoded.
    """
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise UnreadableRowError(f"a row of {table} cannot be read: {explain(error)}") from error


def explain(error: Exception) -> str:
    """Return what kept a row from being decoded, in one line."""
    if isinstance(error, KeyError):
        return f"it lacks {error}"
    return " ".join(str(error).split())
