"""The reports of a night: the worst first, every kind of the same document, and names from elsewhere do no harm."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from pathlib import Path
from xml.etree import ElementTree as Tree

import pytest
from junitparser import JUnitXml

from modelreg.registry.words import Json
from modelreg.validators.reports.nightly import (
    RUNBOOKS,
    FindingKind,
    NightFinding,
    Severity,
    make_nightly_document,
    sort_findings,
    worst_of,
)
from modelreg.validators.reports.nightly_junit import render_nightly_junit
from modelreg.validators.reports.nightly_markdown import render_nightly_markdown
from modelreg.validators.reports.nightly_page import render_nightly_page
from modelreg_testing.browser import measure, needs_browser
from modelreg_testing.checkout import ROOT
from modelreg_testing.reports import HOSTILE

DOCS = ROOT / "docs"


def a_finding(severity: Severity, word: str = "x", *, kind: FindingKind = FindingKind.GATE) -> NightFinding:
    return NightFinding(kind=kind, severity=severity, subject=word, message=word, hint=word)


def a_drift(word: str, trend: str) -> Json:
    history = [1.0 + 0.01 * night for night in range(30)]
    known = {"tonight": 1.5, "nights": 30, "median": 1.1, "spread": 0.01, "reason": word, "history": history}
    return {"metric": word, "trend": trend, **known}


def a_document(word: str, *, strict: bool = False, severities: tuple[Severity, ...] = tuple(Severity)) -> Json:
    cell = {"id": 1, "target": word, "gpu": word, "precision": word, "backend": word, "backend_version": word}
    drifts = [a_drift(word, trend) for trend in ("steady", "drift", "outlier", "better")]
    short = {**a_drift(word, "inconclusive"), "median": None, "history": []}
    engine = {"engine": cell, "verdict": "fail", "failed": [word], "objection": "", "drift": [*drifts, short]}
    engine["measured"] = {"latency_ms": {"value": 1.5}}
    drill = {"state": "fails", "version": None, "generation": 1, "seconds": None, "verified_bytes": None, "error": word}
    channel = {"model": word, "channel": word, "version": 2, "generation": 2, "release": "r", "rollback": drill}
    channel |= {"engines": [engine], "skipped": [{"engine": cell, "reason": word}]}
    empty: Json = {
        "model": word,
        "channel": "b",
        "version": None,
        "generation": None,
        "release": None,
        "rollback": None,
    }
    empty |= {"engines": [], "skipped": []}
    return make_nightly_document(
        registry=word,
        host={"name": word},
        started_at=datetime(2026, 11, 30, 2, 17, tzinfo=timezone.utc),
        seconds=12.5,
        channels=[channel, empty],
        checks=[
            {"name": "doctor", "outcome": "found", "detail": word},
            {"name": "leases", "outcome": "not done", "detail": word},
        ],
        findings=[
            a_finding(severity, word, kind=kind) for severity, kind in zip(severities, FindingKind, strict=False)
        ],
        nights=30,
        strict=strict,
        tool_version="1.0",
    )


@pytest.mark.parametrize(
    ("severities", "strict", "code"),
    [
        ((), True, 0),
        ((Severity.NOTE,), True, 0),
        ((Severity.NOTE, Severity.WARNING), False, 0),
        ((Severity.NOTE, Severity.WARNING), True, 1),
        ((Severity.PROBLEM, Severity.WARNING), False, 1),
        ((Severity.PROBLEM, Severity.GATE), False, 3),
        ((Severity.GATE, Severity.DAMAGE, Severity.NOTE), False, 6),
    ],
)
def test_the_worst_finding_makes_the_exit_code(severities: tuple[Severity, ...], strict: bool, code: int) -> None:
    assert a_document("x", strict=strict, severities=severities)["exit_code"] == code


def test_findings_are_sorted_with_the_worst_first_and_each_is_said_once() -> None:
    findings = [a_finding(Severity.NOTE, "a"), a_finding(Severity.DAMAGE, "b"), a_finding(Severity.NOTE, "a")]
    assert [each.subject for each in sort_findings(findings)] == ["b", "a"]
    assert worst_of(findings) is Severity.DAMAGE
    assert worst_of([]) is Severity.NOTE


@pytest.mark.parametrize("kind", FindingKind)
def test_every_kind_of_finding_is_explained_and_has_a_runbook(kind: FindingKind) -> None:
    assert (DOCS / "runbooks" / f"{RUNBOOKS[kind]}.md").is_file()
    assert f"`{kind}`" in (DOCS / "nightly.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("severity", Severity)
def test_every_severity_is_explained_with_its_exit_code(severity: Severity) -> None:
    page = (DOCS / "nightly.md").read_text(encoding="utf-8")
    found = re.search(rf"^\| `{severity}` \| (\d)", page, re.MULTILINE)
    assert found is not None
    assert int(found[1]) == severity.exit_code


def test_junit_has_a_case_for_everything_that_was_tried(tmp_path: Path) -> None:
    path = tmp_path / "nightly.xml"
    path.write_bytes(render_nightly_junit(a_document("x")))
    junit = JUnitXml.fromfile(str(path))
    # The verdict, one drift, the drill; and the findings of kinds that no case shows, from `problem` on.
    assert (junit.failures, junit.errors, junit.skipped) == (4, 1, 2)
    assert {suite.name for suite in junit} == {"registry", "x@x", "x@b"}
    unrun = a_document("x")
    unrun["channels"][0]["engines"][0]["verdict"] = "error"  # a gate that could not run has not failed
    path.write_bytes(render_nightly_junit(unrun))
    junit = JUnitXml.fromfile(str(path))
    assert (junit.failures, junit.errors, junit.skipped) == (3, 2, 2)


def test_markdown_says_what_to_read_below_each_finding() -> None:
    lines = render_nightly_markdown(a_document("x")).splitlines()
    at = next(index for index, line in enumerate(lines) if "**damage**" in line)
    assert lines[at + 1].startswith("  `x` `docs/runbooks/")
    assert "### ❌ modelreg nightly, 2026-11-30: damage" in lines
    assert "✅" in render_nightly_markdown(a_document("x", severities=()))


def test_hostile_names_stay_text_in_every_kind() -> None:
    document = a_document(HOSTILE)
    page = render_nightly_page(document).decode()
    assert "<script" not in page
    assert "<img" not in page
    Tree.fromstring(render_nightly_junit(document))
    outside = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", render_nightly_markdown(document))
    assert "<img" not in outside
    assert "<script" not in outside


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize("width", [1100, 500])
def test_the_page_lies_within_the_window(tmp_path: Path, width: int) -> None:
    page = tmp_path / "nightly.html"
    page.write_bytes(render_nightly_page(a_document("a rather long name of a model, as they are")))
    expression = """({
      overflow: document.documentElement.scrollWidth - innerWidth,
      plots: document.querySelectorAll("figure svg").length,
      cut: [...document.querySelectorAll("figure")].filter(each => each.scrollWidth > each.clientWidth).length,
    })"""
    assert measure(page, expression, width=width) == {"overflow": 0, "plots": 4, "cut": 0}
