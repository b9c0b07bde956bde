"""The HTML page as text: what it holds, that it needs nothing, and that nobody breaks out of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from modelreg.registry.words import GateOutcome
from modelreg.validators.reports import page as page_module
from modelreg.validators.reports.page import render_page
from modelreg_testing.reports import (
    FAILED,
    PASSED,
    document,
    every_outcome,
    hostile,
    layers,
    not_validated,
    past,
    report_validator,
    stored_report,
)

VOID = {"meta", "br", "img", "link", "input", "hr"}


class Outline(HTMLParser):
    """The elements of a page with their attributes, and whether they are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, tag

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def rendered(body: Any) -> str:
    return render_page(body).decode()


PAGES = [every_outcome, hostile, document]


@pytest.mark.parametrize("make", PAGES)
def test_a_page_is_well_formed_and_its_ids_are_unique(make: Any) -> None:
    outline = Outline(rendered(make()))
    assert outline.open == []
    ids = [attributes["id"] for _, attributes in outline.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    named = " ".join(a.get("aria-labelledby") or "" for _, a in outline.elements).split()
    assert set(named) <= set(ids)


@pytest.mark.parametrize("make", PAGES)
def test_a_page_needs_nothing_from_anywhere_and_runs_nothing(make: Any) -> None:
    outline = Outline(rendered(make()))
    assert not outline.of("script")
    assert not outline.of("link")
    assert not outline.of("img")
    for _, attributes in outline.elements:
        assert not any(name.startswith("on") or name in ("src", "style") for name in attributes)
        assert (attributes.get("href") or "#").startswith("#")
    assert "url(" not in rendered(make())
    policy = next(a["content"] for a in outline.of("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_the_tables_have_captions_and_headers_and_the_plots_words() -> None:
    outline = Outline(rendered(every_outcome()))
    assert len(outline.of("table")) == len(outline.of("caption")) >= 5
    assert all(cell.get("scope") in ("col", "row") for cell in outline.of("th"))
    plots = outline.of("svg")
    assert len(plots) >= 6
    assert all(plot.get("role") == "img" and plot.get("aria-labelledby") for plot in plots)
    (page,) = outline.of("html")
    assert page["lang"] == "en"
    assert len(outline.of("h1")) == 1


def test_the_page_says_what_failed_where_the_error_is_born_and_why_a_verdict_does_not_count() -> None:
    text = rendered(every_outcome())
    assert "1 of 2 engines passes; 1 engine not validated (7 gates: 2 pass, 1 fail, 1 error, 2 skipped" in text
    assert "12.25, the limit is &gt;= 15; worst samples 51, 7" in text
    assert "The error is born in conv2." in text
    assert "promote would not go by this verdict: <bdi>validated 3 days ago</bdi>" in text
    assert "this host has no sm_90" in text
    assert "From 0.9999 in version 1 to 0.98 in version 2; the limit is &gt;= 0.99." in text


def test_hostile_names_are_text() -> None:
    text = rendered(hostile())
    assert "<img" not in text
    assert "</script>" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "&lt;img src=x onerror=alert(1)&gt;" in text


def test_a_report_of_an_earlier_program_has_no_histograms_and_no_times_and_is_shown() -> None:
    report = stored_report(PASSED)
    (one,) = report["passes"]
    del one["runs"]
    del one["outputs"]["logits"]["histogram"]
    text = rendered(document(report))
    assert "Distribution of errors" not in text
    assert "Time of a run" not in text
    assert "Worst samples" in text


@pytest.mark.parametrize("rows", [None, [], {}, {"rows": []}, [{"name": "a"}], "broken"])
def test_a_report_without_layers_has_no_plot_of_them(rows: object) -> None:
    assert "Error by layer" not in rendered(document(stored_report(PASSED, layers=rows)))


def test_why_layers_could_not_be_compared_is_said() -> None:
    body = document(stored_report(PASSED, layers={"error": "the engine cannot be looked into"}))
    report_validator().validate(body)
    assert "could not be compared: <bdi>the engine cannot be looked into</bdi>" in rendered(body)


def test_layers_may_be_a_list_that_marks_where_the_error_is_born() -> None:
    rows = [{"name": "a", "sqnr_db": 40.0, "born": False}, {"name": "b", "sqnr_db": "nan", "born": True}]
    assert "The error is born in b." in rendered(document(stored_report(PASSED, layers=rows)))


def test_a_thousand_layers_are_drawn_and_not_all_labelled() -> None:
    rows = [(f"layer{i}", 40.0 - i % 30, "born" if i % 100 == 7 else "ok") for i in range(1000)]
    text = rendered(document(stored_report(PASSED, layers=layers(*rows))))
    assert text.count('class="mark born"') == 3
    assert text.count('<rect class="born"') == 10


def test_latencies_stand_with_their_intervals_where_they_were_measured() -> None:
    text = rendered(every_outcome())
    assert "beside its FP16 sibling 0.81 (0.78 to 0.86); beside what is active 1.01 (0.97 to 1.06)" in text
    assert "inconclusive" in text
    for latency in (None, {}, {"ratio": "nan", "low": 1, "high": 1}):
        report = stored_report(PASSED, value={"latency": latency}, active=None)
        assert "<h3>Latency</h3>" not in rendered(document(report))


def test_slices_are_listed_the_worst_first() -> None:
    report = stored_report(PASSED)
    report["passes"][0]["slices"] = {
        "logits": [
            {"slice": "day", "samples": 50, "sqnr_db": 30.0, "accuracy_drop": 0.0, "top1_agreement": 1.0},
            {"slice": "night", "samples": 14, "sqnr_db": "inf", "accuracy_drop": 0.25, "top1_agreement": 0.75},
            {"slice": "dusk", "samples": 3, "sqnr_db": None},
        ]
    }
    body = document(report)
    report_validator().validate(body)
    text = rendered(body)
    assert text.index("night") < text.index("day") < text.index("dusk")
    assert '<td class="right">0.25</td>' in text


def test_history_is_drawn_for_gates_measured_in_two_versions() -> None:
    once = rendered(document(stored_report(PASSED), history=[past(2, 0.999)]))
    assert "History over versions" not in once
    text = rendered(document(stored_report(PASSED), history=[past(1, 0.99), past(2, 0.9, outcome=GateOutcome.FAIL)]))
    assert text.count("<circle") == 2
    assert '<circle class="fail"' in text


def test_a_page_without_any_verdict_says_so() -> None:
    assert "No engine of this version was validated." in rendered(document())
    assert "this host has no sm_90" in rendered(document(skipped=[not_validated()]))


# -- colours ---------------------------------------------------------------------------------------------------
def palettes() -> Iterator[dict[str, str]]:
    style = Path(page_module.__file__).with_name("page.css").read_text(encoding="utf-8")
    for block in re.findall(r":root \{(.*?)\}", style, re.DOTALL):
        found = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block))
        if found:
            yield found


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_every_text_has_the_contrast_that_wcag_asks_in_light_dark_and_print(number: int) -> None:
    colours = [*palettes()][number]
    texts = [("fg", "bg"), ("muted", "bg"), ("accent", "bg"), ("fg", "panel"), ("muted", "panel"), ("fail", "panel")]
    texts += [("pass", "pass-bg"), ("fail", "fail-bg"), ("warn", "warn-bg"), ("fg", "none-bg"), ("fg", "fail-bg")]
    low = {pair: contrast(colours[pair[0]], colours[pair[1]]) for pair in texts}
    assert min(low.values()) >= 4.5, low
    marks = [contrast(colours[name], colours["panel"]) for name in ("accent", "warn", "fail")]
    assert min(marks) >= 3


def test_what_failed_is_said_in_words_too() -> None:
    text = rendered(document(stored_report(FAILED, verdict="fail")))
    assert re.search(r'<span class="badge fail"><span aria-hidden="true">✗</span> fail</span>', text)


def test_plots_side_by_side_are_as_wide_as_their_place() -> None:
    text = render_page(every_outcome()).decode()
    pairs = re.findall(r'<div class="pair">(.*?)</div>', text, flags=re.DOTALL)
    widths = {float(width) for pair in pairs for width in re.findall(r'viewBox="0 0 (\d+)', pair)}
    assert widths == {480.0}  # half of the page's 68rem, less what stands around
    assert ".pair svg { min-width: 0; }" in text
