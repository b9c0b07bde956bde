"""How a table is made to fit a screen: folded, shortened, moved below the row, and left out, in this order. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

GAP = "  "
_NARROWEST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """
    One column.

    Attributes:
        header: Its name.
        right: Whether it is aligned to the right, as numbers are.
        folds: Whether its cells are folded on a narrow screen, at spaces alone.
        least: The width below which a folded cell is hard to read: before, what follows is tried.
        short: Returns a cell in fewer words.
        below: Whether its cells move below their rows where there is no room beside them.
        leaves: Whether it is left out where there is no room, those with the lowest number first; 0: never.
    """

    header: str
    right: bool = False
    folds: bool = False
    least: int = 16
    short: Callable[[str], str] | None = None
    below: bool = False
    leaves: int = 0


def place_in(order: Sequence[str], header: str) -> int:
    """Return `Column.leaves` of a column, given the headers that are left out, in their order."""
    return order.index(header) + 1 if header in order else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """
    A table as it is shown.

    Attributes:
        columns: Those that are left.
        rows: Their cells; the first row is the headers.
        widths: Of each column.
        below: For each row, what stands below it.
        left_out: The headers of the columns that there is no room for.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    widths: tuple[int, ...]
    below: tuple[tuple[str, ...], ...]
    left_out: tuple[str, ...]


def arrange(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, width: int) -> Arrangement:
    """
    Return a table so that its rows fit `width` and can be read, changed as little as that takes.

    Args:
        columns: All of them.
        rows: The headers, then each row.
        width: Of the screen, in characters.
    """
    start = Arrangement(
        columns=tuple(columns),
        rows=tuple(tuple(row) for row in rows),
        widths=(),
        below=((),) * len(rows),
        left_out=(),
    )
    made = start
    for made in _measures(start):
        if _needs(made) <= width:
            break
    return replace(made, widths=tuple(fit_widths(made.columns, made.rows, width=width)))


def _measures(table: Arrangement) -> Iterator[Arrangement]:
    """Yield the table as it is, then with one measure more each time."""
    yield table
    if any(column.short for column in table.columns):
        table = _shorten(table)
        yield table
    while True:
        gone = next((index for index, column in enumerate(table.columns) if column.below), None)
        if gone is None:
            break
        below = tuple((*under, *_said(row[gone])) for under, row in zip(table.below, table.rows, strict=True))
        table = replace(_without(table, gone), below=below)
        yield table
    while leaving := [index for index, column in enumerate(table.columns) if column.leaves]:
        first = min(leaving, key=lambda index: table.columns[index].leaves)
        table = replace(_without(table, first), left_out=(*table.left_out, table.columns[first].header))
        yield table


def _said(cell: str) -> tuple[str, ...]:
    """Return what of a cell is worth a line of its own."""
    return () if cell in ("", "-") else (cell,)


def _shorten(table: Arrangement) -> Arrangement:
    headers, *rows = table.rows
    shorter = [
        tuple(
            cell if column.short is None else column.short(cell)
            for column, cell in zip(table.columns, row, strict=True)
        )
        for row in rows
    ]
    return replace(table, rows=(headers, *shorter))


def _without(table: Arrangement, gone: int) -> Arrangement:
    return replace(
        table,
        columns=table.columns[:gone] + table.columns[gone + 1 :],
        rows=tuple(row[:gone] + row[gone + 1 :] for row in table.rows),
    )


def _needs(table: Arrangement) -> int:
    """Return how wide a table is whose cells are folded as far as they can be read."""
    widths = [
        min(widest, max(floor, column.least)) if column.folds else widest
        for column, widest, floor in zip(
            table.columns, _widest(table.rows), _floors(table.columns, table.rows), strict=True
        )
    ]
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _widest(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(text_width(row[index]) for row in rows) for index in range(len(rows[0]))]


def _floors(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int]:
    """Return how narrow each column can be: as its longest word."""
    return [
        max(_NARROWEST, *(text_width(word) for row in rows for word in row[index].split(" ")))
        for index in range(len(columns))
    ]


def fit_widths(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, width: int) -> list[int]:
    """
    Return each column's width: what its cells need, or less for those that fold, the widest giving way first.

    No column gets narrower than its longest word: a path or a number broken in two cannot be copied or found.
    """
    widths = _widest(rows)
    floors = _floors(columns, rows)
    excess = sum(widths) + len(GAP) * (len(columns) - 1) - width
    while excess > 0:
        giving = [i for i, column in enumerate(columns) if column.folds and widths[i] > floors[i]]
        if not giving:
            break
        widest = max(giving, key=lambda index: widths[index])
        widths[widest] -= 1
        excess -= 1
    return widths


def fold(text: str, *, width: int) -> list[str]:
    """Return `text` in lines broken at spaces, of at most `width` unless a word is longer."""
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        candidate = f"{line} {word}" if line else word
        if line and text_width(candidate) > width:
            lines.append(line.rstrip())
            line = word
        else:
            line = candidate
    return [*lines, line]


def text_width(text: str) -> int:
    """Return how many columns of a terminal `text` takes: wide East Asian characters take two, marks none."""
    if text.isascii():
        return len(text)
    return sum(_character_width(character) for character in text)


def _character_width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
