"""The bars of a terminal, by Rich; imported where there is a terminal alone."""

from __future__ import annotations

from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from modelreg.cli.render import size

_BAR_WIDTH = 20


def step_columns() -> tuple[ProgressColumn, ...]:
    """Return the columns of a step: what it is, its bar, its time, and what is going on, which gives way first."""
    return (_label(), _bar(), TimeElapsedColumn(), _Doing("", table_column=Column()))


def byte_columns() -> tuple[ProgressColumn, ...]:
    """Return the columns of a step that counts bytes, in the units that results are printed in."""
    return (_label(), _bar(), _Bytes(), _Speed())


def _label() -> TextColumn:
    return TextColumn("{task.description}", markup=False)


def _bar() -> BarColumn:
    # Rich narrows columns that may wrap before all others, so that a long text would leave nothing of the bar.
    return BarColumn(bar_width=_BAR_WIDTH, table_column=Column(no_wrap=True, min_width=_BAR_WIDTH))


class _Doing(TextColumn):
    """What is going on, on one line and cut where there is no more room."""

    def render(self, task: Task) -> Text:
        return Text(str(task.fields.get("doing", "")), no_wrap=True, overflow="ellipsis")


class _Bytes(ProgressColumn):
    def render(self, task: Task) -> Text:
        total = "" if task.total is None else f" of {size(int(task.total))}"
        return Text(f"{size(int(task.completed))}{total}", style="progress.download")


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{size(int(speed))}/s", style="progress.data.speed")
