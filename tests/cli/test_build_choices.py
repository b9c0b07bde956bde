"""What `build` does with cells that nothing here builds: each says why, and the rest is built."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from modelreg_testing.checkout import ROOT
from modelreg_testing.cli import Shop
from modelreg_testing.toolchains import pretend_backend, pretend_python

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


@pytest.mark.parametrize(
    ("target", "fact"),
    [
        ("sm89", "'sm89' is no target, did you mean sm_89?"),
        ("cpu,89", "'89' is no target, did you mean sm_89?"),
        ("rtx4090", "'rtx4090' is no target, which is cpu, or sm_ and the digits"),
        ("gpu", "'gpu' is no target"),
        ("native", "'native' is no target"),
    ],
)
@pytest.mark.parametrize("command", ["build", "validate"])
def test_a_target_in_another_spelling_is_a_wrong_command_line(shop: Shop, command: str, target: str, fact: str) -> None:
    refused = shop.cli(command, "lenet:1", "--target", target)
    assert refused.code == 2
    assert fact in refused.err


def test_targets_are_read_in_upper_case_as_precisions_are(stocked: Shop) -> None:
    planned = stocked.cli("build", "lenet:1", "--target", "CPU, Cpu", "--precision", "FP32", "--dry-run", "--json")
    assert [cell["target"] for cell in planned.document["cells"]] == ["cpu"]
    assert "no toolchain builds for sm_89" in stocked.cli("build", "lenet:1", "--target", "SM_89").err


def write_set(path: Path, images: NDArray[np.float32]) -> None:
    """Write a calibration set; NumPy adds the ending of its file."""
    np.savez(path, allow_pickle=False, **{"input.image": images})


@pytest.fixture
def rtx(stocked: Shop, tmp_path: Path) -> Shop:
    """A toolchain that plans for two targets, and is never started to build."""
    python = pretend_python(tmp_path, {"tensorrt_rtx": pretend_backend("1.7.1.116", targets=(89, 120))})
    assert stocked.cli("toolchain", "add", "rtx17", "--python", python).code == 0
    return stocked


def test_a_preview_gives_the_hints_that_the_build_gives(rtx: Shop) -> None:
    words = ("build", "lenet:1", "--target", "sm_89,sm_90", "--precision", "int8")
    told = {}
    for more in ((), ("--dry-run",)):
        refused = rtx.cli(*words, *more)
        assert refused.code == 1
        told[more] = sorted(line for line in refused.err.splitlines() if "hint:" in line)
    assert told[()] == told["--dry-run",]
    first, second = told[()]
    assert first.startswith("  hint: int8 for sm_89: Give one with --calibration")
    assert second.startswith("  hint: int8 for sm_90: TensorRT-RTX does not build for sm_90: on a host with such a GPU")


def test_a_calibration_set_that_does_not_fit_refuses_what_it_calibrates(rtx: Shop, tmp_path: Path) -> None:
    write_set(tmp_path / "wrong.npz", np.ones((4, 3, 8, 8), np.float32))
    words = ("build", "lenet:1", "--precision", "fp32,int8", "--calibration", tmp_path / "wrong.npz")
    built = rtx.cli(*words, "--json")
    assert built.code == 1
    assert [(cell["precision"], cell["status"]) for cell in built.document["cells"]] == [
        ("fp32", "built"),
        ("int8", "refused"),
    ]
    assert "has shape 4 x 3 x 8 x 8, the model takes" in built.document["cells"][1]["error"]
    alone = rtx.cli("build", "lenet:1", "--precision", "int8", "--calibration", tmp_path / "absent.npz", "--json")
    assert (alone.code, alone.document["error"]["kind"]) == (1, "golden-set")


def test_a_preview_says_settings_and_each_warning_once(rtx: Shop, tmp_path: Path) -> None:
    write_set(tmp_path / "zero.npz", np.zeros((4, 1, 28, 28), np.float32))
    planned = rtx.cli(
        *(
            "build",
            "lenet:1",
            "--target",
            "sm_89,sm_120",
            "--precision",
            "int8",
            "--calibration",
            tmp_path / "zero.npz",
        ),
        *("--memPoolSize", "workspace:4096", "--optShapes", "image:16x1x28x28", "--dry-run"),
    )
    assert planned.code == 0, planned.err
    assert planned.out.count("  memory pool WORKSPACE: 4 GiB\n") == 2
    assert planned.out.count("  profile: image 16x1x28x28 and no other shape\n") == 2
    assert planned.err.count("warning: calibration input 'image' is 0 in all samples") == 1
    assert planned.err.count("4 calibration samples are few") == 1
