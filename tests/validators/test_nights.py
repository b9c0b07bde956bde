"""What is compared from night to night: like with like, and finite numbers."""

from __future__ import annotations

from typing import Any

import pytest

from modelreg.registry.words import Json
from modelreg.validators.nights import compare_with_nights, measure_latency, measure_report


def a_pass(name: str = "plan", *, sqnr: Any = 60.0, task: Json | None = None, scores: Any = ()) -> Json:
    return {"name": name, "outputs": {"logits": {"sqnr_db": sqnr}}, "task": task, "scores": scores}


def an_engine(value: float, **changes: Any) -> Json:
    measured = {**measure_report({"passes": [a_pass(sqnr=value)]}), **measure_latency(value)}
    return {"plan": "p", "golden_set": "g", "target": "cpu", "measured": measured, **changes}


def a_night(*engines: Json, model: str = "lenet", host: str = "here") -> Json:
    return {"host": {"name": host}, "channels": [{"model": model, "engines": list(engines)}]}


def histories(nights: list[Json]) -> dict[str, list[float]]:
    found = compare_with_nights(an_engine(1.0), nights, model="lenet", host="here")
    return {each["metric"]: each["history"] for each in found}


def test_a_report_gives_every_pass_its_own_measurements_and_none_of_what_only_looks_inside() -> None:
    task = {"samples": 200, "accuracy": 0.9, "top1_agreement": 0.99}
    score = {"metric": "wer", "engine": 0.1, "higher_is_better": False}
    inside: Json = {"name": "ranges", "outputs": {}, "task": None, "scores": []}
    found = measure_report({"passes": [a_pass(task=task, scores=[score]), a_pass("rounded"), inside]})
    assert {name: entry["value"] for name, entry in found.items()} == {
        "sqnr_db of logits (plan)": 60.0,
        "accuracy (plan)": 0.9,
        "top1_agreement (plan)": 0.99,
        "wer (plan)": 0.1,
        "sqnr_db of logits (rounded)": 60.0,
    }
    assert found["accuracy (plan)"]["absolute"] == 0.01
    assert not found["wer (plan)"]["higher_is_better"]


@pytest.mark.parametrize(("sqnr", "value"), [("inf", 200.0), ("nan", None), ("-inf", None), (None, None)])
def test_what_is_not_finite_is_capped_or_left_to_its_gate(sqnr: Any, value: float | None) -> None:
    found = measure_report({"passes": [a_pass(sqnr=sqnr)]})
    assert found.get("sqnr_db of logits", {"value": None})["value"] == value


@pytest.mark.parametrize("change", [{"plan": "q"}, {"golden_set": "h"}, {"target": "sm_90"}])
def test_another_plan_golden_set_or_target_is_another_series(change: Json) -> None:
    nights = [a_night(an_engine(7.0, **change)), a_night(an_engine(8.0))]
    assert histories(nights) == {"sqnr_db of logits": [8.0], "latency_ms": [8.0]}


def test_another_host_has_another_latency_and_the_same_accuracy() -> None:
    nights = [a_night(an_engine(7.0), host="there"), a_night(an_engine(8.0))]
    assert histories(nights) == {"sqnr_db of logits": [7.0, 8.0], "latency_ms": [8.0]}


def test_a_night_counts_once_however_many_channels_serve_the_engine() -> None:
    night = a_night(an_engine(7.0))
    night["channels"] *= 2
    assert histories([night, a_night(an_engine(9.0), model="other")])["latency_ms"] == [7.0]


def test_a_night_without_a_measurement_is_none_of_it() -> None:
    engine = an_engine(7.0)
    del engine["measured"]["latency_ms"]
    assert histories([a_night(engine)]) == {"sqnr_db of logits": [7.0], "latency_ms": []}
