from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from modelreg.cli.next_steps import choose_next
from modelreg.registry.promotion import Candidate, EngineStanding, judge_engine
from modelreg.registry.records import EngineRecord, GoldenSetRecord
from modelreg.registry.words import EngineStatus, Precision, Verdict
from modelreg_testing.records import AT, GOLDEN, make_engine, make_source, make_validation, make_version

SET = GoldenSetRecord(id=1, version_id=1, digest=GOLDEN, samples=64, origin={}, created_at=AT)


def judge(verdict: Verdict | None, precision: Precision = Precision.FP32, **changes: Any) -> Candidate:
    engine = make_engine(1, precision)
    validation = None if verdict is None else make_validation(engine, verdict, **changes)
    return judge_engine(EngineStanding(engine=engine, validation=validation), golden_digest=GOLDEN)


FAILED_BUILD = Candidate(
    engine=replace(make_engine(2, status=EngineStatus.FAILED, error="no"), files=()),
    usable=False,
    reason="build failed",
)
PASSED, UNJUDGED, BAD = judge(Verdict.PASS), judge(None), judge(Verdict.FAIL)


def never_run(target: str) -> Candidate:
    engine = replace(make_engine(3, target=target), realised={"checked": {"runs": 0}})
    return judge_engine(EngineStanding(engine=engine, validation=None), golden_digest=GOLDEN)


def why_not_here(engine: EngineRecord) -> str:
    """Be a host without a GPU."""
    return "" if engine.target.name == "cpu" else f"needs {engine.target.name}"


STALE = judge(Verdict.PASS, golden="0" * 64)


@pytest.mark.parametrize(
    ("candidates", "golden", "is_active", "step"),
    [
        ([], SET, False, "modelreg build lenet:1 --precision fp32"),
        ([FAILED_BUILD], SET, False, "modelreg build lenet:1 --precision fp32"),
        ([UNJUDGED], SET, False, "modelreg validate lenet:1"),
        ([never_run("cpu")], SET, False, "modelreg validate lenet:1"),
        (
            [never_run("sm_120"), never_run("sm_89"), never_run("sm_120")],
            SET,
            False,
            "modelreg validate lenet:1, on a host for each of sm_89, sm_120",
        ),
        ([UNJUDGED, never_run("sm_86")], SET, False, "modelreg validate lenet:1 --target cpu"),
        ([PASSED, never_run("sm_86")], SET, True, "modelreg validate lenet:1, on a host that runs sm_86"),
        ([PASSED, UNJUDGED], SET, True, "modelreg validate lenet:1"),
        ([STALE], SET, False, "modelreg validate lenet:1"),
        ([PASSED, BAD], SET, False, "modelreg promote lenet:1 --to production"),
        ([PASSED], SET, True, ""),
        ([BAD], SET, False, ""),
    ],
)
def test_the_next_step_fits_how_a_version_stands(
    candidates: list[Candidate], golden: GoldenSetRecord, is_active: bool, step: str
) -> None:
    assert choose_next(make_version(), golden, candidates, is_active=is_active, why_not_here=why_not_here) == step


def test_without_a_golden_set_one_must_be_given() -> None:
    assert "--golden" in choose_next(make_version(), None, [UNJUDGED], is_active=False, why_not_here=why_not_here)


def test_what_cannot_be_built_has_no_next_step() -> None:
    version = make_version(source=make_source(unbuildable=("strings",)))
    assert choose_next(version, SET, [], is_active=False, why_not_here=why_not_here) == ""


@pytest.mark.parametrize(
    ("among", "step"),
    [
        (None, "modelreg validate lenet:1, on a host for each of sm_86, sm_89"),
        ([4], "modelreg validate lenet:1, on a host that runs sm_89"),
        ([9], "modelreg validate lenet:1, on a host for each of sm_86, sm_89"),
    ],
)
def test_what_was_made_now_is_what_is_named(among: list[int] | None, step: str) -> None:
    candidates = [never_run("sm_86"), replace(never_run("sm_89"), engine=replace(never_run("sm_89").engine, id=4))]
    said = choose_next(make_version(), SET, candidates, is_active=False, why_not_here=why_not_here, among=among)
    assert said == step


def test_what_was_made_now_is_named_by_its_target_where_more_waits() -> None:
    candidates = [judge(None), never_run("sm_86")]
    said = choose_next(make_version(), SET, candidates, is_active=False, why_not_here=why_not_here, among=[1])
    assert said == "modelreg validate lenet:1 --target cpu"
