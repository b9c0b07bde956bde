"""What `build` says of an engine of eight bits that is larger than a sibling of more bits."""

from __future__ import annotations

from pathlib import Path

from modelreg.cli.larger import say_larger
from modelreg.registry.words import EngineStatus, Precision
from modelreg_testing.cli import Shop
from modelreg_testing.layered import register
from modelreg_testing.records import make_engine
from modelreg_testing.workshop import overflowing_net

INT8, FP8, FP16, FP32 = Precision.INT8, Precision.FP8, Precision.FP16, Precision.FP32


def test_it_is_compared_with_fp16_of_its_target_and_else_with_fp32() -> None:
    engines = [
        make_engine(1, FP32),
        make_engine(2, FP16),
        make_engine(5, INT8),
        make_engine(3, FP32, target="sm_89"),
        make_engine(6, FP8, target="sm_89"),
    ]
    assert say_larger(engines, {5, 6}) == [
        "note: engine 5 (cpu int8) takes 500 B, 2.5 times what fp16 takes (engine 2): is it faster? The gate `gain` of"
        " `validate` measures it",
        "note: engine 6 (sm_89 fp8) takes 600 B, 2.0 times what fp32 takes (engine 3): is it faster? The gate `gain` of"
        " `validate` measures it",
    ]


def test_nothing_is_said_of_what_is_smaller_or_alone_or_of_another_build() -> None:
    small, wide, half = make_engine(1, INT8), make_engine(7, FP16), make_engine(8, FP16, target="sm_89")
    failed = make_engine(2, FP16, status=EngineStatus.FAILED, error="no")
    assert say_larger([small, wide], {1, 7}) == []
    assert say_larger([make_engine(9, INT8), half], {9, 8}) == []
    assert say_larger([make_engine(9, INT8), failed], {9}) == []
    assert say_larger([make_engine(9, INT8), wide], {7}) == []


def test_build_says_it(shop: Shop, tmp_path: Path) -> None:
    calibration = register(shop, overflowing_net(factor=2.0), tmp_path / "in")
    built = shop.cli("build", "net:1", "--precision", "fp32,int8", "--calibration", calibration)
    assert built.code == 0, built.err
    engines = shop.cli("show", "net:1", "--json").document["engines"]
    sizes = {engine["precision"]: engine["size_bytes"] for engine in engines}
    assert ("is it faster?" in built.err) is (sizes["int8"] > sizes["fp32"])
    assert sizes["int8"] > sizes["fp32"]
