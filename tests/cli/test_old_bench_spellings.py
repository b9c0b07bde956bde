from __future__ import annotations

import click
import pytest

from modelreg.cli.bench import command
from modelreg.cli.build import command as build
from modelreg.cli.old_bench_spellings import BENCH
from modelreg.cli.old_spellings import SPELLINGS, respell
from modelreg.registry.errors import UsageError
from modelreg.registry.words import Precision
from modelreg_testing.cli import Shop, run_cli


def keys_of(made: click.Command) -> set[str]:
    """Return the long options of a command as the table spells options."""
    names = (name for parameter in made.params for name in parameter.opts if name.startswith("--"))
    return {name.replace("-", "").lower() for name in names}


@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8", "fp8", "best"])
def test_a_precision_of_trtexec_chooses_engines_of_it(precision: str) -> None:
    found = respell([f"--{precision}", "net:1"], BENCH)
    assert found.arguments == ("--precision", precision, "net:1")
    assert found.notes == (f"--{precision} means --precision {precision}",)


@pytest.mark.parametrize(
    ("words", "fact", "hint"),
    [
        (["--loadEngine=net.plan"], "names a plan, and bench times engines", "modelreg register-engine REF net.plan"),
        (["--load-engine", "net.plan"], "names a plan", "modelreg register-engine REF net.plan"),
        (["--onnx=net.onnx"], "engines of a registered version", "modelreg register NAME net.onnx"),
        (["--iterations=10"], "counts runs", "--duration SECONDS"),
        (["--shapes=x:8x3"], "gives shapes", "--batch N"),
        (["--minShapes=x:8x3"], "gives shapes", "--batch N"),
        (["--memPoolSize=workspace:1"], "says how an engine is built", "`modelreg build`"),
        (["--workspace=1"], "says how an engine is built", "`modelreg build`"),
        (["--noTF32"], "says how an engine is built", "`modelreg build`"),
        (["--exportTimes=t.json"], "writes a file of trtexec's", "--html FILE"),
        (["--exportLayerInfo=t.json"], "tells layers", "validate REF --layers"),
        (["--device=1"], "chooses a GPU", "CUDA_VISIBLE_DEVICES=1"),
        (["--useSpinWait"], "a setting that bench does not have", "Leave it out"),
        (["--fp16", "--int8"], "let trtexec mix them", "--precision fp16,int8"),
    ],
)
def test_what_has_none_is_refused_with_what_to_write_instead(words: list[str], fact: str, hint: str) -> None:
    with pytest.raises(UsageError, match=fact) as raised:
        respell(["net:1", *words], BENCH)
    assert hint in raised.value.hint()


def test_each_option_that_build_knows_is_explained_or_one_of_our_own() -> None:
    ours = keys_of(command)
    assert {*SPELLINGS} <= {*BENCH.keys} | ours
    assert not {*BENCH.keys} & ours
    of_tensorrt = {"builderoptimizationlevel", "mempoolsize", "timingcachefile", "plugins", "versioncompatible"}
    assert of_tensorrt <= keys_of(build) & {*BENCH.keys}


def test_the_command_line_says_so(shop: Shop) -> None:
    refused = run_cli("bench", "net:1", "--loadEngine=net.plan")
    assert refused.code == 2
    assert "--loadEngine names a plan" in refused.err
    shop.add_version(precisions=(Precision.FP32, Precision.FP16))
    planned = shop.cli("bench", "lenet:1", "--fp16", "--dry-run")
    assert planned.out == "would time lenet:1 engine 2 (cpu fp16) at batch 1, 8, 32\n"
    assert "--fp16 means --precision fp16\n" in planned.err
