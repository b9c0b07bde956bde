"""The main job on the example's real LeNet, and the faults that its gates must catch."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from modelreg_testing.checkout import ROOT
from modelreg_testing.cli import CliResult, Shop, run_cli, save_npz

LENET = ROOT / "examples" / "lenet"
ONNX, GOLDEN, CALIBRATION = LENET / "lenet-v1.onnx", LENET / "golden-v1.npz", LENET / "calibration.npz"

pytestmark = [pytest.mark.slow, pytest.mark.installed]


class Bench:
    """A registry's home with `cli`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def cli(self, *words: object) -> CliResult:
        return run_cli(*words, home=self.path)

    def register(self, model: Path) -> None:
        done = self.cli("register", "lenet", model, "--golden", GOLDEN)
        assert done.code == 0, done.err


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CliResult, CliResult]:
    """Register, build and validate once; return the home and what the two commands printed."""
    shop = Shop(tmp_path_factory.mktemp("lenet"))
    assert shop.cli("register", "lenet", ONNX, "--golden", GOLDEN).code == 0
    build = shop.cli("build", "lenet:1", "--precision", "fp32,fp16,int8", "--calibration", CALIBRATION)
    validate = shop.cli("validate", "lenet:1")
    return shop.path, build, validate


@pytest.fixture
def bench(built: tuple[Path, CliResult, CliResult], tmp_path: Path) -> Bench:
    shutil.copytree(built[0], tmp_path / "home")
    return Bench(tmp_path / "home")


@pytest.fixture
def empty(shop: Shop) -> Bench:
    return Bench(shop.path)


def test_three_precisions_are_built_and_say_what_they_became(built: tuple[Path, CliResult, CliResult]) -> None:
    _, build, _ = built
    assert build.code == 0, build.err
    for line, words in zip(
        build.out.splitlines()[1:],
        (["fp32", "built", "FP32"], ["fp16", "built", "FP16 storage, FP32 compute"], ["int8", "built", "INT8"]),
        strict=True,
    ):
        assert all(word in line for word in words)
    assert build.err.splitlines()[:3] == [f"building lenet:1 {p} for cpu ..." for p in ("fp32", "fp16", "int8")]


def test_every_gate_is_in_the_table_with_measured_limit_and_outcome(built: tuple[Path, CliResult, CliResult]) -> None:
    _, _, validate = built
    assert validate.code == 0, validate.err
    assert validate.out.splitlines()[0].split() == ["ENGINE", "GATE", "OUTPUT", "MEASURED", "LIMIT", "OUTCOME"]
    assert "logits (rounded)" in validate.out
    overflows = [line.split() for line in validate.out.splitlines() if " overflows " in line]
    assert overflows == [["2", "cpu", "fp16", "overflows", "inside", "(rounded)", "0", "<=", "0", "pass"]]
    passed = "engine 3 (cpu int8): pass: 12 gates passed, 2 skipped (the golden set has no slices), report"
    assert passed in validate.out
    assert "next: modelreg promote lenet:1 --to production" in validate.err


def test_what_passes_can_be_promoted_shown_and_verified(bench: Bench) -> None:
    assert bench.cli("promote", "lenet:1", "--to", "production").code == 0
    engines = bench.cli("show", "lenet@production", "--json").document["engines"]
    assert [engine["validation"]["verdict"] for engine in engines] == ["pass"] * 3
    assert "FP16 storage, FP32 compute" in bench.cli("show", "lenet:1").out
    assert bench.cli("which", "lenet@production", "--path-only").code == 0
    assert bench.cli("verify", "--events").code == 0
    assert bench.cli("doctor").code == 0


def test_a_built_cell_is_reused_unless_rebuild_is_said(bench: Bench) -> None:
    again = bench.cli("build", "lenet:1", "--json").document["cells"][0]
    assert (again["status"], again["engine"]["id"]) == ("reused", 1)
    reused = bench.cli("build", "lenet")
    assert "reused" in reused.out
    assert reused.err.splitlines() == [
        "lenet means lenet:1, the newest",
        "lenet:1 fp32 for cpu: engine 1 is reused",
        "next: modelreg promote lenet:1 --to production",
    ]
    rebuilt = bench.cli("build", "lenet:1", "--rebuild", "--json").document["cells"][0]
    assert rebuilt["replaces"] == 1
    assert (rebuilt["status"], rebuilt["engine"]["id"]) == ("built", 4)
    assert bench.cli("promote", "lenet:1", "--to", "production", "--precision", "fp32").code == 3


def test_a_dry_run_of_build_and_validate_says_what_would_happen(bench: Bench) -> None:
    words = ("build", "lenet:1", "--precision", "fp32,int8")
    dry = bench.cli(*words, "--dry-run")
    assert dry.code == 1
    assert "would reuse fp32 for cpu: engine 1 has the same recipe" in dry.out
    assert "would refuse int8 for cpu: " in dry.out
    plan = bench.cli(*words, "--calibration", CALIBRATION, "--calibration-method", "minmax", "--dry-run", "--json")
    assert plan.code == 0
    assert [cell["action"] for cell in plan.document["cells"]] == ["reuse", "build"]
    assert "would validate engine 2 (cpu fp16) against" in bench.cli("validate", "lenet:1", "--dry-run").out
    assert len(bench.cli("validate", "lenet:1", "--engine", 2, "--dry-run", "--json").document["engines"]) == 1
    assert len(bench.cli("show", "lenet:1", "--json").document["engines"]) == 3


def test_a_calibration_set_that_is_missing_leaves_out_what_needs_it_alone(bench: Bench) -> None:
    built = bench.cli("build", "lenet:1", "--precision", "fp32,int8")
    assert built.code == 1
    assert "engine 1 is reused" in built.err
    assert "1 of 2 engines were not built: int8 for cpu: int8 of lenet:1 needs a calibration set" in built.err


@pytest.mark.parametrize(
    ("words", "code", "fact"),
    [
        (("--precision", "int8"), 1, "needs a calibration set"),
        (("--precision", "fp8"), 1, "fp8"),
        (("--target", "sm_90"), 1, "sm_90"),
        (("--precision", "fp16", "--op-types-to-exclude", "Softmax"), 2, "no Softmax nodes"),
        (("--precision", "fp16", "--nodes-to-exclude", "conv9"), 2, "no node 'conv9'"),
        (("--precision", "fp16", "--nodes-to-exclude", "conv9", "--dry-run"), 2, "no node 'conv9'"),
        (("--precision", "fp16", "--op-types-to-exclude", "Softmax", "--dry-run"), 2, "no Softmax nodes"),
        (("--precision", "int8", "--calibration", "absent.npz"), 1, "absent.npz"),
    ],
)
def test_what_cannot_be_built_is_refused_before_anything_is_built(
    bench: Bench, words: tuple[str, ...], code: int, fact: str
) -> None:
    refused = bench.cli("build", "lenet:1", *words)
    assert refused.code == code
    assert fact in refused.err
    assert "building" not in refused.err
    assert len(refused.err.splitlines()) <= 2
    assert len(bench.cli("show", "lenet:1", "--json").document["engines"]) == 3


@pytest.mark.parametrize("rows", [0, 3])
def test_a_calibration_set_that_is_empty_or_of_another_model_is_refused(
    bench: Bench, tmp_path: Path, rows: int
) -> None:
    name = "input.image" if rows == 0 else "input.other"
    save_npz(tmp_path / "calibration.npz", {name: np.zeros((rows, 1, 28, 28), np.float32)})
    refused = bench.cli("build", "lenet:1", "--precision", "int8", "--calibration", tmp_path / "calibration.npz")
    assert refused.code == 1
    assert refused.err.startswith("modelreg: error: ")


def test_a_failed_cell_is_kept_with_its_reason_and_the_others_are_built(bench: Bench) -> None:
    words = ("build", "lenet:1", "--calibration", CALIBRATION, "--op-types-to-exclude", "Conv,Gemm")
    alone = bench.cli(*words, "--precision", "int8")
    assert alone.code == 1
    assert "no node of this model can become INT8: its 5 weighted nodes are excluded" in alone.err
    assert "Its log: `modelreg show lenet:1 --log 4`." in alone.err
    assert alone.out == ""
    assert "cell: lenet:1 int8 for cpu" in bench.cli("show", "lenet:1", "--log", 4).out

    both = bench.cli(*words, "--precision", "fp16,int8", "--json")
    assert both.code == 1
    assert [cell["status"] for cell in both.document["cells"]] == ["built", "failed"]
    assert both.document["cells"][1]["engine"] is None
    assert both.document["cells"][1]["attempt"] == 6
    assert "`modelreg show lenet:1 --log 6`" in both.err
    assert "1 of 2 engines were not built: int8 for cpu: no node of this model" in both.err
    table = bench.cli(*words, "--precision", "fp16,int8").out.splitlines()
    assert "reused" in table[1]
    assert "failed" in table[2]
    shown = bench.cli("show", "lenet:1")
    assert "(cpu int8): no node of this model can become INT8" in shown.out


def test_validation_without_engines_or_golden_set_says_what_is_missing(empty: Bench) -> None:
    assert empty.cli("register", "lenet", ONNX).code == 0
    missing = empty.cli("validate", "lenet:1")
    assert missing.code == 1
    assert "modelreg build lenet:1" in missing.err
    assert empty.cli("build", "lenet:1").code == 0
    missing = empty.cli("validate", "lenet:1")
    assert missing.code == 1
    assert "no golden set" in missing.err
    refused = empty.cli("promote", "lenet:1", "--to", "production")
    assert refused.code == 3
    assert empty.cli("validate", "lenet:1", "--precision", "int8").code == 1


def test_a_tighter_policy_is_just_used_and_a_looser_one_needs_a_message(bench: Bench, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('[[rules]]\nmetric = "sqnr_db"\nlimit = 60.0\n')
    strict = bench.cli("validate", "lenet:1", "--precision", "int8", "--policy", policy)
    assert strict.code == 3
    assert "sqnr_db of logits " in strict.out
    assert "worst samples" in strict.out
    policy.write_text('[[rules]]\nmetric = "sqnr_db"\nlimit = 1.0\n')
    words = ("validate", "lenet:1", "--precision", "int8", "--policy", policy)
    refused = bench.cli(*words)
    assert refused.code == 2
    assert "needs --message" in refused.err
    done = bench.cli(*words, "-m", "the demo is at noon", "--json")
    assert done.code == 0
    assert "sqnr_db >= 1 was looser than >= 15" in done.document["validations"][0]["objection"]
    assert "promote will not go by the pass of engine 3 (cpu int8)" in done.err
    assert bench.cli("promote", "lenet:1", "--to", "production", "--precision", "int8").code == 3
    assert bench.cli("verify", "--events").code == 0
    with sqlite3.connect(bench.path / "registry.db") as connection:
        rows = connection.execute("SELECT details FROM event WHERE kind = 'policy.loosened'").fetchall()
    connection.close()
    assert len(rows) == 1
    assert "the demo is at noon" in rows[0][0]
    assert "sqnr_db" in rows[0][0]


def test_a_damaged_plan_stops_its_validation_with_exit_6(bench: Bench) -> None:
    digest = bench.cli("show", "lenet:1", "--json").document["engines"][0]["plan"]
    blob = next((bench.path / "store" / "blobs").rglob(digest))
    blob.chmod(0o644)
    blob.write_bytes(blob.read_bytes()[:-1] + b"\x00")
    refused = bench.cli("validate", "lenet:1", "--engine", 1)
    assert refused.code == 6
    assert "modelreg: error: " in refused.err
    assert bench.cli("show", "lenet:1", "--json").document["engines"][0]["validation"]["verdict"] == "pass"


def change(destination: Path, edit: Callable[[onnx.ModelProto], None]) -> Path:
    model = onnx.load(ONNX)
    edit(model)
    onnx.save(model, destination)
    return destination


def pad_one_sided(model: onnx.ModelProto) -> None:
    conv = next(node for node in model.graph.node if node.op_type == "Conv")
    pads = next(attribute for attribute in conv.attribute if attribute.name == "pads")
    assert list(pads.ints) == [2, 2, 2, 2]
    pads.ints[:] = [0, 0, 4, 4]


def test_a_padding_that_became_one_sided_in_the_export_fails_in_fp32(empty: Bench, tmp_path: Path) -> None:
    empty.register(change(tmp_path / "slipped.onnx", pad_one_sided))
    assert empty.cli("build", "lenet:1").code == 0
    failed = empty.cli("validate", "lenet:1")
    assert failed.code == 3
    assert "accuracy_drop of logits: " in failed.out
    assert "worst samples" in failed.out
    gates = {g["gate"]: g for g in empty.cli("show", "lenet:1", "--json").document["engines"][0]["validation"]["gates"]}
    assert gates["cosine"]["outcome"] == "fail"
    assert gates["accuracy_drop"]["measured"] > 0.01
    assert "1 of 1 engines of lenet:1 do not pass: cpu fp32" in failed.err
    assert "FP32 fails: compare the golden set with the export" in failed.err
    assert empty.cli("promote", "lenet:1", "--to", "production").code == 3


def overflow_in_one_layer(model: onnx.ModelProto) -> None:
    """Scale one layer up and the next down: the same function in FP32, beyond 65,504 in FP16 for a few samples."""
    first, second = [node for node in model.graph.node if node.op_type == "Gemm"]
    factor = 1.2 * 65504 / largest_value(first.output[0])
    factors = {first.input[1]: factor, first.input[2]: factor, second.input[1]: 1 / factor}
    for tensor in model.graph.initializer:
        if tensor.name in factors:
            scaled = numpy_helper.to_array(tensor).astype(np.float64) * factors[tensor.name]
            tensor.CopyFrom(numpy_helper.from_array(scaled.astype(np.float32), tensor.name))


def largest_value(tensor: str) -> float:
    """Return the largest value that a tensor takes over the golden set."""
    import onnxruntime

    model = onnx.load(ONNX)
    model.graph.output.append(onnx.ValueInfoProto(name=tensor))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    with np.load(GOLDEN) as golden:
        (found,) = session.run([tensor], {name: golden[f"input.{name}"]})
    return float(found.max())


def test_an_fp16_engine_that_overflows_in_one_layer_fails_although_the_other_samples_agree(
    empty: Bench, tmp_path: Path
) -> None:
    empty.register(change(tmp_path / "overflow.onnx", overflow_in_one_layer))
    assert empty.cli("build", "lenet:1", "--precision", "fp32,fp16").code == 0
    failed = empty.cli("validate", "lenet:1", "--json")
    assert failed.code == 3
    fp32, fp16 = failed.document["validations"]
    assert fp32["verdict"] == "pass"
    assert fp16["verdict"] == "fail"
    gates = {(gate["gate"], gate["subject"]): gate for gate in fp16["gates"]}
    rounded = gates["finite", "logits (rounded)"]
    assert rounded["outcome"] == "fail"
    assert len(rounded["worst_samples"]) >= 1
    assert 0 < rounded["measured"] < 0.1 * 597 * 10
    assert "finite of logits (rounded)" in empty.cli("show", "lenet:1").out
    inside = gates["overflows", "inside (rounded)"]
    first = next(node.name for node in onnx.load(ONNX).graph.node if node.op_type == "Gemm")
    assert inside["reason"].startswith(f"{inside['measured']:.0f} finite values became infinite, first in {first} (")


def test_int8_calibrated_on_inputs_that_were_never_normalised_fails_on_the_task(bench: Bench, tmp_path: Path) -> None:
    with np.load(CALIBRATION) as calibration:
        raw = {name: calibration[name] * 255 for name in calibration.files if name != "label"}
    save_npz(tmp_path / "raw.npz", raw)
    built = bench.cli("build", "lenet:1", "--precision", "int8", "--calibration", tmp_path / "raw.npz")
    assert built.code == 0, built.err
    failed = bench.cli("validate", "lenet:1", "--precision", "int8")
    assert failed.code == 3
    assert "accuracy_drop of logits: " in failed.out
    planned = bench.cli("promote", "lenet:1", "--to", "production", "--precision", "int8", "--dry-run", "--json")
    (target,) = planned.document["targets"]
    verdicts = {candidate["engine"]: candidate["reason"] for candidate in target["candidates"]}
    newest = max(verdicts)
    assert verdicts[newest].startswith("validation fail: ")
    assert target["engine"] != newest  # the recipe that passed before is still there to be promoted
