from __future__ import annotations

import json

import pytest

from modelreg.registry.clock import utc_now
from modelreg.registry.errors import IntegrityError
from modelreg.registry.words import Json, Precision
from modelreg.validators.reports.document import Judged, make_document, parse_stored_report
from modelreg_testing.records import make_engine, make_validation, make_version
from modelreg_testing.reports import FAILED, PASSED, report_validator, stored_report

ENGINE = make_engine(1, Precision.INT8)
VALIDATION = make_validation(ENGINE)


def made(*reports: Json, reason: str = "") -> Json:
    document = make_document(
        version=make_version(),
        golden_digest=None,
        channel=None,
        judged=[Judged(validation=VALIDATION, report=report) for report in reports],
        skipped=[(ENGINE, reason)] if reason else [],
        history=[],
        tool_version="1.0",
        created_at=utc_now(),
    )
    report_validator().validate(document)
    return document


def test_the_verdict_is_the_worst_of_all_engines_and_none_is_not_a_pass() -> None:
    good, bad, broken = (stored_report(PASSED, verdict=word) for word in ("pass", "fail", "error"))
    assert made(good, good)["verdict"] == "pass"
    assert made(good, broken)["verdict"] == "error"
    assert made(broken, bad, good)["verdict"] == "fail"
    assert made()["verdict"] == "incomplete"
    assert made(good, reason="no GPU here")["verdict"] == "incomplete"
    assert made(bad, reason="no GPU here")["verdict"] == "fail"


def test_a_stored_report_is_read_back_as_it_was_written() -> None:
    body = stored_report(PASSED, FAILED, verdict="fail")
    assert parse_stored_report(json.dumps(body).encode(), validation=VALIDATION) == body


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"not JSON", "is no JSON"),
        (b"\xff\xfe", "is no JSON"),
        (b"[]", "is none that this program understands"),
        (b'{"schema": 1}', "is none that this program understands"),
        (json.dumps({**stored_report(PASSED), "schema": 9}).encode(), "has schema 9, this program knows 1"),
    ],
)
def test_what_is_no_report_of_ours_is_refused(content: bytes, said: str) -> None:
    with pytest.raises(IntegrityError, match=said):
        parse_stored_report(content, validation=VALIDATION)
