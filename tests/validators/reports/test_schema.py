from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from modelreg.validators.drift import Trend
from modelreg.validators.reports import nightly
from modelreg.validators.reports.document import SCHEMA_FILE
from modelreg_testing.checkout import ROOT
from modelreg_testing.reports import (
    document,
    every_outcome,
    hostile,
    nightly_validator,
    report_validator,
    stored_report,
)


@pytest.mark.parametrize("make", [every_outcome, hostile, document])
def test_reports_of_every_outcome_satisfy_the_published_schema(make: Any) -> None:
    report_validator().validate(make())


@pytest.mark.parametrize(
    ("name", "file"), [("report.schema.json", SCHEMA_FILE), ("nightly.schema.json", nightly.SCHEMA_FILE)]
)
def test_the_schemas_are_those_in_the_docs(name: str, file: Path) -> None:
    assert (ROOT / "docs" / name).read_bytes() == file.read_bytes()


def test_the_schema_of_a_night_knows_every_word_and_no_other() -> None:
    schema: Any = nightly_validator().schema
    definitions = schema["$defs"]
    assert definitions["finding"]["properties"]["kind"]["enum"] == [str(each) for each in nightly.FindingKind]
    assert definitions["finding"]["properties"]["severity"]["enum"] == [str(each) for each in nightly.Severity]
    assert set(definitions["drift"]["properties"]["trend"]["enum"]) == {str(each) for each in Trend}
    assert schema["properties"]["verdict"]["enum"] == ["ok", *(str(each) for each in nightly.Severity)]
    assert not nightly_validator().is_valid({})


def change(body: Any, path: str, value: object) -> Any:
    changed = copy.deepcopy(body)
    *parents, last = [int(part) if part.isdigit() else part for part in path.split("/")]
    place = changed
    for part in parents:
        place = place[part]
    place[last] = value
    return changed


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("schema", 2),
        ("verdict", "passed"),
        ("created_at", "yesterday"),
        ("golden_set", "abc"),
        ("validations/0/report/verdict", "incomplete"),
        ("validations/0/report/gates/0/outcome", "ok"),
        ("validations/0/report/gates/0/measured", "1.0"),
        ("validations/0/report/gates/3/reason", ""),
        ("validations/0/report/engine/plan", ""),
        ("validations/0/report/passes", []),
        ("validations/0/report/policy/rules", []),
        ("validations/0/report/passes/0/outputs/logits/histogram/counts", [-1]),
        ("validations/0/report/passes/0/outputs/logits/cosine", "high"),
        ("validations/0/report/layers/rows/0/state", "guilty"),
        ("skipped/0/reason", ""),
        ("history/0/gates/0/comparison", "<"),
    ],
)
def test_the_schema_refuses_what_is_wrong(path: str, value: object) -> None:
    assert not report_validator().is_valid(change(every_outcome(), path, value)), path


def test_fields_that_a_later_program_adds_are_no_error() -> None:
    body = document(stored_report(slices={"by": "day"}), fleet="north")
    report_validator().validate(body)
