from __future__ import annotations

from dataclasses import replace

from modelreg.builders.choosing import choose_named, choose_toolchains, to_spec
from modelreg.builders.interface import ToolchainSpec
from modelreg.registry.words import Backend
from modelreg_testing.records import TRT


def rtx(name: str, version: str, *targets: str) -> ToolchainSpec:
    details = {"targets": list(targets)}
    return ToolchainSpec(name=name, backend=Backend.TENSORRT_RTX, version=version, python="/p", details=details)


ORT = ToolchainSpec(name="onnxruntime", backend=Backend.ONNXRUNTIME, version="1.32.0", python="/p")
OLD, NEW = rtx("old", "1.9.0.1", "sm_75", "sm_86"), rtx("new", "1.10.0.1", "sm_86")


def test_the_newest_of_a_backend_that_builds_for_the_target_is_chosen() -> None:
    assert choose_toolchains("sm_86", [ORT, NEW, OLD]).toolchains == (NEW,)
    assert choose_toolchains("sm_75", [ORT, NEW, OLD]).toolchains == (OLD,)
    assert choose_toolchains("cpu", [ORT, NEW, OLD]).toolchains == (ORT,)


def test_all_that_are_named_and_fit_are_chosen() -> None:
    assert choose_named("sm_86", [OLD, NEW]).toolchains == (OLD, NEW)
    assert choose_named("sm_75", [OLD, NEW]).toolchains == (OLD,)


def test_where_none_fits_each_says_why() -> None:
    choice = choose_toolchains("sm_90", [ORT, NEW])
    assert choice.toolchains == ()
    assert choice.reason == (
        "no toolchain builds for sm_90 (onnxruntime: onnxruntime builds for cpu, not for sm_90;"
        " new: tensorrt-rtx 1.10.0.1 builds for sm_86, not for sm_90)"
    )
    assert "builds for nothing" in choose_named("sm_86", [rtx("odd", "1.7")]).reason


def test_tensorrt_builds_for_the_gpus_that_its_host_had() -> None:
    assert "builds on a GPU of sm_90, and this host has no GPU" in choose_toolchains("sm_90", [to_spec(TRT)]).reason
    there = replace(to_spec(TRT), details={"targets": ["sm_90"]})
    assert choose_toolchains("sm_90", [there]).toolchains == (there,)
    assert "this host has sm_90" in choose_toolchains("sm_89", [there]).reason
