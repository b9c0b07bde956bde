"""Tables for people: aligned columns without lines; on a terminal made to fit its width.

What goes to a file or a pipe is one line a row, so that `grep` and `awk` find it whole.
Not Rich's: importing its tables costs 20 ms, a tenth of `list`. Rich draws the progress bars.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Sequence

import click

from modelreg.cli.render import clean, echo, print_note
from modelreg.cli.table_widths import GAP, Column, arrange, fold, text_width

__all__ = ["Column", "print_table"]

_ENDLESS = 1 << 30
_INDENT = "    "
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


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[str]], *, no_color: bool = False) -> None:
    """Print rows under their headers on stdout; on a terminal, headers are bold and verdicts coloured."""
    cells = [[clean(cell).replace("\n", " ") for cell in row] for row in rows]
    width = _screen_width()
    made = arrange(columns, [[column.header for column in columns], *cells], width=width)
    color = False if no_color or os.environ.get("NO_COLOR") else None  # None: only on a terminal
    for number, (row, below) in enumerate(zip(made.rows, made.below, strict=True)):
        for line in (*_lay_out(made.columns, made.widths, row), *_indent(below, width=width)):
            echo(click.style(line, bold=True) if number == 0 else line, color=color)
    if made.left_out:
        print_note(f"no room for {', '.join(made.left_out)}: a wider terminal, a pipe or --json has them")


def _indent(texts: Sequence[str], *, width: int) -> list[str]:
    """Return what stands below a row, each text from a line of its own, as wide as the screen."""
    return [f"{_INDENT}{line}" for text in texts for line in fold(text, width=width - len(_INDENT))]


def _screen_width() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _ENDLESS


def _lay_out(columns: Sequence[Column], widths: Sequence[int], row: Sequence[str]) -> list[str]:
    """Return the lines of one row."""
    folded = [
        fold(cell, width=width) if column.folds else [cell]
        for column, width, cell in zip(columns, widths, row, strict=True)
    ]
    lines = []
    for number in range(max(len(parts) for parts in folded)):
        texts = [parts[number] if number < len(parts) else "" for parts in folded]
        line = GAP.join(
            _align(text, width, right=column.right) for column, width, text in zip(columns, widths, texts, strict=True)
        )
        lines.append(line.rstrip())
    return lines


def _align(text: str, width: int, *, right: bool) -> str:
    space = " " * (width - text_width(text))
    shown = click.style(text, fg=_COLOURS[text]) if text in _COLOURS else text
    return space + shown if right else shown + space
