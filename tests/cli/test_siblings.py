"""Engines of one cell differ in their recipes alone, and `show` says in what."""

from __future__ import annotations

from dataclasses import replace

from modelreg.cli.siblings import tell_apart
from modelreg.registry.records import EngineRecord
from modelreg.registry.words import Json, Precision
from modelreg_testing.records import make_engine

INT8 = Precision.INT8


def engine(number: int, **variant: object) -> EngineRecord:
    recipe: Json = {"variant": {"calibration": {"method": "percentile"}, "excluded_op_types": [], **variant}}
    return replace(make_engine(number, INT8), recipe=recipe)


def test_siblings_are_told_apart_by_what_their_recipes_say_otherwise() -> None:
    said = tell_apart([engine(1), engine(2, calibration={"method": "minmax"}), engine(3, excluded_op_types=["Gemm"])])
    assert said == {
        1: "calibration.method percentile; excluded_op_types -",
        2: "calibration.method minmax; excluded_op_types -",
        3: "calibration.method percentile; excluded_op_types Gemm",
    }


def test_an_engine_without_siblings_or_differences_needs_no_words() -> None:
    assert tell_apart([engine(1), make_engine(2), engine(3)]) == {}
    assert tell_apart([engine(1)]) == {}


def test_digests_and_long_lists_are_cut() -> None:
    said = tell_apart([engine(1, excluded_nodes=[*"abcde"]), engine(2, calibration={"digest": "f" * 64})])
    assert "excluded_nodes a,b,c,… (5)" in said[1]
    assert f"calibration.digest {'f' * 12};" in f"{said[2]};"
