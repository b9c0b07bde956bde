"""`register-engine` and what the other commands make of an imported engine. Plans only begin as TensorRT's do here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from modelreg.registry.toolchains.catalogue import register_toolchain
from modelreg.registry.toolchains.probing import Probe
from modelreg.registry.words import Backend, Precision
from modelreg_testing.cli import Shop
from modelreg_testing.plans import rtx_plan, tensorrt_plan

TRT, RTX = "8.6.0.12", "1.7.1.116"


@pytest.fixture
def stocked(shop: Shop, tmp_path: Path) -> Shop:
    """Give a registry with a version, an engine for the CPU and two toolchains; plans lie in the working folder."""
    shop.add_version(precisions=(Precision.FP32,))
    with shop.database() as database, database.write() as connection:
        for name, backend, version in (("trt", Backend.TENSORRT, TRT), ("rtx", Backend.TENSORRT_RTX, RTX)):
            probe = Probe(backend=backend, version=version, python="/opt/p", details={"python_version": "3.10"})
            register_toolchain(connection, name=name, probe=probe, actor="ada@lab")
    (tmp_path / "rtx.plan").write_bytes(rtx_plan(RTX, "sm_86"))
    (tmp_path / "trt.plan").write_bytes(tensorrt_plan(TRT))
    return shop


def take(shop: Shop, *words: object, precision: str = "fp16") -> Any:
    return shop.cli("register-engine", "lenet:1", *words, "--precision", precision)


def test_a_plan_of_rtx_brings_its_target_along(stocked: Shop) -> None:
    made = take(stocked, "rtx.plan", "--recipe-note", "from the edge box", "-m", "no builder here")
    assert made.code == 0, made.err
    assert made.out.splitlines() == [
        f"engine 2 registered: lenet:1 sm_86 fp16, tensorrt-rtx {RTX}, plan {made.out.split('plan ')[1][:12]}, 125 B",
        "  imported from rtx.plan by ada@lab: from the edge box",
    ]
    assert "next: modelreg validate lenet:1, on a host that runs sm_86" in made.err


def test_a_plan_of_tensorrt_needs_a_target(stocked: Shop) -> None:
    refused = take(stocked, "trt.plan")
    assert refused.code == 2
    assert "does not say which GPU it is for" in refused.err
    made = take(stocked, "trt.plan", "--target", "sm_90,sm_80", "--toolchain", "trt", "--json").document
    assert made["header"] == {"backend": "tensorrt", "version": TRT, "targets": []}
    assert [(each["created"], each["target"], each["toolchain"]) for each in made["engines"]] == [
        (True, "sm_90", "trt"),
        (True, "sm_80", "trt"),
    ]


def test_the_same_plan_twice_is_one_engine_and_says_so(stocked: Shop) -> None:
    assert take(stocked, "rtx.plan").code == 0
    again = take(stocked, "rtx.plan")
    assert (again.code, again.out.splitlines()[0][:32]) == (0, "engine 2 has this plan already: ")
    assert take(stocked, "rtx.plan", "--json").document["engines"][0]["created"] is False
    other = take(stocked, "rtx.plan", precision="int8")
    assert "engine 3 registered" in other.out
    assert "warning: engine 2 is the same plan, registered as fp16" in other.err


def test_a_dry_run_says_what_would_come_of_it_and_keeps_nothing(stocked: Shop) -> None:
    dry = take(stocked, "rtx.plan", "--dry-run")
    assert dry.out.startswith(f"would register lenet:1 sm_86 fp16, tensorrt-rtx {RTX}, plan ")
    body = take(stocked, "rtx.plan", "--dry-run", "--json").document
    assert (body["dry_run"], body["engines"][0]["already"], body["header"]["targets"]) == (True, None, ["sm_86"])
    assert body["engines"][0]["recipe"]["build"]["imported"]["by"] == "ada@lab"
    assert len(stocked.cli("show", "lenet:1", "--json").document["engines"]) == 1
    assert take(stocked, "rtx.plan").code == 0
    known = take(stocked, "rtx.plan", "--dry-run")
    assert known.out == "lenet:1 sm_86 fp16 is registered already: engine 2 has this plan\n"
    assert take(stocked, "rtx.plan", "--dry-run", precision="int8").out.startswith("would register")


@pytest.mark.parametrize(
    ("data", "words", "refusal"),
    [
        (b"ONNX" * 20, (), (6, "is no TensorRT plan")),
        (rtx_plan(RTX, "sm_86")[:100], (), (6, "is truncated")),
        (tensorrt_plan(TRT)[:20], ("--target", "sm_90"), (6, "is truncated")),
        (rtx_plan(RTX, "sm_86")[:28] + b"x" + rtx_plan(RTX, "sm_86")[29:], (), (6, "is damaged")),
        (rtx_plan(RTX, "sm_86"), ("--target", "sm_89"), (2, "is not for sm_89: its header says sm_86")),
        (rtx_plan(RTX, "sm_86"), ("--toolchain", "trt"), (2, "toolchain 'trt' has tensorrt 8.6.0.12")),
        (rtx_plan(RTX, "sm_86"), ("--toolchain", "absent"), (1, "there is no toolchain 'absent'")),
        (rtx_plan("1.6.1.120", "sm_86"), (), (1, "no toolchain has tensorrt-rtx 1.6.1.120")),
        (tensorrt_plan("8.6.1.12"), ("--target", "sm_90"), (1, "no toolchain has tensorrt 8.6.1.12")),
        (tensorrt_plan(TRT), ("--target", "h200"), (2, "'h200' is no target")),
    ],
)
def test_what_cannot_be_taken_in_is_one_line_and_keeps_nothing(
    stocked: Shop, tmp_path: Path, data: bytes, words: tuple[str, ...], refusal: tuple[int, str]
) -> None:
    code, fact = refusal
    (tmp_path / "odd.plan").write_bytes(data)
    refused = take(stocked, "odd.plan", *words)
    assert (refused.code, refused.out) == (code, "")
    (line,) = [line for line in refused.err.splitlines() if "error:" in line]
    assert fact in line
    assert len(stocked.cli("show", "lenet:1", "--json").document["engines"]) == 1


def test_an_onnx_is_refused_with_the_command_that_takes_it(stocked: Shop, tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"ONNX" * 20)
    refused = take(stocked, "net.onnx")
    assert (refused.code, refused.out) == (1, "")
    assert "net.onnx is an ONNX, and only plans of TensorRT and TensorRT-RTX are taken in" in refused.err
    assert "modelreg register NAME FILE" in refused.err


def test_references_precisions_and_files_that_are_not_there(stocked: Shop, tmp_path: Path) -> None:
    unknown = stocked.cli("register-engine", "vgg:1", "rtx.plan", "--precision", "fp16")
    assert (unknown.code, "vgg" in unknown.err) == (1, True)
    left_out = stocked.cli("register-engine", "lenet:1", "rtx.plan")
    assert (left_out.code, "missing option '--precision'" in left_out.err) == (2, True)
    assert take(stocked, "rtx.plan", precision="fp12").code == 2
    (tmp_path / "link.plan").symlink_to(tmp_path / "rtx.plan")
    linked = take(stocked, "link.plan")
    assert (linked.code, "link.plan is a link, not a file" in linked.err) == (1, True)
    assert take(stocked, "/dev/zero").code == 1
    assert take(stocked, "absent.plan").code == 1


@pytest.mark.parametrize(
    ("path", "fact"),
    [
        ("/proc/self/mem", "/proc/self/mem cannot be read: Input/output error"),
        ("/dev/zero", "/dev/zero is a device, not a file"),
        ("/", "/ is a folder, not a file"),
        ("absent.plan", "absent.plan does not exist"),
        ("pipe.plan", "pipe.plan is a named pipe, not a file"),
    ],
)
def test_what_is_no_file_to_read_is_named_with_the_way_out(stocked: Shop, tmp_path: Path, path: str, fact: str) -> None:
    os.mkfifo(tmp_path / "pipe.plan")
    refused = take(stocked, path)
    assert refused.code == 1
    assert fact in refused.err
    assert "hint: Name the plan itself, as a regular file that you may read." in refused.err


def test_a_plan_of_tensorrt_rtx_is_never_best(stocked: Shop) -> None:
    refused = take(stocked, "rtx.plan", precision="best")
    assert refused.code == 2
    assert "a plan of tensorrt-rtx is never best" in refused.err
    assert "Name the precision that its network is typed in" in refused.err


def test_the_other_commands_know_that_it_was_imported(stocked: Shop) -> None:
    stocked.add_version(word=2)
    take(stocked, "rtx.plan", "--recipe-note", "from the edge box")
    shown = stocked.cli("show", "lenet:1")
    assert "engine 3 (sm_86 fp16): imported from rtx.plan by ada@lab: from the edge box" in shown.out
    assert "unknown until validated" in " ".join(shown.out.split())
    assert "not run: imported, and never loaded" in stocked.cli("show", "lenet:1", "-v").out
    engine = stocked.cli("show", "lenet:1", "--json").document["engines"][1]
    assert (engine["status"], engine["usable"], engine["reason"]) == ("built", False, "not validated, never run")
    assert "has no build log" in stocked.cli("show", "lenet:1", "--log", "3").err
    changes = {
        each["field"]: each["left"]
        for each in stocked.cli("diff", "lenet:1", "lenet:2", "--json").document["differences"]
    }
    assert changes["sm_86 fp16 tensorrt-rtx origin"] == "imported"
    assert stocked.cli("list", "lenet").code == 0
    assert stocked.cli("doctor").code == 0
    assert stocked.cli("verify", "--events").code == 0
    assert stocked.cli("verify", "lenet:1").code == 0


def test_it_is_promoted_only_over_its_gates_and_which_reads_its_header(stocked: Shop) -> None:
    take(stocked, "rtx.plan")
    refused = stocked.cli("promote", "lenet:1", "--to", "production")
    assert refused.code == 3
    assert "sm_86 has no engine that passes (fp16 engine 2: not validated, never run)" in refused.err
    skipped = stocked.cli("validate", "lenet:1", "--engine", "2", "--dry-run")
    assert "would skip engine 2 (sm_86 fp16): needs sm_86" in skipped.out
    forced = stocked.cli("promote", "lenet:1", "--to", "production", "--override-gates", "-m", "bench")
    assert forced.code == 0, forced.err
    (entry,) = [
        each
        for each in stocked.cli("which", "lenet@production", "--json").document["engines"]
        if each["target"] == "sm_86"
    ]
    findings = {check["check"]: check["finding"] for check in entry["checks"]}
    assert findings["plan"] == f"its header says tensorrt-rtx {RTX}"
    assert findings["gpu"] == "needs sm_86; this host has cpu"


def test_a_plan_for_several_targets_serves_each_that_is_named(stocked: Shop, tmp_path: Path) -> None:
    plan = bytearray(rtx_plan(RTX, "sm_86"))
    plan[32] |= 8
    (tmp_path / "both.plan").write_bytes(plan)
    assert "both.plan is for sm_86, sm_89" in take(stocked, "both.plan").err
    assert take(stocked, "both.plan", "--target", "sm_89").code == 0
    words = ("promote", "lenet:1", "--to", "production", "--target", "sm_89", "--override-gates", "-m", "bench")
    assert stocked.cli(*words).code == 0
    (entry,) = stocked.cli("which", "lenet@production", "--json").document["engines"]
    assert entry["plan_targets"] == ["sm_86", "sm_89"]
    assert entry["reason"] == "needs sm_89; this host has cpu"


def test_a_registry_that_cannot_be_written_is_said_before_the_bytes_are_stored(stocked: Shop) -> None:
    (stocked.path / "config.toml").write_text("[limits]\nlock_timeout_s = 0.2\n")
    with stocked.database() as database, database.write():
        refused = take(stocked, "rtx.plan")
        assert take(stocked, "rtx.plan", "--dry-run").code == 0
    assert refused.code == 4
    assert "storing" not in refused.err
