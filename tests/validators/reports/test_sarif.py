from __future__ import annotations

import json
from typing import Any

import pytest

from modelreg.validators.reports.sarif import render_sarif
from modelreg_testing.reports import (
    FAILED,
    PASSED,
    SKIPPED,
    document,
    every_outcome,
    hostile,
    sarif_validator,
    stored_report,
)


def run_of(body: Any) -> Any:
    (run,) = json.loads(render_sarif(body))["runs"]
    return run


@pytest.mark.parametrize("make", [every_outcome, hostile, document])
def test_reports_of_every_outcome_satisfy_the_schema_of_sarif(make: Any) -> None:
    sarif_validator().validate(json.loads(render_sarif(make())))


def test_the_schema_is_strict_enough_to_refuse_a_made_up_property() -> None:
    body = json.loads(render_sarif(every_outcome()))
    body["runs"][0]["results"][0]["made_up"] = 1
    assert not sarif_validator().is_valid(body)


def test_only_what_somebody_must_look_at_is_a_result() -> None:
    run = run_of(every_outcome())
    assert [(r["ruleId"], r["level"]) for r in run["results"]] == [
        ("sqnr_db", "error"),
        ("run", "error"),
        ("gain", "warning"),
    ]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert all(rules[result["ruleIndex"]] == result["ruleId"] for result in run["results"])
    notes = [note["message"]["text"] for note in run["invocations"][0]["toolExecutionNotifications"]]
    assert "cpu int8: top5_agreement of logits was skipped: the golden set has no labels" in notes
    assert "sm_90 fp8 was skipped: this host has no sm_90" in notes
    assert run["invocations"][0]["executionSuccessful"] is False


def test_a_result_says_what_was_measured_against_which_limit() -> None:
    (result,) = run_of(document(stored_report(PASSED, FAILED, verdict="fail")))["results"]
    assert result["message"]["text"].startswith("lenet:2 cpu int8: sqnr_db of logits: 12.25, the limit is >= 15")
    assert (result["properties"]["measured"], result["properties"]["limit"]) == (12.25, ">= 15")
    (place,) = result["locations"]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "model.onnx"
    assert place["logicalLocations"][0]["fullyQualifiedName"] == "lenet/cpu/int8/logits"


def test_a_finding_keeps_its_fingerprint_from_version_to_version() -> None:
    def prints(**more: Any) -> list[str]:
        body = document(stored_report(FAILED, verdict="fail", **more), version=more.pop("number", 2))
        return [result["partialFingerprints"]["modelregGate/v1"] for result in run_of(body)["results"]]

    first = prints()
    assert prints(engine=99) == first
    assert prints(precision="fp16") != first


def test_an_engine_that_no_gate_speaks_for_is_a_result() -> None:
    (result,) = run_of(document(stored_report(SKIPPED, verdict="fail")))["results"]
    assert (result["ruleId"], result["level"]) == ("verdict", "error")


def test_a_clean_report_has_no_results() -> None:
    run = run_of(document(stored_report(PASSED)))
    assert (run["results"], run["invocations"][0]["executionSuccessful"]) == ([], True)
