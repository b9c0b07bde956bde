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


def test_profiles_are_told_by_their_three_shapes() -> None:
    points = {"min": [1, 3, 32, 32], "opt": [8, 3, 32, 32], "max": [64, 3, 32, 32]}
    alone = {point: [16, 3, 32, 32] for point in points}
    sizes = {"min": [1, 3, 8, 8], "opt": [8, 3, 16, 16], "max": [8, 3, 32, 32]}

    def built_with(number: int, *profiles: object) -> EngineRecord:
        return replace(make_engine(number, INT8), recipe={"build": {"profiles": list(profiles)}})

    said = tell_apart(
        [
            built_with(1, {"image": points}),
            built_with(2, {"image": alone}),
            built_with(3, {"image": sizes}, {"image": alone}),
            built_with(4),
        ]
    )
    assert said == {
        1: "profiles image 1x3x32x32 … 8x… … 64x…",
        2: "profiles image 16x3x32x32",
        3: "profiles image 1x3x8x8 … 8x3x16x16 … 8x3x32x32 and image 16x3x32x32",
        4: "profiles -",
    }
