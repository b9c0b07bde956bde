from __future__ import annotations

import math
import re

import pytest

from modelreg.validators.reports.plots import plot_histogram
from modelreg.validators.reports.svg import Bar, Plot, draw_bars, draw_intervals, draw_line

PLOT = Plot(title="t", description="d", y_label="y", x_label="x")


@pytest.mark.parametrize(
    "values",
    [
        (1.0, math.nextafter(1.0, 0.0)),
        (140.0, math.nextafter(140.0, 200.0)),
        (0.0, 5e-324),
        (1e-323, 2e-323),
        (0.0, 0.0),
        (1e308, 1e308),
        (-1.7e308, 1.7e308),
    ],
)
def test_every_two_numbers_can_be_drawn(values: tuple[float, float]) -> None:
    low, high = min(values), max(values)
    drawn = [
        draw_line(PLOT, [(0.1, values[0], "pass", "a"), (0.9, values[1], "pass", "b")], key="k"),
        draw_bars(PLOT, [Bar(value=value, hint="h") for value in values], key="k"),
        draw_intervals(PLOT, [(low, low, high, "h")], key="k"),
    ]
    for svg in drawn:
        places = [float(found) for found in re.findall(r' (?:cy|y|y1|y2)="([^"]+)"', svg)]
        assert places
        assert all(0 <= place <= 260 for place in places)


def test_a_larger_value_stands_higher_however_close() -> None:
    svg = draw_line(PLOT, [(0.1, 1.0, "", "a"), (0.9, 1.0 + 1e-9, "", "b")], key="k")
    low, high = (float(found) for found in re.findall(r'cy="([^"]+)"', svg))
    assert high < low


def test_errors_beyond_what_a_double_holds_are_drawn() -> None:
    assert "∞" in plot_histogram({"first_exponent": 1020, "counts": [1, 1, 1, 1, 5]}, output="y", key="k")
