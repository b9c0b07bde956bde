from __future__ import annotations

import re

import pytest

from modelreg.registry.manifest import parse_manifest
from modelreg.registry.words import EngineStatus, Precision, Verdict
from modelreg_testing.cli import CliResult, Shop

FP32, FP16, INT8 = Precision.FP32, Precision.FP16, Precision.INT8


def promote(shop: Shop, *words: object, reference: str = "lenet:1") -> CliResult:
    return shop.cli("promote", reference, "--to", "production", *words)


def served(shop: Shop) -> dict[str, str]:
    """Return by target the plan that production serves."""
    pointer = shop.storage.read_pointer("lenet", "production")
    assert pointer is not None
    manifest = parse_manifest(shop.storage.read_manifest(pointer.release), where="production")
    return {engine.target: engine.plan.digest for engine in manifest.engines}


@pytest.fixture
def stocked(shop: Shop) -> Shop:
    """Return a registry with two FP32 engines for the CPU (1, 2), one for sm_89 (3), and a failed build (4)."""
    shop.add_version()
    shop.add_engine(variant={"excluded_nodes": ["/conv1/Conv", "/fc/Gemm"], "excluded_op_types": ["Softmax"]})
    shop.add_engine(target="sm_89", precision=FP16)
    shop.add_engine(target="sm_120", status=EngineStatus.FAILED)
    return shop


def test_an_engine_is_promoted_by_its_id_though_a_newer_one_passes(stocked: Shop) -> None:
    assert promote(stocked, "--dry-run", "--json").document["targets"][0]["engine"] == 2
    planned = promote(stocked, "--engine", 1, "--dry-run", "--json").document
    assert [(each["target"], each["engine"]) for each in planned["targets"]] == [("cpu", 1)]
    assert promote(stocked, "--engine", 1, "--json").document["engines"]["cpu"]["id"] == 1
    assert list(served(stocked)) == ["cpu"]


def test_engines_are_named_by_repeating_the_option_or_by_a_list(stocked: Shop) -> None:
    for words in (("--engine", "3,1"), ("--engine", 3, "--engine", 1)):
        planned = promote(stocked, *words, "--dry-run", "--json").document
        assert [(each["target"], each["engine"]) for each in planned["targets"]] == [("cpu", 1), ("sm_89", 3)]


def test_a_target_that_is_served_keeps_an_engine_where_only_another_is_named(stocked: Shop) -> None:
    assert promote(stocked, "--engine", "1,3").code == 0
    planned = promote(stocked, "--engine", 3, "--dry-run", "--json").document
    assert [(each["target"], each["engine"]) for each in planned["targets"]] == [("cpu", 2), ("sm_89", 3)]
    alone = promote(stocked, "--engine", 3, "--target", "sm_89")
    assert alone.code == 0
    assert list(served(stocked)) == ["sm_89"]


@pytest.mark.parametrize(
    ("words", "code", "fact", "hint"),
    [
        (("--engine", 999), 1, "there is no engine 999", "`modelreg show NAME:VERSION` lists engines."),
        (("--engine", 5), 1, "engine 5 is not one of lenet:1", "It is one of lenet:2."),
        (("--engine", 4), 3, "engine 4 (sm_120 fp32) was not built: the worker crashed", "--log 4"),
        (("--engine", "1,2"), 2, "engines 1 and 2 are both for cpu", "name one of them"),
        (
            ("--engine", 1, "--target", "sm_89"),
            2,
            "engine 1 is for cpu, and --target sm_89 leaves that out",
            "sm_89,cpu",
        ),
        (("--engine", 1, "--precision", "int8"), 2, "engine 1 is fp32, and --precision int8 is asked for", "Leave"),
        (("--engine", "one"), 2, "'one' is not a whole number", ""),
    ],
)
def test_an_engine_that_cannot_be_meant_is_refused_in_one_line(
    stocked: Shop, words: tuple[object, ...], code: int, fact: str, hint: str
) -> None:
    stocked.add_version(word=2)
    for more in ((), ("--dry-run",), ("--override-gates", "-m", "why")):
        refused = promote(stocked, *words, *more)
        assert refused.code == code
        assert refused.out == ""
        (error,) = [line for line in refused.err.splitlines() if line.startswith("modelreg: error:")]
        assert fact in error
        assert hint in refused.err
    assert stocked.storage.read_pointer("lenet", "production") is None


def test_an_engine_for_a_target_that_the_channel_is_not_for_is_refused(stocked: Shop) -> None:
    settings = stocked.path / "config.toml"
    settings.write_text(settings.read_text() + "\n[channels.production]\ntargets = ['cpu']\n")
    refused = promote(stocked, "--engine", 3)
    assert refused.code == 2
    assert "engine 3 is for sm_89, and the channel, which is for cpu, leaves that out" in refused.err
    assert promote(stocked, "--engine", 3, "--target", "cpu,sm_89").code == 0


def test_of_a_channel_only_what_it_serves_can_be_named(stocked: Shop) -> None:
    assert stocked.cli("promote", "lenet:1", "--to", "staging", "--engine", "2,3").code == 0
    refused = promote(stocked, "--engine", 1, reference="lenet@staging")
    assert refused.code == 1
    assert "engine 1 is not one that lenet@staging serves" in refused.err
    assert promote(stocked, "--engine", 3, reference="lenet@staging").code == 0
    assert list(served(stocked)) == ["sm_89"]


def test_gates_are_gone_over_for_the_engine_that_is_named(shop: Shop) -> None:
    shop.add_version(verdict=Verdict.FAIL)
    shop.add_engine(verdict=None, variant={"excluded_nodes": ["/fc/Gemm"]})
    refused = promote(shop, "--engine", 1)
    assert refused.code == 3
    assert "cpu has no engine that passes (fp32 engine 1: validation fail: max_relative_error of y)" in refused.err
    done = promote(shop, "--engine", 1, "--override-gates", "-m", "tried", "--json")
    assert done.document["engines"]["cpu"]["id"] == 1
    assert done.document["overridden"] == ["cpu fp32: validation fail: max_relative_error of y"]


def test_the_plan_names_each_engine_what_it_keeps_and_its_profile(stocked: Shop) -> None:
    profile = {"image": {"min": [1, 1, 28, 28], "opt": [2, 1, 28, 28], "max": [4, 1, 28, 28]}}
    usual = {"image": {"min": [1, 1, 28, 28], "opt": [8, 1, 28, 28], "max": [64, 1, 28, 28]}}
    stocked.add_engine(target="sm_89", precision=FP16, build={"profiles": [profile]})
    stocked.add_engine(target="sm_120", precision=FP16, build={"profiles": [usual]})
    keeps = "keeps Softmax, /conv1/Conv, /fc/Gemm"
    planned = promote(stocked, "--dry-run").out.splitlines()
    assert planned[1:4] == [
        f"-> cpu      fp32  engine 2 ({keeps}): passes its gates",
        "   cpu      fp32  engine 1: passes its gates",
        "-> sm_89    fp16  engine 5 (profile image 1x1x28x28 to 4x1x28x28): passes its gates",
    ]
    assert "-> sm_120   fp16  engine 6: passes its gates" in planned
    done = promote(stocked).out
    assert f", {keeps}\n" in done
    assert ", profile image 1x1x28x28 to 4x1x28x28\n" in done
    candidate = promote(stocked, "--dry-run", "--json").document["targets"][0]["candidates"][0]
    assert candidate["nodes_to_exclude"] == ["/conv1/Conv", "/fc/Gemm"]
    assert candidate["op_types_to_exclude"] == ["Softmax"]


def test_engines_that_were_never_run_are_named_in_the_refusal(shop: Shop) -> None:
    shop.add_version()
    for percentile in (99.9, 99.99):
        shop.add_engine(
            target="sm_120", precision=INT8, verdict=None, runs=0, variant={"calibration": {"percentile": percentile}}
        )
    refused = promote(shop)
    assert refused.code == 3
    assert "sm_120 has no engine that passes (int8 engines 3, 2: not validated, never run)" in refused.err


def test_less_than_fp32_is_promoted_with_a_warning_where_fp32_fails(shop: Shop) -> None:
    shop.add_version(verdict=Verdict.FAIL)
    shop.add_engine(precision=INT8)
    doubt = (
        "FP32 fails on cpu (engine 1, validation fail: max_relative_error of y):"
        " the golden set is of another model, or the export is wrong"
    )
    for words in (("--dry-run",), ("--precision", "int8", "--dry-run"), (), ("--engine", 2)):
        told = promote(shop, *words)
        assert told.code == 0
        assert f"modelreg: warning: {doubt}\n" in told.err
        assert promote(shop, *words, "--json").document["warnings"] == [doubt]
    again = shop.cli("promote", "lenet@production", "--to", "staging", "--json")
    assert again.document["warnings"] == [doubt]


def test_nothing_is_doubted_where_fp32_passes(stocked: Shop) -> None:
    told = promote(stocked, "--json")
    assert told.document["warnings"] == []
    assert told.err == ""


def test_targets_are_read_by_number_and_the_release_is_the_one_it_always_was(stocked: Shop) -> None:
    stocked.add_engine(target="sm_120", precision=FP16)
    planned = promote(stocked, "--dry-run").out
    assert re.findall(r"-> (\S+)", planned) == ["cpu", "sm_89", "sm_120"]
    done = promote(stocked)
    assert re.findall(r"^  (cpu|sm_\d+)", done.out, re.MULTILINE) == ["cpu", "sm_89", "sm_120"]
    assert list(served(stocked)) == ["cpu", "sm_120", "sm_89"]
    assert "cpu fp32, sm_89 fp16, sm_120 fp16" in stocked.cli("show", "lenet").out
