from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as Tree

import junitparser
import pytest

from modelreg.validators.reports.junit import render_junit
from modelreg_testing.reports import FAILED, PASSED, SKIPPED, document, every_outcome, hostile, stored_report


def cases(body: Any) -> dict[str, Any]:
    parsed = junitparser.JUnitXml.fromstring(render_junit(body))
    return {case.name: case for suite in parsed for case in suite}


def test_a_gate_is_a_case_with_what_a_ci_system_counts() -> None:
    parsed = junitparser.JUnitXml.fromstring(render_junit(every_outcome()))
    assert (parsed.tests, parsed.failures, parsed.errors, parsed.skipped) == (9, 1, 1, 5)
    names = [suite.name for suite in parsed]
    assert names == ["lenet:2 cpu int8 (engine 3)", "lenet:2 cpu fp32 (engine 4)", "lenet:2 sm_90 fp8 (engine 9)"]
    bad = next(iter(parsed))
    assert (bad.tests, bad.failures, bad.errors, bad.skipped) == (5, 1, 1, 2)
    properties: Any = bad.properties  # it has no types
    assert {one.name: one.value for one in properties()}["objection"] == "validated 3 days ago"


def test_a_failure_says_measured_and_limit_and_a_skip_its_reason() -> None:
    found = cases(document(stored_report(PASSED, FAILED, SKIPPED, verdict="fail")))
    (failure,) = found["sqnr_db of logits"].result
    assert isinstance(failure, junitparser.Failure)
    assert failure.message == "12.25, the limit is >= 15; worst samples 51, 7"
    assert failure.text == "measured: 12.25\nlimit: >= 15\nworst samples: 51, 7"
    (skip,) = found["top5_agreement of logits"].result
    assert (type(skip), skip.message) == (junitparser.Skipped, "the golden set has no labels")
    assert found["cosine of logits"].is_passed
    assert found["cosine of logits"].classname == "lenet.cpu.int8"


def test_an_engine_that_no_gate_speaks_for_is_a_failure_of_its_own() -> None:
    found = cases(document(stored_report(SKIPPED, verdict="fail")))
    (failure,) = found["verdict"].result
    assert "no gate passed" in failure.message


def test_an_engine_that_was_not_validated_is_skipped_with_the_reason() -> None:
    parsed = junitparser.JUnitXml.fromstring(render_junit(every_outcome()))
    (case,) = list(parsed)[-1]
    (skip,) = case.result
    assert skip.message == "this host has no sm_90"


def test_hostile_names_stay_names() -> None:
    root = Tree.fromstring(render_junit(hostile()))
    assert root.find(".//img") is None
    (case,) = root.findall(".//testcase/failure/..")
    assert "<img src=x onerror=alert(1)>" in case.get("name", "")


@pytest.mark.parametrize("text", ["\x00", "\ufffe", "\ud800", "\x1b"])
def test_what_xml_cannot_hold_is_spelled_out(text: str) -> None:
    body = document(stored_report({**FAILED, "reason": f"a{text}b"}, verdict="fail"))
    assert Tree.fromstring(render_junit(body)) is not None
