"""The example's LeNet on TensorRT-RTX: real plans for GPUs that are not here, through the whole command line."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper as oh
from onnx import numpy_helper as nh

from modelreg_testing.checkout import ROOT
from modelreg_testing.cli import CliResult, Shop, run_cli
from modelreg_testing.toolchains import needs_rtx, pretend_backend, pretend_python

LENET = ROOT / "examples" / "lenet"
ONNX, GOLDEN, CALIBRATION = LENET / "lenet-v1.onnx", LENET / "golden-v1.npz", LENET / "calibration.npz"
TARGETS = ("sm_86", "sm_89", "sm_120")
PRECISIONS = ("fp32", "fp16", "int8")

pytestmark = [pytest.mark.slow, pytest.mark.installed, needs_rtx]


class Bench:
    """A registry's home with `cli`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def cli(self, *words: object) -> CliResult:
        return run_cli(*words, home=self.path)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CliResult]:
    """Register LeNet, add the toolchain, and fill nine cells side by side."""
    shop = Shop(tmp_path_factory.mktemp("rtx"))
    assert shop.cli("register", "lenet", ONNX, "--golden", GOLDEN).code == 0
    assert shop.cli("toolchain", "add", "rtx", "--python", sys.executable).code == 0
    build = shop.cli(
        *("build", "lenet:1", "--target", ",".join(TARGETS), "--precision", ",".join(PRECISIONS)),
        *("--calibration", CALIBRATION, "--jobs", 2),
    )
    return shop.path, build


@pytest.fixture
def bench(built: tuple[Path, CliResult], tmp_path: Path) -> Bench:
    shutil.copytree(built[0], tmp_path / "home")
    return Bench(tmp_path / "home")


@pytest.fixture
def bare(shop: Shop) -> Bench:
    assert shop.cli("register", "lenet", ONNX, "--golden", GOLDEN).code == 0
    return Bench(shop.path)


def test_every_precision_is_built_for_every_target(built: tuple[Path, CliResult], bench: Bench) -> None:
    build = built[1]
    assert build.code == 0, build.err
    rows = [line.split() for line in build.out.splitlines()[1:10]]
    assert [(row[1], row[2], row[3], row[4], row[5]) for row in rows] == [
        (target, "rtx", precision, "built", precision.upper()) for target in TARGETS for precision in PRECISIONS
    ]
    assert build.out.splitlines()[10].startswith("not run, fp32, fp16, int8 for sm_86, sm_89, sm_120: compiled ahead")
    assert "next: modelreg validate lenet:1, on a host for each of sm_86, sm_89, sm_120\n" in build.err
    engines = bench.cli("show", "lenet:1", "--json").document["engines"]
    assert len({engine["plan"] for engine in engines}) == 9
    assert {engine["files"][0]["path"] for engine in engines} == {"model.plan"}
    assert bench.cli("verify", "--events").code == 0
    told = bench.cli("show", "lenet:1", "-v").out
    assert "(sm_89 fp16): 12 of 12 nodes are fp16; not run: compiled ahead of time" in told
    assert "(sm_89 int8): 5 of 5 nodes are int8; not run" in told


def test_they_are_reused_and_the_same_bytes_when_built_again(bench: Bench) -> None:
    words = ("build", "lenet:1", "--target", "sm_86,sm_89", "--precision", "fp16")
    again = bench.cli(*words, "--json").document["cells"]
    assert [cell["status"] for cell in again] == ["reused", "reused"]
    rebuilt = bench.cli(*words, "--rebuild", "--jobs", 2, "--json").document["cells"]
    assert [cell["engine"]["plan"] for cell in rebuilt] == [cell["engine"]["plan"] for cell in again]


def test_what_cannot_be_built_says_why_and_the_rest_is_built(bench: Bench) -> None:
    mixed = bench.cli("build", "lenet:1", "--target", "sm_86,sm_90,cpu", "--precision", "fp32,tf32,bf16", "--json")
    assert mixed.code == 1
    cells = {(cell["target"], cell["precision"]): cell for cell in mixed.document["cells"]}
    status = {key: cell["status"] for key, cell in cells.items()}
    assert status["sm_86", "fp32"] == "reused"
    assert status["sm_86", "tf32"] == status["sm_86", "bf16"] == status["cpu", "fp32"] == "built"
    refused = {key for key, word in status.items() if word == "refused"}
    assert refused == {
        ("cpu", "bf16"),
        ("cpu", "tf32"),
        *(("sm_90", p) for p in ("fp32", "tf32", "bf16")),
    }
    assert "rtx: tensorrt-rtx 1." in cells["sm_90", "fp32"]["error"]
    assert "not for sm_90" in cells["sm_90", "fp32"]["error"]
    assert "ONNX Runtime has almost no BF16 kernels" in cells["cpu", "bf16"]["error"]
    assert "5 of 9 engines were not built" in mixed.err
    table = bench.cli("build", "lenet:1", "--target", "sm_86,sm_90", "--precision", "fp32")
    assert [line.split()[4] for line in table.out.splitlines()[1:3]] == ["reused", "refused"]
    assert "1 of 2 engines were not built: fp32 for sm_90: no toolchain builds for sm_90" in table.err


def test_a_failed_target_leaves_its_cell_failed(bench: Bench) -> None:
    failed = bench.cli("build", "lenet:1", "--target", "sm_75", "--precision", "fp32,fp16", "--json")
    assert failed.code == 1
    assert [cell["status"] for cell in failed.document["cells"]] == ["failed", "built"]
    assert "FP32 GEMM is not supported" in failed.document["cells"][0]["error"]


def test_without_a_toolchain_the_way_to_one_is_told(bare: Bench) -> None:
    refused = bare.cli("build", "lenet:1", "--target", "sm_86", "--precision", "fp32,fp16")
    assert refused.code == 1
    assert "no toolchain builds for sm_86 (onnxruntime builds for cpu, not for sm_86)" in refused.err
    assert "modelreg toolchain add" in refused.err
    assert "building" not in refused.err
    assert bare.cli("show", "lenet:1", "--json").document["engines"] == []


def test_a_toolchain_can_be_named_and_several_build_the_same_target(bench: Bench) -> None:
    assert bench.cli("toolchain", "add", "twin", "--python", sys.executable, "--backend", "tensorrt-rtx").code == 0
    words = ("build", "lenet:1", "--target", "sm_86", "--precision", "fp32", "--json")
    both = bench.cli(*words, "--toolchain", "rtx,twin").document["cells"]
    assert [(cell["toolchain"], cell["status"]) for cell in both] == [("rtx", "reused"), ("twin", "built")]
    assert len(bench.cli(*words).document["cells"]) == 1  # the newest of a backend, unless named
    unknown = bench.cli(*words, "--toolchain", "absent")
    assert unknown.code == 1
    assert "no toolchain 'absent'" in unknown.err
    unfit = bench.cli(*words, "--toolchain", "onnxruntime")
    assert "no toolchain builds for sm_86 (onnxruntime builds for cpu" in unfit.err
    assert "rtx, twin build for sm_86: name that with --toolchain" in unfit.err


def test_a_toolchain_that_lost_its_backend_fails_its_cell(bench: Bench, tmp_path: Path) -> None:
    python = pretend_python(tmp_path, {"tensorrt_rtx": pretend_backend("1.9.0.1", targets=(86,))})
    assert bench.cli("toolchain", "add", "odd", "--python", python).code == 0
    (tmp_path / "python-modules" / "tensorrt_rtx.py").write_text("import ctypes\nctypes.string_at(0)")
    words = ("build", "lenet:1", "--target", "sm_86", "--toolchain", "odd,rtx", "--json")
    crashed = bench.cli(*words)
    assert crashed.code == 1
    assert [cell["status"] for cell in crashed.document["cells"]] == ["failed", "reused"]
    assert "SIGSEGV" in crashed.document["cells"][0]["error"]


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (("--minShapes", "image:1x1x28"), "1x1x28 has 3 dimensions, the model takes N x 1 x 28 x 28"),
        (("--optShapes", "image:4x1x28x30"), "4x1x28x30 has 30 in dimension 3, which is fixed at 28"),
        (("--optShapes", "picture:4x1x28x28"), "an input 'picture' that the model does not have"),
        (
            ("--min-shapes", "image:9x1x28x28", "--max-shapes", "image:8x1x28x28"),
            "min 9x1x28x28 is above max 8x1x28x28",
        ),
        (("--minShapes", "image"), "shape 'image' is not NAME:1x3x224x224"),
        (("--profile", "1", "--optShapes", "image:4x1x28x28"), "--profile has 1"),
    ],
)
def test_a_wrong_profile_is_refused_before_the_builder_starts(bench: Bench, words: tuple[str, ...], fact: str) -> None:
    refused = bench.cli("build", "lenet:1", "--target", "sm_86", *words)
    assert refused.code == 2
    assert fact in refused.err
    assert "building" not in refused.err


def test_profiles_are_built_as_given(bench: Bench) -> None:
    shapes = [
        *("--profile", "0", "--minShapes", "image:1x1x28x28", "--optShapes", "image:1x1x28x28"),
        *("--maxShapes", "image:4x1x28x28", "--profile", "1", "--minShapes", "image:5x1x28x28"),
        *("--optShapes", "image:16x1x28x28", "--maxShapes", "image:32x1x28x28"),
    ]
    words = ("build", "lenet:1", "--target", "sm_86", *shapes)
    dry = bench.cli(*words, "--dry-run")
    assert "profile 1: image 5x1x28x28 to 32x1x28x28, tuned for 16x1x28x28" in dry.out
    (cell,) = bench.cli(*words, "--json").document["cells"]
    profiles = cell["engine"]["recipe"]["build"]["profiles"]
    assert [profile["image"]["max"][0] for profile in profiles] == [4, 32]
    cpu = bench.cli("build", "lenet:1", *shapes)
    assert cpu.code == 2
    assert "profiles are for TensorRT" in cpu.err


def test_a_build_says_its_profile_and_what_to_validate_of_it(bench: Bench) -> None:
    built = bench.cli("build", "lenet:1", "--target", "sm_89", "--optShapes", "image:16x1x28x28")
    assert built.err.count("profile: image 16x1x28x28 and no other shape\n") == 1
    assert "next: modelreg validate lenet:1, on a host that runs sm_89\n" in built.err


def test_a_workspace_that_is_too_small_is_said(bench: Bench) -> None:
    failed = bench.cli("build", "lenet:1", "--target", "sm_89", "--memPoolSize", "workspace:1B")
    assert failed.code == 1
    assert "The limit WORKSPACE of" in failed.err
    assert "raise it with --memPoolSize" in failed.err


def test_engines_of_a_toolchain_that_is_gone_are_reused_and_others_refused(bench: Bench, tmp_path: Path) -> None:
    python = pretend_python(tmp_path, {})
    assert bench.cli("toolchain", "add", "rtx", "--python", python, "--backend", "tensorrt-rtx").code == 0
    words = ("build", "lenet:1", "--target", "sm_86", "--json", "--precision")
    (made,) = bench.cli(*words, "fp32").document["cells"]
    assert made["status"] == "built"
    python.unlink()
    again = bench.cli(*words, "fp32,tf32")
    assert [cell["status"] for cell in again.document["cells"]] == ["reused", "refused"]
    assert "toolchain rtx cannot be used: there is no interpreter" in again.err
    planned = bench.cli(*words, "fp32,tf32", "--dry-run")
    assert [cell["action"] for cell in planned.document["cells"]] == ["reuse", "refuse"]


def test_of_several_failures_each_has_its_own_hint(bare: Bench, tmp_path: Path) -> None:
    weights = nh.from_array(np.ones((4, 3)), "w")
    x, y = (oh.make_tensor_value_info(name, onnx.TensorProto.DOUBLE, ["N", n]) for name, n in (("x", 4), ("y", 3)))
    graph = oh.make_graph([oh.make_node("MatMul", ["x", "w"], ["y"], name="mm")], "g", [x], [y], [weights])
    onnx.save(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)], ir_version=8), tmp_path / "dbl.onnx")
    assert bare.cli("register", "dbl", tmp_path / "dbl.onnx").code == 0
    assert bare.cli("toolchain", "add", "rtx", "--python", sys.executable).code == 0
    failed = bare.cli("build", "dbl:1", "--target", "cpu,sm_89", "--precision", "fp32,fp16")
    assert failed.code == 1
    assert [line for line in failed.err.splitlines() if "hint:" in line] == [
        "  hint: fp16 for cpu: Build fp32 instead.",
        "  hint: fp32, fp16 for sm_89: TensorRT-RTX computes no float64: export the model in float32.",
        "  hint: Logs: `modelreg show dbl:1 --log 2`, `modelreg show dbl:1 --log 3`, `modelreg show dbl:1 --log 4`.",
    ]


def test_an_engine_for_another_gpu_is_not_validated_and_says_why(bench: Bench) -> None:
    skipped = bench.cli("validate", "lenet:1")
    assert skipped.code == 3
    # Cells are built side by side: which id an engine has depends on which was done first.
    assert re.search(r"^engine \d+ \(sm_86 fp32\): skipped, needs sm_86; this host has cpu$", skipped.out, re.MULTILINE)
    assert "9 of 9 engines of lenet:1 cannot be validated on this host" in skipped.err
    assert bench.cli("build", "lenet:1").code == 0
    mixed = bench.cli("validate", "lenet:1", "--json")
    assert mixed.code == 3
    assert len(mixed.document["skipped"]) == 9
    assert [each["verdict"] for each in mixed.document["validations"]] == ["pass"]
    planned = bench.cli("validate", "lenet:1", "--dry-run").out
    assert re.search(r"would skip engine \d+ \(sm_86 fp32\): needs sm_86", planned)
    assert bench.cli("validate", "lenet:1", "--target", "cpu").code == 0


@pytest.mark.parametrize("words", [("int8", "--calibration", CALIBRATION), ("fp16",), ("fp16", "--dry-run")])
def test_an_engine_that_cannot_run_here_is_not_built_to_be_repaired(bench: Bench, words: tuple[object, ...]) -> None:
    refused = bench.cli("repair", "lenet:1", "--target", "sm_89", "--precision", *words)
    assert refused.code == 3
    assert (
        f"lenet:1 {words[0]} for sm_89 cannot be repaired on this host: needs sm_89; this host has cpu" in refused.err
    )
    assert "judging" not in refused.err


def test_it_is_promoted_only_over_its_gates_and_which_says_why_it_does_not_load(bench: Bench) -> None:
    refused = bench.cli("promote", "lenet:1", "--to", "production")
    assert refused.code == 3
    assert re.search(r"sm_120 has no engine that passes \(int8 engine \d+: not validated, never run", refused.err)
    promoted = bench.cli("promote", "lenet:1", "--to", "production", "--override-gates", "-m", "tried on the bench")
    assert promoted.code == 0
    shown = bench.cli("show", "lenet:1").out
    assert "sm_86 int8: not validated, never run" in shown
    assert re.search(r"sm_86 +tensorrt-rtx [\d.]+ +int8 ", shown)
    which = bench.cli("which", "lenet@production")
    assert which.code == 1
    assert "sm_86    int8  tensorrt-rtx: needs sm_86; this host has cpu" in which.out


def test_a_plan_that_was_cut_or_flipped_is_named_by_which(bench: Bench) -> None:
    bench.cli("promote", "lenet:1", "--to", "production", "--override-gates", "-m", "tried")
    plans = {path.parent.name: path for path in (bench.path / "store" / "releases").rglob("model.plan")}
    whole = {target: plans[target].read_bytes() for target in ("sm_86", "sm_89")}
    damaged = {"sm_86": whole["sm_86"][:-1], "sm_89": whole["sm_89"][:24] + b"\x09" + whole["sm_89"][25:]}
    for target, data in damaged.items():
        path = plans[target]
        path.parent.chmod(0o755)
        path.chmod(0o644)
        path.write_bytes(data)
    reasons = {
        each["target"]: each["reason"] for each in bench.cli("which", "lenet@production", "--json").document["engines"]
    }
    assert "is truncated" in reasons["sm_86"]
    assert "its plan is not what the release says: its header says tensorrt-rtx 9.7." in reasons["sm_89"]
    assert reasons["sm_120"] == "needs sm_120; this host has cpu"
    assert bench.cli("verify").code == 6


def plan_of(bench: Bench, target: str) -> bytes:
    """Return the FP16 plan of a target, as another registry built it."""
    engines = bench.cli("show", "lenet:1", "--json").document["engines"]
    digest: str = next(e["plan"] for e in engines if (e["target"], e["precision"]) == (target, "fp16"))
    return (bench.path / "store" / "blobs" / "sha256" / digest[:2] / digest).read_bytes()


def test_a_plan_of_another_registry_is_imported_by_its_header(
    built: tuple[Path, CliResult], bare: Bench, tmp_path: Path
) -> None:
    shutil.copytree(built[0], tmp_path / "elsewhere")
    elsewhere = Bench(tmp_path / "elsewhere")
    assert bare.cli("toolchain", "add", "rtx", "--python", sys.executable).code == 0
    whole = plan_of(elsewhere, "sm_89")
    plan = tmp_path / "lenet.plan"
    plan.write_bytes(whole)
    words = ("register-engine", "lenet:1", plan, "--precision", "fp16")
    (made,) = bare.cli(*words, "--json").document["engines"]
    assert (made["created"], made["target"], made["backend"]) == (True, "sm_89", "tensorrt-rtx")
    assert made["recipe"]["build"]["imported"]["header"]["weight_bytes"] > 0
    assert "has this plan already" in bare.cli(*words).out
    # The same cell is built all the same: an import is no build of its recipe. These builds give the same bytes.
    (cell,) = bare.cli("build", "lenet:1", "--target", "sm_89", "--precision", "fp16", "--json").document["cells"]
    assert (cell["status"], cell["engine"]["plan"]) == ("built", made["plan"])
    assert bare.cli("verify", "--events").code == 0
    # In the registry that built it, it is known.
    assert "has this plan already" in elsewhere.cli(*words).out
    for data in (whole[:-1], whole[:30] + bytes([whole[30] ^ 1]) + whole[31:], whole + b"x"):
        plan.write_bytes(data)
        assert bare.cli(*words).code == 6
    plan.write_bytes(whole[:32] + b"\x00" + whole[33:])
    assert bare.cli(*words, "--target", "sm_89").code == 6
