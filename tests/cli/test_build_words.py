from __future__ import annotations

from modelreg.cli.build_words import say_cells, say_hints, say_profiles, say_reasons, say_settings

FP32, FP16, THERE = ("fp32", "cpu"), ("fp16", "cpu"), ("fp32", "sm_90")


def test_cells_are_grouped_by_target() -> None:
    assert say_cells([FP32, FP16, THERE]) == "fp32, fp16 for cpu and fp32 for sm_90"


def test_each_reason_is_said_once() -> None:
    assert (
        say_reasons([("no", FP32), ("never", THERE), ("no", FP16)]) == "fp32, fp16 for cpu: no; fp32 for sm_90: never"
    )


def test_each_hint_is_said_once_with_its_cells() -> None:
    assert say_hints([("add one", FP32), ("add one", FP16)]) == "add one"
    assert say_hints([("add one", FP32), ("", FP16)]) == "fp32 for cpu: add one"
    several = say_hints([("add one", FP32), ("leave it", THERE), ("add one", FP16)])
    assert several.splitlines() == ["fp32, fp16 for cpu: add one", "fp32 for sm_90: leave it"]
    assert say_hints([("", FP32)]) == say_hints([]) == ""


def test_profiles_say_what_an_engine_takes() -> None:
    free = {"image": {"min": [1, 3], "opt": [8, 3], "max": [64, 3]}}
    alone = {"image": {point: [16, 3] for point in ("min", "opt", "max")}}
    assert say_profiles({"build": {"profiles": [free]}}) == ["profile: image 1x3 to 64x3, tuned for 8x3"]
    assert say_profiles({"build": {"profiles": [free, alone]}})[1] == "profile 1: image 16x3 and no other shape"
    assert say_profiles({"build": {}}) == []


def test_settings_that_are_not_the_default_are_said() -> None:
    build = {
        "pools": {"WORKSPACE": 4096 << 20, "TACTIC_SHARED_MEMORY": 1000},
        "optimisation_level": 4,
        "hardware_compatibility": "AMPERE_PLUS",
        "tactic_sources": {"none": True, "on": ["CUDNN"], "off": ["CUBLAS"]},
        "dla_core": 0,
        "plugins": [{"name": "a.so", "digest": "0"}],
    }
    assert say_settings({"build": build, "flags": ["REFIT", "TF32"]}) == [
        "memory pool WORKSPACE: 4 GiB",
        "memory pool TACTIC_SHARED_MEMORY: 1000 B",
        "optimisation level: 4",
        "hardware compatibility: AMPERE_PLUS",
        "tactic sources: none, +CUDNN, -CUBLAS",
        "DLA core: 0",
        "plugin: a.so",
        "builder flags: REFIT, TF32",
    ]
    plain = {"optimisation_level": 3, "hardware_compatibility": "NONE", "tactic_sources": None, "dla_core": None}
    assert say_settings({"build": plain, "flags": []}) == []
    assert say_settings({"build": {"optimisation_level": "extended"}}) == []
