"""What is said of a backend that lies beside modelreg and is no toolchain yet."""

from __future__ import annotations

import sys

import pytest

from modelreg.cli.own_backend import say_own_backend
from modelreg.registry.words import Backend
from modelreg_testing.cli import Shop
from modelreg_testing.toolchains import needs_rtx

TRT, RTX, ORT = Backend.TENSORRT, Backend.TENSORRT_RTX, Backend.ONNXRUNTIME
BOTH = {ORT: "1.23.0", TRT: "10.3.0", RTX: "1.7.1"}


@pytest.mark.parametrize(
    ("target", "known", "named"),
    [
        ("sm_89", [], "rtx"),
        ("sm_90", [], "trt"),
        ("sm_100", [], ""),  # RTX does not compile for it, and there is no such GPU here
        ("sm_89", [("tensorrt-rtx", "/opt/rtx17/bin/python")], "rtx"),
        ("sm_89", [("tensorrt-rtx", sys.executable)], ""),
    ],
)
def test_our_own_interpreter_is_named_where_its_backend_could_build_and_is_no_toolchain(
    target: str, known: list[tuple[str, str]], named: str
) -> None:
    said = say_own_backend(target, BOTH, known, gpus=("sm_90",))
    assert said.endswith(
        f": modelreg toolchain add {named} --python {sys.executable} --backend {RTX if named == 'rtx' else TRT}"
        if named
        else ""
    )
    assert bool(said) == bool(named)


def test_nothing_is_said_of_what_is_not_there() -> None:
    assert say_own_backend("sm_89", {ORT: "1.23.0"}, [], gpus=("sm_89",)) == ""


@needs_rtx
def test_build_names_it_where_nothing_builds(shop: Shop) -> None:
    shop.add_version()
    words = ("build", "lenet:1", "--target", "sm_89", "--precision", "fp32")
    refused = shop.cli(*words)
    assert refused.code == 1
    command = f"toolchain add rtx --python {sys.executable} --backend tensorrt-rtx"
    assert f"beside modelreg, and is no toolchain before you add it: modelreg {command}" in refused.err
    assert shop.cli(*command.split()).code == 0
    assert shop.cli(*words, "--dry-run").code == 0
