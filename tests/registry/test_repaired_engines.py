from __future__ import annotations

from dataclasses import replace

import pytest

from modelreg.registry.records import EngineRecord
from modelreg.registry.repaired_engines import find_superseded
from modelreg.registry.words import EngineStatus, Precision, Verdict
from modelreg_testing.records import TRT, make_engine, make_validation


def int8(number: int, *kept: str, part: str = "variant", **changes: object) -> EngineRecord:
    """Return an INT8 engine that keeps some nodes; `changes` are of its recipe."""
    recipe = {"precision": "int8", part: {"kind": "qdq", "tools": {"onnx": str(number)}, "excluded_nodes": [*kept]}}
    return replace(make_engine(number, Precision.INT8), recipe=recipe | changes)


def superseded(*engines: EngineRecord, failed: tuple[int, ...], passed: tuple[int, ...]) -> dict[int, int]:
    verdicts = dict.fromkeys(failed, Verdict.FAIL) | dict.fromkeys(passed, Verdict.PASS)
    newest = {engine.id: make_validation(engine, verdicts[engine.id]) for engine in engines if engine.id in verdicts}
    return {number: engine.id for number, engine in find_superseded(engines, newest).items()}


@pytest.mark.parametrize("part", ["variant", "pins"])
def test_what_failed_gives_way_to_the_newest_that_keeps_more_and_passed(part: str) -> None:
    engines = [int8(1, part=part), int8(2, "a", part=part), int8(3, "a", "b", part=part)]
    assert superseded(*engines, failed=(1,), passed=(2, 3)) == {1: 3}
    assert superseded(*engines, failed=(1, 2), passed=(3,)) == {1: 3, 2: 3}


def test_what_passed_or_was_never_judged_gives_way_to_nothing() -> None:
    assert superseded(int8(1), int8(2, "a"), failed=(), passed=(1, 2)) == {}
    assert superseded(int8(1), int8(2, "a"), failed=(), passed=(2,)) == {}


@pytest.mark.parametrize(
    "other",
    [
        int8(2),
        replace(int8(2, "a"), precision=Precision.FP8),
        replace(int8(2, "a"), toolchain=TRT),
        replace(int8(2, "a"), status=EngineStatus.FAILED),
        int8(2, "a", flags=["sparse"]),
        int8(2, "a", variant={"kind": "qdq", "excluded_nodes": ["a"], "calibration": "another"}),
    ],
)
def test_another_build_or_a_failed_one_is_no_repair(other: EngineRecord) -> None:
    assert superseded(int8(1), other, failed=(1,), passed=(2,)) == {}


def test_a_repair_that_fails_or_came_before_hides_nothing() -> None:
    assert superseded(int8(1), int8(2, "a"), failed=(1, 2), passed=()) == {}
    assert superseded(int8(1, "a"), int8(2), failed=(2,), passed=(1,)) == {}
