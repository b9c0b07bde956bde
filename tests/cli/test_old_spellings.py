from __future__ import annotations

import re

import click
import pytest

from modelreg.cli.build import command
from modelreg.cli.old_spellings import _REFUSED, SPELLINGS, require_values, respell
from modelreg.registry.errors import UsageError
from modelreg_testing.cli import Shop, run_cli


def own_options() -> set[str]:
    """Return the long options of `build` as the table spells options."""
    names = (name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts))
    return {name.replace("-", "").replace("_", "").lower() for name in names if name.startswith("--")}


@pytest.mark.parametrize(
    ("words", "meant", "note"),
    [
        (["--fp16"], ["--precision", "fp16"], "--fp16 means --precision fp16"),
        (["--int8"], ["--precision", "int8"], "--int8 means --precision int8"),
        (["--bf16"], ["--precision", "bf16"], "--bf16 means --precision bf16"),
        (["--fp8"], ["--precision", "fp8"], "--fp8 means --precision fp8"),
        (["--best"], ["--precision", "best"], "--best means --precision best"),
        (["--FP16"], ["--precision", "fp16"], "--FP16 means --precision fp16"),
        (["--noTF32"], [], "--noTF32 is left out: tf32 is a precision of its own"),
        (["--no-tf32"], [], "--no-tf32 is left out"),
        (["--noTF32", "--precision", "fp16"], ["--precision", "fp16"], "--noTF32 is left out"),
        (["--explicitBatch"], [], "--explicitBatch is left out: networks always have"),
        (["--explicit_batch"], [], "--explicit_batch is left out"),
        (["--buildOnly"], [], "--buildOnly is left out: build only builds"),
        (["--skipInference"], [], "--skipInference is left out: build only builds"),
        (["--sparsity=disable"], [], "--sparsity is left out: weights are dense"),
    ],
)
def test_what_has_a_meaning_here_is_translated_and_said(words: list[str], meant: list[str], note: str) -> None:
    found = respell(["net:1", *words, "--target", "sm_90"])
    assert found.arguments == ("net:1", *meant, "--target", "sm_90")
    (said,) = found.notes
    assert said.startswith(note)


@pytest.mark.parametrize("words", [["--shapes=x:4x3"], ["--shapes", "x:4x3"]])
def test_shapes_alone_are_a_profile_of_one_shape(words: list[str]) -> None:
    found = respell([*words, "net:1"])
    assert found.arguments == ("--minShapes", "x:4x3", "--optShapes", "x:4x3", "--maxShapes", "x:4x3", "net:1")
    assert "the same shapes" in found.notes[0]


@pytest.mark.parametrize(
    ("words", "fact", "hint"),
    [
        (["--workspace=4096"], "--workspace is a memory pool now", "--memPoolSize workspace:4096"),
        (["--workspace", "4096"], "--workspace is a memory pool now", "--memPoolSize workspace:4096"),
        (["--workspace", "--verbose"], "--workspace is a memory pool now", "--memPoolSize workspace:N"),
        (["--calib=cache.bin"], "a cache is no calibration set", "--calibration FILE"),
        (["--onnx=net.onnx"], "build takes a registered version", "modelreg register NAME net.onnx"),
        (["--saveEngine=net.plan"], "the registry keeps the plan", "modelreg which NAME@CHANNEL --path-only"),
        (["--save-engine=net.plan"], "--save-engine names a file", "modelreg which"),
        (["--loadEngine=net.plan"], "build makes one", "modelreg register-engine REF net.plan"),
        (["--maxBatch=32"], "TensorRT no longer has", "--maxShapes INPUT:32x"),
        (["--batch=8"], "TensorRT no longer has", "--optShapes INPUT:8x"),
        (["--stronglyTyped"], "is decided by the precision", "Leave it out"),
        (["--sparsity=enable"], "sparse weights, which are not supported", "Leave it out"),
        (["--useCudaGraph"], "says how an engine is run", "Leave it out"),
        (["--exportTimes=t.json"], "says how an engine is run", "Leave it out"),
        (["--iterations=10"], "says how an engine is run", "Leave it out"),
        (["--layerPrecisions=a:fp32"], "types layers one by one", "--nodes-to-exclude"),
        (["--device=1"], "chooses a GPU", "CUDA_VISIBLE_DEVICES=1"),
        (["--deploy=net.prototxt"], "Caffe or UFF", "Export the model to ONNX"),
        (["--fp16", "--int8"], "--fp16 and --int8 let trtexec mix them", "--precision fp16,int8 for 2 engines"),
        (["--fp16", "--precision", "int8"], "--precision is there too", "Write all in one"),
        (["--noTF32", "--precision", "fp32,tf32"], "--noTF32 contradicts --precision tf32", "Leave one"),
        (["--noTF32", "--precision=TF32"], "--noTF32 contradicts --precision tf32", "Leave one"),
        (["--shapes=x:1x3", "--optShapes=x:4x3"], "says how an engine is run", "the profile has the shapes"),
        (["--shapes"], "--shapes needs shapes", "--shapes=INPUT:1x3x224x224"),
        (["--fp16="], "--fp16 takes no value", "Write --fp16 alone"),
        (["--fp16=true"], "--fp16 takes no value", "Write --fp16 alone"),
        (["--buildOnly=1"], "--buildOnly takes no value", "Write --buildOnly alone"),
        (["--best", "--fp16"], "--best and --fp16 let trtexec mix them", "Write --precision fp16, or --precision best"),
        (["--profilingVerbosity=detailed"], "is always detailed here", "Leave it out"),
        (["--inputIOFormats=fp16:chw"], "here they stay those of the model", "Leave it out"),
        (["--dynamicPlugins=a.so"], "--dynamicPlugins names a plugin library", "--plugins LIB.so"),
        (["--excludeLeanRuntime"], "is a setting that build does not have", "Leave it out"),
        (["--maxAuxStreams=2"], "is a setting that build does not have", "Leave it out"),
        (["--previewFeatures=x"], "is a setting that build does not have", "Leave it out"),
        (["--computeCapabilities=86"], "is the target here", "--target sm_86"),
        (["--shapes="], "--shapes needs shapes", "--shapes=INPUT:1x3x224x224"),
    ],
)
def test_what_has_none_is_refused_with_the_new_spelling(words: list[str], fact: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        respell(["net:1", *words])
    assert fact in str(raised.value)
    assert hint in raised.value.hint()


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["net:1", "--precision", "fp16", "--min-shapes", "x:1", "-v"],
        ["net:1", "--calibration=c.npz", "--percentile", "99", "--unknown"],
        ["--", "--fp16"],
        ["fp16", "-fp16"],
    ],
)
def test_our_own_command_lines_are_left_alone(words: list[str]) -> None:
    found = respell(words)
    assert found.arguments == tuple(words)
    assert found.notes == ()


def test_no_option_of_build_is_in_the_table() -> None:
    assert own_options() & set(SPELLINGS) == set()


def test_every_option_that_a_refusal_names_is_one_of_build() -> None:
    hints = " ".join(hint.replace("--path-only", "") for _, hint in _REFUSED.values())
    named = {word.replace("-", "").lower() for word in re.findall(r"--[A-Za-z-]+", hints)}
    assert {"mempoolsize", "calibration", "optshapes"} <= named <= own_options()


@pytest.mark.parametrize("name", ["--minShapes", "--min-shapes", "--min_shapes", "--nodes_to_exclude"])
def test_camel_case_kebab_case_and_underscores_are_one_option(name: str) -> None:
    context = command.make_context("build", ["net:1", name, "x:1x3"], resilient_parsing=True)
    assert ("x:1x3",) in context.params.values()


def test_every_option_of_trtexec_that_build_has_is_spelled_in_kebab_case_too() -> None:
    for parameter in command.params:
        if isinstance(parameter, click.Option) and any(not name.islower() for name in parameter.opts):
            assert any(name.islower() and name.startswith("--") for name in parameter.opts), parameter.opts


@pytest.mark.parametrize("following", ["--fp16", "--workspace=1", "--precision", "--rebuild"])
@pytest.mark.parametrize("option", ["--target", "--nodes_to_exclude", "--memPoolSize"])
def test_an_option_without_its_value_does_not_swallow_the_next(option: str, following: str) -> None:
    with pytest.raises(UsageError, match=f"^{option} has no value: {following.partition('=')[0]} follows$"):
        require_values(["net:1", option, following], command.params)


def test_flags_values_and_what_stands_behind_the_end_are_left_alone() -> None:
    for words in (["--rebuild", "--fp16"], ["--target=a", "--fp16"], ["--target", "a", "--fp16"], ["--target", "-x"]):
        require_values(words, command.params)
    require_values(["--", "--target", "--fp16"], command.params)
    require_values(["--unknown", "--fp16"], command.params)


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["--memPoolSize", ""], "memory pool '' is not NAME:SIZE"),
        (["--memPoolSize", "workspace:1", "--memPoolSize", "workspace:2"], "memory pool workspace has two sizes"),
        (["--tacticSources", ""], "tactic sources '' are not +NAME or -NAME"),
        (["--target", "--fp16"], "--target has no value: --fp16 follows"),
    ],
)
def test_an_empty_or_doubled_setting_is_no_setting(shop: Shop, words: list[str], fact: str) -> None:
    shop.add_version()
    refused = shop.cli("build", "lenet:1", *words)
    assert refused.code == 2
    assert fact in refused.err


def test_the_command_says_what_it_understood(shop: Shop) -> None:
    shop.add_version()
    built = shop.cli("build", "lenet:1", "--fp16", "--explicitBatch", "--dry-run", "--json")
    assert built.err.splitlines()[:2] == [
        "--fp16 means --precision fp16",
        "--explicitBatch is left out: networks always have an explicit batch",
    ]
    assert [cell["precision"] for cell in built.document["cells"]] == ["fp16"]
    refused = shop.cli("build", "lenet:1", "--workspace=4096")
    assert refused.code == 2
    assert refused.err.splitlines() == [
        "modelreg: error: --workspace is a memory pool now",
        "  hint: Write --memPoolSize workspace:4096, in MiB as before.",
    ]


def test_the_help_page_knows_nothing_of_them() -> None:
    told = run_cli("build", "--help").out
    assert not any(word in told for word in ("--fp16", "--workspace", "--explicitBatch", "--calib "))
