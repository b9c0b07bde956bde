from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from modelreg.cli.layer_tables import advise_activations, advise_repair, bar, explain_layers, print_layers
from modelreg.registry.records import GoldenContents
from modelreg.registry.words import Precision, Verdict
from modelreg.validators.layers.birth import diagnose
from modelreg.validators.layers.comparison import LayerReport
from modelreg.validators.layers.mapping import Match
from modelreg.validators.layers.measuring import LayerMeasurement, Row
from modelreg_testing.records import make_engine


def measured(name: str, sqnr_db: float, own: float | None, *inputs: str, **more: Any) -> LayerMeasurement:
    row = Row(name=name, tensor=f"{name}.out", node=f"/{name}/Conv", op="Conv", inputs=inputs)
    plain: dict[str, Any] = {
        "values": 8,
        "cosine": 0.5,
        "max_abs": 0.25,
        "odd": 0,
        "own_odd": 0,
        "saturated": 0.0,
        "reference_range": (-1.0, 2.0),
        "candidate_range": (-1.5, 2.0),
    }
    return LayerMeasurement(row=row, sqnr_db=sqnr_db, own_sqnr_db=own, **(plain | more))


def report(*rows: LayerMeasurement, **more: Any) -> LayerReport:
    plain: dict[str, Any] = {
        "reference": "pytorch",
        "unit": "sample",
        "samples": (0, 4),
        "limit_db": 15.0,
        "matches": (),
        "gone": {},
        "taps": None,
        "own": "exact",
    }
    return LayerReport(rows=rows, diagnosis=diagnose([row.error for row in rows], limit_db=15.0), **(plain | more))


@pytest.mark.parametrize(
    ("sqnr_db", "expected"),
    [(math.inf, ""), (150.0, ""), (120.0, ""), (60.0, "██████"), (115.0, "▌"), (0.0, "█" * 12), (-math.inf, "█" * 12)],
)
def test_a_bar_is_full_where_nothing_is_left(sqnr_db: float, expected: str) -> None:
    assert bar(sqnr_db) == expected


def test_the_first_bad_layer_is_named_with_what_it_does_alone_and_what_only_carries() -> None:
    found = report(
        measured("a", 40.0, 40.0), measured("b", 3.0, 4.0, "a"), measured("c", 2.0, 40.0, "b"), own="simulated"
    )
    lines = explain_layers(found, verdict=Verdict.FAIL)
    assert lines[0] == (
        "first bad layer: b (Conv, node /b/Conv): 3.0 dB, 4.0 dB on the reference's own inputs; "
        "1 layer behind it only carry an error"
    )
    assert lines[1] == "OWN is what ONNX Runtime makes of the same variant on the CPU; all else is the engine's"


def test_values_that_are_no_numbers_and_modules_that_are_missing_are_said() -> None:
    matches = (
        Match(activation="norm", kind="BatchNorm2d", tensor="", how="none", error=None, reason="not exported"),
        Match(activation="b", kind="Conv2d", tensor="b.out", how="metadata", error=1.0),
    )
    found = report(
        measured("b", 3.0, None, odd=7, max_abs=math.inf),
        matches=matches,
        gone={f"m{index}": "folded" for index in range(9)},
        taps={"y": {"max_abs": 0.0, "sqnr_db": "inf", "odd": 0}, "z": {"max_abs": 1.0, "sqnr_db": 20.0, "odd": 2}},
        own="none",
    )
    lines = explain_layers(found, verdict=Verdict.FAIL)
    assert lines[0].startswith("first bad layer: b (Conv, node /b/Conv), or norm before it, which the ONNX does not")
    assert "7 values NaN or infinite" in lines[0]
    assert lines[1].endswith("m5 (folded) and 3 more")
    assert lines[2] == "OWN is not known: layers of this engine cannot be run alone"
    assert lines[3] == "looking inside changes y by nothing"
    assert lines[4] == "looking inside changes z by 2 values that are no numbers in one of the two"


@pytest.mark.parametrize(
    ("precision", "own", "advice"),
    [
        (Precision.INT8, 3.0, "next: modelreg repair net:1 --precision int8 --calibration FILE\n"),
        (Precision.FP16, 3.0, "next: modelreg repair net:1 --precision fp16\n"),
        (Precision.FP32, 3.0, ""),  # no precision is to blame
        (Precision.INT8, 40.0, ""),
    ],
)
def test_a_repair_is_advised_where_a_precision_may_be_to_blame(
    capsys: pytest.CaptureFixture[str], precision: Precision, own: float, advice: str
) -> None:
    advise_repair(report(measured("a", own, own)), make_engine(1, precision), "net:1")
    assert capsys.readouterr().err == advice


def test_the_table_has_one_line_a_layer_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(measured("a", math.inf, math.inf), measured("b", -math.inf, -math.inf, "a", saturated=0.25))
    print_layers(found, name="engine 3 (cpu int8)", verdict=Verdict.PASS, no_color=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "layers of engine 3 (cpu int8) against PyTorch, 2 samples, bad below 15 dB"
    text = " ".join(" ".join(lines).split())
    assert "exact" in text
    assert "lost" in text
    assert "25 %" in text
    assert "-1 … 2" in text


def test_the_heading_says_what_is_compared_with_and_a_relu_that_was_drawn_in_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    layer = measured("c1", 40.0, 40.0)
    drawn = replace(layer, row=replace(layer.row, through_relu=True))
    print_layers(report(drawn), name="engine 2", verdict=Verdict.PASS, no_color=True)
    print_layers(report(layer, reference="itself", batch=64), name="engine 2", verdict=Verdict.PASS, no_color=True)
    said = capsys.readouterr().out
    assert "layers of engine 2 against PyTorch, 2 samples, bad below 15 dB" in said
    assert "layers of engine 2 against itself in the golden set's runs, at batch 64, 2 samples" in said
    assert "c1 + Relu" in said


def test_the_golden_set_is_blamed_only_where_something_fails() -> None:
    found = report(measured("a", 90.0, 90.0), reference="onnx")
    assert explain_layers(found, verdict=Verdict.PASS)[0] == "no bad layer"
    assert "lies between the ONNX and its golden set" in explain_layers(found, verdict=Verdict.FAIL)[0]
    assert explain_layers(found, verdict=Verdict.ERROR)[0] == "no bad layer"


def test_how_to_get_activations_is_said_where_the_golden_set_is_known_to_have_none() -> None:
    without = report(measured("a", 90.0, 90.0), reference="onnx")
    assert "--activations all" in advise_activations(without, GoldenContents())
    assert advise_activations(without, GoldenContents(layers=3)) == ""  # --nodes was asked for
    assert advise_activations(without, None) == ""
    assert advise_activations(report(measured("a", 90.0, 90.0)), GoldenContents()) == ""
