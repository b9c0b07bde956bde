"""What `build` does with cells that nothing here builds: each says why, and the rest is built."""

from __future__ import annotations

import pytest

from modelreg_testing.checkout import ROOT
from modelreg_testing.cli import Shop

LENET = ROOT / "examples" / "lenet"
NO_TOOLCHAIN = "no toolchain builds for sm_89"


@pytest.fixture
def stocked(shop: Shop) -> Shop:
    assert shop.cli("register", "lenet", LENET / "lenet-v1.onnx", "--golden", LENET / "golden-v1.npz").code == 0
    return shop


def test_where_nothing_can_be_built_the_error_says_so_once(stocked: Shop) -> None:
    refused = stocked.cli("build", "lenet:1", "--target", "sm_89", "--precision", "fp32,fp16")
    assert refused.code == 1
    assert refused.out == ""
    assert refused.err.count(NO_TOOLCHAIN) == 1
    assert "modelreg toolchain add" in refused.err


def test_what_can_be_built_is_built_beside_what_is_refused(stocked: Shop) -> None:
    built = stocked.cli("build", "lenet:1", "--target", "cpu,sm_89")
    assert built.code == 1
    assert [line.split()[:4] for line in built.out.splitlines()[1:]] == [
        ["1", "cpu", "fp32", "built"],
        ["-", "sm_89", "fp32", "refused"],
    ]
    assert f"1 of 2 engines were not built: fp32 for sm_89: {NO_TOOLCHAIN}" in built.err
    again = stocked.cli("build", "lenet:1", "--target", "cpu", "--target", "sm_89", "--json")
    assert "lenet:1 fp32 for cpu: engine 1 is reused" in again.err
    reused, refused = again.document["cells"]
    assert (reused["status"], reused["toolchain"], reused["engine"]["id"]) == ("reused", "onnxruntime", 1)
    assert (refused["status"], refused["toolchain"], refused["engine"]) == ("refused", "", None)
    assert NO_TOOLCHAIN in refused["error"]


def test_a_preview_tells_what_would_be_refused(stocked: Shop) -> None:
    words = ("build", "lenet:1", "--target", "cpu,sm_89", "--precision", "fp32,int8", "--dry-run")
    told = stocked.cli(*words)
    assert told.code == 1
    lines = [line for line in told.out.splitlines() if line.startswith("would")]
    assert [line.partition(":")[0] for line in lines] == [
        "would build fp32 for cpu",
        "would refuse int8 for cpu",
        "would refuse fp32 for sm_89",
        "would refuse int8 for sm_89",
    ]
    assert "3 of 4 engines would be refused" in told.err
    cells = stocked.cli(*words, "--json").document["cells"]
    assert [cell["action"] for cell in cells] == ["build", "refuse", "refuse", "refuse"]
    assert [cell["toolchain"] for cell in cells] == ["onnxruntime", "onnxruntime", "", ""]


@pytest.mark.parametrize("names", ["nothing", "onnxruntime,nothing"])
def test_a_toolchain_that_nobody_added_is_named(stocked: Shop, names: str) -> None:
    refused = stocked.cli("build", "lenet:1", "--toolchain", names)
    assert refused.code == 1
    assert "nothing" in refused.err


def test_shapes_without_tensorrt_are_a_wrong_command_line(stocked: Shop) -> None:
    refused = stocked.cli("build", "lenet:1", "--optShapes", "image:8x1x28x28")
    assert refused.code == 2
    assert "profiles are for TensorRT" in refused.err


def test_what_is_excluded_concerns_the_precisions_that_convert(stocked: Shop) -> None:
    words = ("--nodes-to-exclude", "/c1/Conv", "--json", "--dry-run")
    both = stocked.cli("build", "lenet:1", "--precision", "fp32,fp16", *words)
    assert both.code == 0, both.err
    fp32, fp16 = both.document["cells"]
    assert (fp32["action"], fp32["recipe"]["variant"]) == ("build", None)
    assert (fp16["action"], fp16["recipe"]["variant"]["excluded_nodes"]) == ("build", ["/c1/Conv"])
    alone = stocked.cli("build", "lenet:1", "--precision", "fp32,bf16", *words)
    assert alone.code == 2
    assert "fp32 converts nothing, so nothing can be excluded" in alone.err
    assert "Leave --nodes-to-exclude and --op-types-to-exclude out." in alone.err
