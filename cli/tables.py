"""Tables for people: aligned columns without lines; on a terminal folded to its width, at spaces alone.

What goes to a file or a pipe is one line a row, so that `grep` and `awk` find it whole.
Not Rich's: importing its tables costs 20 ms, a tenth of `list`. Rich draws the progress bars.
"""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import click

from modelreg.cli.render import clean, echo

_GAP = "  "
_NARROWEST = 8
_ENDLESS = 1 << 30
_COLOURS = {
    "pass": "green",
    "ok": "green",
    "fixed": "green",
    "fail": "red",
    "error": "red",
    "failed": "red",
    "problem": "red",
    "damage": "red",
    "fixable": "yellow",
    "HEALTHY": "green",
    "WARNING": "yellow",
    "CRITICAL": "red",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column; `folds` marks one that gives way on a narrow screen."""

    header: str
    right: bool = False
    folds: bool = False


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[str]], *, no_color: bool = False) -> None:
    """Print rows under their headers on stdout; on a terminal, headers are bold and verdicts coloured."""
    cells = [[clean(cell).replace("\n", " ") for cell in row] for row in rows]
    headers = [column.header for column in columns]
    widths = fit_widths(columns, [headers, *cells], width=_screen_width())
    color = False if no_color or os.environ.get("NO_COLOR") else None  # None: only on a terminal
    for line in _lay_out(columns, widths, headers):
        echo(click.style(line, bold=True), color=color)
    for row in cells:
        for line in _lay_out(columns, widths, row):
            echo(line, color=color)


def _screen_width() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _ENDLESS


def fit_widths(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, width: int) -> list[int]:
    """
    Return each column's width: what its cells need, or less for those that fold, the widest giving way first.

    No column gets narrower than its longest word: a path or a number broken in two cannot be copied or found.
    """
    widths = [max(text_width(row[index]) for row in rows) for index in range(len(columns))]
    floors = [
        max(_NARROWEST, *(text_width(word) for row in rows for word in row[index].split(" ")))
        for index in range(len(columns))
    ]
    excess = sum(widths) + len(_GAP) * (len(columns) - 1) - width
    while excess > 0:
        giving = [i for i, column in enumerate(columns) if column.folds and widths[i] > floors[i]]
        if not giving:
            break
        widest = max(giving, key=lambda index: widths[index])
        widths[widest] -= 1
        excess -= 1
    return widths


def _lay_out(columns: Sequence[Column], widths: Sequence[int], row: Sequence[str]) -> list[str]:
    """Return the lines of one row."""
    folded = [
        fold(cell, width=width) if column.folds else [cell]
        for column, width, cell in zip(columns, widths, row, strict=True)
    ]
    lines = []
    for number in range(max(len(parts) for parts in folded)):
        texts = [parts[number] if number < len(parts) else "" for parts in folded]
        line = _GAP.join(
            _align(text, width, right=column.right) for column, width, text in zip(columns, widths, texts, strict=True)
        )
        lines.append(line.rstrip())
    return lines


def _align(text: str, width: int, *, right: bool) -> str:
    space = " " * (width - text_width(text))
    shown = click.style(text, fg=_COLOURS[text]) if text in _COLOURS else text
    return space + shown if right else shown + space


def fold(text: str, *, width: int) -> list[str]:
    """Return `text` in lines broken at spaces, of at most `width` unless a word is longer."""
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        candidate = f"{line} {word}" if line else word
        if line and text_width(candidate) > width:
            lines.append(line)
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
