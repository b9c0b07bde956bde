"""A pass that does not count any more is none in any kind of report."""

from __future__ import annotations

import json
from typing import Any

import junitparser
import pytest

from modelreg.validators.reports.junit import render_junit
from modelreg.validators.reports.markdown import render_markdown
from modelreg.validators.reports.sarif import render_sarif
from modelreg_testing.reports import PASSED, document, sarif_validator, stored_report


@pytest.fixture
def stale() -> Any:
    body = document(stored_report(PASSED))
    body["validations"][0]["objection"] = "validated against another golden set"
    return body


def test_it_is_a_skipped_case_of_junit(stale: Any) -> None:
    parsed = junitparser.JUnitXml.fromstring(render_junit(stale))
    assert (parsed.tests, parsed.failures, parsed.skipped) == (2, 0, 1)
    assert b"it does not count any more: validated against another golden set" in render_junit(stale)


def test_it_is_a_warning_of_sarif_and_no_success(stale: Any) -> None:
    body = json.loads(render_sarif(stale))
    sarif_validator().validate(body)
    (invocation,) = body["runs"][0]["invocations"]
    assert invocation["executionSuccessful"] is False
    (note,) = invocation["toolExecutionNotifications"]
    assert note["level"] == "warning"
    assert note["message"]["text"].endswith("does not count any more: validated against another golden set")


def test_it_is_no_tick_of_markdown(stale: Any) -> None:
    (row,) = [line for line in render_markdown(stale).splitlines() if line.startswith("| 3 ")]
    assert "✅" not in row
    assert "pass, which does not count any more" in row
