from __future__ import annotations

import re

import pytest

from modelreg.validators.reports.markdown import code, render_markdown
from modelreg_testing.reports import FAILED, PASSED, document, every_outcome, hostile, stored_report


def test_a_comment_has_a_short_table_what_failed_and_all_gates_folded() -> None:
    text = render_markdown(every_outcome())
    lines = text.splitlines()
    assert lines[0] == "### ❌ `lenet:2`: fail"
    assert "| 3 `cpu` | `int8` | ❌ fail | 1 pass, 1 fail, 1 error, 1 skipped, 1 inconclusive | 1.5 ms |" in lines
    assert "- `cpu int8` `sqnr_db of logits`: `12.25, the limit is >= 15; worst samples 51, 7`" in lines
    assert "| 9 `sm_90` | `fp8` | ⏭️ not validated | `this host has no sm_90` | - |" in lines
    assert text.count("<details>") == text.count("</details>") == 2
    assert text.index("<details>") > text.index("**What failed**")
    assert "`validated 3 days ago`" in text


def test_a_pass_is_short_before_its_details() -> None:
    text = render_markdown(document(stored_report(PASSED)))
    assert "What failed" not in text
    assert len(text.split("<details>")[0].splitlines()) <= 8


def test_of_many_failures_ten_are_shown_above() -> None:
    text = render_markdown(document(stored_report(*[FAILED] * 14, verdict="fail")))
    assert "- and 4 more below" in text


def outside_code(text: str) -> str:
    """Return what Markdown would read as markup: all but code spans."""
    return re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", text)


def test_hostile_names_are_no_markup_and_mention_nobody() -> None:
    rest = outside_code(render_markdown(hostile()))
    for bad in ("<img", "<script", "@team", "#1", "\x1b", "\x07", "\u202e"):
        assert bad not in rest
    rows = [line for line in render_markdown(hostile()).splitlines() if line.startswith("|")]
    cells = {len(re.findall(r"(?<!\\)\|", line)) for line in rows}
    assert cells == {6}


@pytest.mark.parametrize(
    ("text", "span"),
    [("a", "`a`"), ("", "`-`"), ("`", "`` ` ``"), ("a``b", "```a``b```"), ("a|b", "`a\\|b`"), ("a\nb", "`a b`")],
)
def test_a_code_span_holds_any_text(text: str, span: str) -> None:
    assert code(text) == span


def cells_of(row: str) -> list[str]:
    """Return the cells of a table's row as GitHub's parser finds them: an escaped character is never a bar."""
    return re.findall(r"(?:\\[!-/:-@\[-`{-~]|[^|])+", row.strip().strip("|"))


@pytest.mark.parametrize("name", ["a|b", r"a\|b", r"a\\|b", r"a\\\|b", r"\||\|"])
def test_no_name_leaves_its_cell(name: str) -> None:
    assert len(cells_of(f"| {code(name)} | next |")) == 2
    found = {**FAILED, "subject": name}
    text = render_markdown(document(stored_report(found, verdict="fail")))
    rows = [line for line in text.splitlines() if line.startswith("|") and code(name) in line]
    assert [len(cells_of(row)) for row in rows] == [5]
