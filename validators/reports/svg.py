"""Plots as inline SVG: bars and lines with axes, a limit, and words for who cannot see them. Colours are the page's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from modelreg.validators.reports.say import clean, number

_HEIGHT = 260.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 56.0, 16.0, 30.0, 46.0
_TICKS = 4
_LONGEST_LABEL = 22
_LINE = 13.0
_SERIES_KINDS = 6  # the page's style has `s0` to `s5`
LAST_OF_SERIES = 0.82
"""Where lines of several end: their names follow."""
_FURTHEST = 1e300
"""What lies beyond is drawn here: the length of an axis must be a number too."""
_FINEST = 1e-9
"""The shortest axis, as a part of its values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar; `kind` is a class of the page's style, `label` stands above it, `hint` is its tooltip."""

    value: float
    hint: str
    kind: str = "plain"
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """What all plots have: a title and a description in words, and axes.

    `x_ticks` maps positions from 0 to 1 to labels; `limit` draws a line at a value, `limit_label` beside it. `width` is
    in the pixels of the plot's own texts.
    """

    title: str
    description: str
    y_label: str
    x_label: str
    x_ticks: dict[float, str] = field(default_factory=dict)
    limit: float | None = None
    limit_label: str = ""
    width: float = 720.0

    @property
    def right(self) -> float:
        """Return where the axes end."""
        return self.width - _RIGHT

    def x(self, position: float) -> float:
        """Return the place of a position from 0 to 1."""
        return _LEFT + position * (self.right - _LEFT)


def draw_bars(plot: Plot, bars: Sequence[Bar], *, key: str) -> str:
    """Return bars from zero upwards, or downwards from zero where values are negative; `key` is unique on the page."""
    values = [bar.value for bar in bars] + ([plot.limit] if plot.limit is not None else [])
    axis = _Axis(min(0.0, *values), max(0.0, *values))
    step = (plot.right - _LEFT) / max(1, len(bars))
    gap = min(2.0, step * 0.15)
    parts = []
    for index, bar in enumerate(bars):
        left, base, top = _LEFT + index * step, axis.y(0.0), axis.y(bar.value)
        parts.append(
            f'<rect class="{bar.kind}" x="{left + gap / 2:.2f}" y="{min(base, top):.2f}" width="{step - gap:.2f}" '
            f'height="{max(1.0, abs(top - base)):.2f}"><title>{_text(bar.hint)}</title></rect>'
        )
        if bar.label:
            parts.append(_write(bar.label, left + step / 2, min(base, top) - 4, kind=f"mark {bar.kind}"))
    return _frame(plot, axis, "".join(parts), key=key)


def draw_line(plot: Plot, points: Sequence[tuple[float, float, str, str]], *, key: str) -> str:
    """
    Return points joined by a line.

    Args:
        plot: The frame.
        points: Position from 0 to 1, value, kind and hint of each.
        key: Unique on the page.
    """
    values = [value for _, value, _, _ in points] + ([plot.limit] if plot.limit is not None else [])
    low, high = min(values), max(values)
    room = (high - low) * 0.1 or abs(high) * 0.1 or 1.0
    axis = _Axis(low - room, high + room)
    places = [(plot.x(position), axis.y(value)) for position, value, _, _ in points]
    joined = " ".join(f"{x:.2f},{y:.2f}" for x, y in places)
    parts = [f'<polyline points="{joined}"/>']
    for (x, y), (_, _, kind, hint) in zip(places, points, strict=True):
        parts.append(f'<circle class="{kind}" cx="{x:.2f}" cy="{y:.2f}" r="4"><title>{_text(hint)}</title></circle>')
    return _frame(plot, axis, "".join(parts), key=key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line of several: its name, and position from 0 to `LAST_OF_SERIES`, value and hint of each point."""

    name: str
    points: Sequence[tuple[float, float, str]]


def draw_series(plot: Plot, series: Sequence[Series], *, key: str) -> str:
    """Return lines from zero upwards, told apart by colour and dashes, each named at its end; `key` is unique."""
    axis = _Axis(0.0, max(value for each in series for _, value, _ in each.points))
    labels = _spread([axis.y(each.points[-1][1]) for each in series])
    parts = []
    for index, (each, label_y) in enumerate(zip(series, labels, strict=True)):
        kind = f"s{index % _SERIES_KINDS}"
        places = [(plot.x(position), axis.y(value)) for position, value, _ in each.points]
        joined = " ".join(f"{x:.2f},{y:.2f}" for x, y in places)
        parts.append(f'<polyline class="{kind}" points="{joined}"/>')
        for (x, y), (_, _, hint) in zip(places, each.points, strict=True):
            parts.append(
                f'<circle class="{kind}" cx="{x:.2f}" cy="{y:.2f}" r="4"><title>{_text(hint)}</title></circle>'
            )
        parts.append(_write(each.name, places[-1][0] + 10, label_y + 4, kind="start"))
    return _frame(plot, axis, "".join(parts), key=key)


def _spread(wanted: Sequence[float]) -> list[float]:
    """Return places for labels as near as may be to those wanted, a line apart and above the axis."""
    found = [0.0] * len(wanted)
    lowest = _HEIGHT - _BOTTOM
    for index in sorted(range(len(wanted)), key=lambda each: -wanted[each]):
        found[index] = min(wanted[index], lowest)
        lowest = found[index] - _LINE
    return found


def draw_intervals(plot: Plot, intervals: Sequence[tuple[float, float, float, str]], *, key: str) -> str:
    """Return points with intervals side by side: lower end, value, upper end and hint of each; `key` is unique."""
    values = [value for low, middle, high, _ in intervals for value in (low, middle, high)]
    values += [plot.limit] if plot.limit is not None else []
    room = (max(values) - min(values)) * 0.15 or 0.1
    axis = _Axis(min(values) - room, max(values) + room)
    parts = []
    for index, (low, middle, high, hint) in enumerate(intervals):
        x = plot.x((index + 0.5) / len(intervals))
        top, bottom = axis.y(high), axis.y(low)
        ends = "".join(
            f'<line class="whisker" x1="{x - 8:.2f}" y1="{y:.2f}" x2="{x + 8:.2f}" y2="{y:.2f}"/>'
            for y in (top, bottom)
        )
        parts.append(
            f'<g><title>{_text(hint)}</title><line class="whisker" x1="{x:.2f}" y1="{top:.2f}" x2="{x:.2f}" '
            f'y2="{bottom:.2f}"/>{ends}<circle cx="{x:.2f}" cy="{axis.y(middle):.2f}" r="5"/></g>'
        )
        parts.append(_write(number(middle), x + 12, axis.y(middle) + 4, kind="start mark"))
    return _frame(plot, axis, "".join(parts), key=key)


class _Axis:
    """The vertical axis: from values to places, with ticks at round values."""

    def __init__(self, low: float, high: float) -> None:
        low, high = max(low, -_FURTHEST), min(high, _FURTHEST)
        if not high > low:
            high = low + 1.0
        least = max(max(abs(low), abs(high)) * _FINEST, 1 / _FURTHEST)
        if high - low < least:  # doubles so close to one another leave no room for ticks
            low, high = low - least / 2, high + least / 2
        step = _round_step((high - low) / _TICKS)
        self.low, self.high = math.floor(low / step) * step, math.ceil(high / step) * step
        count = round((self.high - self.low) / step)
        self.ticks = [self.low + step * index for index in range(count + 1)]

    def y(self, value: float) -> float:
        part = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return _HEIGHT - _BOTTOM - part * (_HEIGHT - _TOP - _BOTTOM)


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next((factor * power for factor in (1, 2, 5) if factor * power >= rough * 0.999), 10 * power)


def _frame(plot: Plot, axis: _Axis, marks: str, *, key: str) -> str:
    bottom, right = _HEIGHT - _BOTTOM, plot.right
    parts = []
    for tick in axis.ticks:
        y = axis.y(tick)
        kind = "axis" if abs(tick) < 1e-12 * max(abs(axis.low), abs(axis.high)) or tick == axis.low else "grid"
        parts.append(f'<line class="{kind}" x1="{_LEFT}" y1="{y:.2f}" x2="{right}" y2="{y:.2f}"/>')
        parts.append(_write(_tick(tick, axis), _LEFT - 8, y + 4, kind="end"))
    for position, label in plot.x_ticks.items():
        parts.append(_write(label, plot.x(position), bottom + 16))
    parts.append(marks)
    if plot.limit is not None:
        y = axis.y(plot.limit)
        parts.append(f'<line class="limit" x1="{_LEFT}" y1="{y:.2f}" x2="{right}" y2="{y:.2f}"/>')
        parts.append(_write(plot.limit_label, right, 13, kind="end limit-label"))  # beside the line it would hide bars
    parts.append(_write(plot.x_label, (_LEFT + right) / 2, _HEIGHT - 8, kind="label"))
    parts.append(_write(plot.y_label, 4, 13, kind="start label"))
    return (
        f'<svg viewBox="0 0 {plot.width:.0f} {_HEIGHT:.0f}" role="img" aria-labelledby="{key}-t {key}-d">'
        f'<title id="{key}-t">{_text(plot.title)}</title><desc id="{key}-d">{_text(plot.description)}</desc>'
        f"{''.join(parts)}</svg>"
    )


def _tick(value: float, axis: _Axis) -> str:
    """Return a tick's label; a sum of steps that should be zero is."""
    return number(0.0 if abs(value) < (axis.high - axis.low) * 1e-9 else round(value, 12))


def _write(text: str, x: float, y: float, *, kind: str = "") -> str:
    shown = clean(text)
    shown = shown if len(shown) <= _LONGEST_LABEL or "label" in kind else shown[: _LONGEST_LABEL - 1] + "…"
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.2f}" y="{y:.2f}">{escape(shown)}</text>'


def _text(text: str) -> str:
    return escape(clean(text))
