from __future__ import annotations

from dataclasses import replace

import pytest

from modelreg.builders.choosing import TargetChoice, choose_toolchains, to_spec
from modelreg.builders.choosing import choose_named as choose_named_of
from modelreg.builders.interface import ToolchainSpec
from modelreg.registry.words import Backend
from modelreg_testing.records import TRT


def no_fault(_spec: ToolchainSpec) -> str:
    return ""


def choose(target: str, known: list[ToolchainSpec], **faults: str) -> TargetChoice:
    return choose_toolchains(target, known, find_fault=lambda spec: faults.get(spec.name, ""))


def choose_named(target: str, named: list[ToolchainSpec]) -> TargetChoice:
    return choose_named_of(target, named, named, find_fault=no_fault)


def rtx(name: str, version: str, *targets: str) -> ToolchainSpec:
    details = {"targets": list(targets)}
    return ToolchainSpec(name=name, backend=Backend.TENSORRT_RTX, version=version, python="/p", details=details)


ORT = ToolchainSpec(name="onnxruntime", backend=Backend.ONNXRUNTIME, version="1.32.0", python="/p")
OLD, NEW = rtx("old", "1.9.0.1", "sm_75", "sm_86"), rtx("new", "1.10.0.1", "sm_86")


def test_the_newest_of_a_backend_that_builds_for_the_target_is_chosen() -> None:
    assert choose("sm_86", [ORT, NEW, OLD]).toolchains == (NEW,)
    assert choose("sm_75", [ORT, NEW, OLD]).toolchains == (OLD,)
    assert choose("cpu", [ORT, NEW, OLD]).toolchains == (ORT,)


def test_all_that_are_named_and_fit_are_chosen() -> None:
    assert choose_named("sm_86", [OLD, NEW]).toolchains == (OLD, NEW)
    assert choose_named("sm_75", [OLD, NEW]).toolchains == (OLD,)


def test_where_none_fits_each_says_why() -> None:
    choice = choose("sm_90", [ORT, NEW])
    assert choice.toolchains == ()
    assert choice.reason == (
        "no toolchain builds for sm_90 (onnxruntime builds for cpu, not for sm_90;"
        " new: tensorrt-rtx 1.10.0.1 builds for sm_86, not for sm_90)"
    )
    assert "builds for nothing" in choose_named("sm_86", [rtx("odd", "1.7")]).reason


def test_tensorrt_builds_for_the_gpus_that_its_host_had() -> None:
    assert "builds on a GPU of sm_90, and this host has no GPU" in choose("sm_90", [to_spec(TRT)]).reason
    there = replace(to_spec(TRT), details={"targets": ["sm_90"]})
    assert choose("sm_90", [there]).toolchains == (there,)
    assert "this host has sm_90" in choose("sm_89", [there]).reason


def test_what_cannot_be_used_gives_way_to_another_of_its_backend() -> None:
    twin = rtx("twin", "1.10.0.1", "sm_86")
    for known in ([ORT, NEW, twin], [ORT, twin, NEW]):
        choice = choose("sm_86", known, twin="it is gone")
        assert (choice.toolchains, dict(choice.faults)) == ((NEW,), {})
    assert choose("sm_86", [NEW, twin], twin="it is gone").passed_over == {"twin": "it is gone"}
    older = choose("sm_86", [OLD, NEW], new="it is gone")
    assert (older.toolchains, older.passed_over) == ((OLD,), {"new": "it is gone"})
    unasked = choose("sm_86", [OLD, NEW], old="it is gone")
    assert (unasked.toolchains, dict(unasked.passed_over)) == ((NEW,), {})


def test_where_no_other_is_left_the_fault_is_kept() -> None:
    choice = choose("sm_86", [ORT, OLD, NEW], old="no interpreter", new="not installed")
    assert choice.toolchains == (NEW,)
    assert choice.faults == {"new": "not installed", "old": "no interpreter"}
    named = choose_named_of("sm_86", [OLD, NEW], [OLD, NEW], find_fault=lambda spec: {"old": "gone"}.get(spec.name, ""))
    assert (named.toolchains, named.faults) == ((OLD, NEW), {"old": "gone"})


@pytest.mark.parametrize(
    ("target", "there", "not_there"),
    [
        ("sm_89", "TensorRT-RTX, or on a host with a GPU of sm_89 one that has TensorRT", "does not build"),
        ("sm_90", "TensorRT-RTX does not build for sm_90: on a host with such a GPU, add the full TensorRT", "venv"),
        ("cpu", "leave --toolchain out", "toolchain add"),
    ],
)
def test_the_hint_names_what_builds_for_the_target(target: str, there: str, not_there: str) -> None:
    hint = choose(target, [NEW] if target != "sm_89" else [ORT]).hint
    assert there in hint
    assert not_there not in hint


def test_the_hint_names_a_toolchain_that_was_not_named_and_builds() -> None:
    choice = choose_named_of("sm_86", [ORT], [ORT, OLD, NEW], find_fault=no_fault)
    assert choice.hint == "old, new build for sm_86: name that with --toolchain, or leave --toolchain out."
    assert "old builds for sm_75" in choose_named_of("sm_75", [ORT], [ORT, OLD, NEW], find_fault=no_fault).hint
