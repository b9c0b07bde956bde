from __future__ import annotations

import pytest

from modelreg.registry.promotion import Candidate, EngineStanding, judge_engine
from modelreg.registry.promotion_doubts import find_doubts
from modelreg.registry.words import Precision, Verdict
from modelreg_testing.records import GOLDEN, make_engine, make_validation

FP32, INT8 = Precision.FP32, Precision.INT8
CHOSEN = {"cpu": make_engine(9, INT8)}


def judged(number: int, verdict: Verdict | None, *, target: str = "cpu", golden: str = GOLDEN) -> Candidate:
    engine = make_engine(number, FP32, target=target)
    validation = None if verdict is None else make_validation(engine, verdict, golden=golden)
    return judge_engine(EngineStanding(engine=engine, validation=validation), golden_digest=GOLDEN)


def test_less_than_fp32_is_doubted_where_fp32_fails() -> None:
    assert find_doubts(CHOSEN, [judged(1, Verdict.FAIL), judged(2, Verdict.FAIL)]) == (
        "FP32 fails on cpu (engine 2, validation fail: cosine of logits):"
        " the golden set is of another model, or the export is wrong",
    )


@pytest.mark.parametrize(
    "candidates",
    [
        [],
        [judged(1, None)],
        [judged(1, Verdict.PASS)],
        [judged(1, Verdict.ERROR)],
        [judged(1, Verdict.FAIL), judged(2, Verdict.PASS)],
        [judged(1, Verdict.FAIL, target="sm_90")],
        [judged(1, Verdict.FAIL, golden="0" * 64)],
    ],
    ids=["none", "not validated", "passes", "could not run", "another passes", "another target", "another golden set"],
)
def test_it_is_not_doubted_otherwise(candidates: list[Candidate]) -> None:
    assert find_doubts(CHOSEN, candidates) == ()


def test_fp32_itself_is_not_doubted() -> None:
    assert find_doubts({"cpu": make_engine(1, FP32)}, [judged(1, Verdict.FAIL)]) == ()
