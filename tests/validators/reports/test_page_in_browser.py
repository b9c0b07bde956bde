"""The HTML page in a real browser: laid out, in light and dark, narrow and wide, on paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modelreg.validators.reports.page import render_page
from modelreg_testing.browser import first_pixel, measure, needs_browser, run_browser
from modelreg_testing.reports import every_outcome, hostile

pytestmark = [needs_browser, pytest.mark.slow]

LAYOUT = """({
  overflow: document.documentElement.scrollWidth - innerWidth,
  outside: [...document.querySelectorAll("svg text")].filter(text => {
    const box = text.getBoundingClientRect(), around = text.ownerSVGElement.getBoundingClientRect();
    return box.left < around.left - 1 || box.right > around.right + 1 || box.top < around.top - 1
      || box.bottom > around.bottom + 1;
  }).map(text => text.textContent),
  plots: [...document.querySelectorAll("svg")].filter(svg => svg.getBoundingClientRect().height > 60).length,
  images: document.images.length,
  scripts: document.scripts.length,
  dark: matchMedia("(prefers-color-scheme: dark)").matches,
  ink: getComputedStyle(document.body).color,
  bars: getComputedStyle(document.querySelector("svg rect.plain, svg rect")).fill,
})"""


def saved(folder: Path, body: Any) -> Path:
    path = folder / "report.html"
    path.write_bytes(render_page(body))
    return path


def test_a_wide_page_lies_within_the_window_and_every_label_within_its_plot(tmp_path: Path) -> None:
    found = measure(saved(tmp_path, every_outcome()), LAYOUT)
    assert found["overflow"] <= 0
    assert found["outside"] == []
    assert found["plots"] >= 6
    assert (found["dark"], found["ink"], found["bars"]) == (False, "rgb(27, 31, 36)", "rgb(11, 98, 196)")


def test_a_narrow_dark_page_lies_within_the_window_too(tmp_path: Path) -> None:
    found = measure(saved(tmp_path, every_outcome()), LAYOUT, width=500, dark=True)
    assert found["overflow"] <= 0
    assert found["outside"] == []
    assert (found["dark"], found["ink"], found["bars"]) == (True, "rgb(230, 237, 243)", "rgb(108, 178, 255)")


def test_hostile_names_make_no_elements_and_break_no_layout(tmp_path: Path) -> None:
    found = measure(saved(tmp_path, hostile()), LAYOUT)
    assert (found["images"], found["scripts"]) == (0, 1)  # the one that measures
    assert found["overflow"] <= 0


@pytest.mark.parametrize(("dark", "corner"), [(False, (255, 255, 255)), (True, (15, 20, 25))])
def test_the_page_is_painted_in_the_reader_s_colours(tmp_path: Path, dark: bool, corner: tuple[int, int, int]) -> None:
    picture = tmp_path / "page.png"
    run_browser(saved(tmp_path, every_outcome()), f"--screenshot={picture}", dark=dark)
    content = picture.read_bytes()
    assert first_pixel(content) == corner
    assert len(content) > 20_000  # text and plots, not an empty page


def test_the_page_prints(tmp_path: Path) -> None:
    paper = tmp_path / "page.pdf"
    run_browser(saved(tmp_path, every_outcome()), f"--print-to-pdf={paper}", dark=True)
    content = paper.read_bytes()
    assert content.startswith(b"%PDF")
    assert 1 <= content.count(b"/Type /Page\n") <= 10
