"""Repairing engines whose error is born in one layer, on real builds for the CPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from modelreg_testing.cli import CliResult, Shop
from modelreg_testing.layered import outlier_net, register
from modelreg_testing.workshop import overflowing_net

pytestmark = pytest.mark.slow


def engines(shop: Shop) -> list[dict[str, object]]:
    listed = shop.cli("show", "net:1", "--json").document["engines"]
    assert isinstance(listed, list)
    return listed


def test_an_int8_engine_with_one_outlier_channel_is_repaired_with_one_node(shop: Shop, tmp_path: Path) -> None:
    calibration = register(shop, outlier_net(), tmp_path / "in")
    done = shop.cli("repair", "net", "--precision", "int8", "--calibration", calibration)
    assert done.code == 0, done.err
    assert "passes with 1 node kept in a high precision (minimal: dropping any one fails)" in done.out
    assert "recipe: --nodes-to-exclude mix\n" in done.out
    assert "size:   " in done.out
    assert "; FP32 takes " in done.out
    assert "time:   " in done.out
    assert "next: modelreg promote net:1 --to production" in done.err
    assert len(engines(shop)) == 1  # trials leave no engines
    again = shop.cli("build", "net", "--precision", "int8", "--calibration", calibration, "--nodes-to-exclude", "mix")
    assert "reused" in again.out  # the recipe is the one that a user would write


def test_an_overflow_of_fp16_is_named_and_repaired_and_an_interrupted_repair_goes_on(
    shop: Shop, tmp_path: Path
) -> None:
    register(shop, overflowing_net(), tmp_path / "in")
    words = ("repair", "net", "--precision", "fp16")
    first = shop.cli(*words, "--max-trials", 1)
    assert first.code == 3
    assert "no set of nodes was found for net:1 fp16 for cpu in 1 trial" in first.err
    (notebook,) = (shop.path / "repairs").iterdir()
    assert [each["nodes"] for each in json.loads(notebook.read_text())["trials"]] == [["grow"]]
    second = shop.cli(*words, "--json")
    assert second.code == 0, second.err
    assert "going on with 1 trial of an earlier run" in second.err
    assert "keeping grow ..." not in second.err
    assert list((shop.path / "repairs").iterdir()) == []
    found = second.document
    assert (found["nodes"], found["minimal"]) == (["grow", "shrink"], True)
    assert found["unrepaired"]["reason"].startswith("finite of y")
    assert found["layers"]["first_bad"] == "grow"
    states = {row["name"]: row["state"] for row in found["layers"]["rows"]}
    assert states == {"fc1": "ok", "grow": "born", "shrink": "carried", "fc2": "carried"}
    assert found["engine"]["recipe"]["variant"]["excluded_nodes"] == ["grow", "shrink"]
    assert found["validation"]["verdict"] == "pass"
    before, after = found["cost"]["size_bytes"]
    assert min(before, after) > 0
    assert all(each > 0 for each in found["cost"]["latency_ms"])


def test_an_engine_that_gave_way_to_a_repaired_one_is_not_judged_again(shop: Shop, tmp_path: Path) -> None:
    register(shop, overflowing_net(), tmp_path / "in")
    for words, code in (([], 3), (["--nodes-to-exclude", "grow,shrink"], 0)):
        assert shop.cli("build", "net:1", "--precision", "fp16", *words).code == 0
        number = len(engines(shop))
        assert shop.cli("validate", "net:1", "--engine", number).code == code
    done = shop.cli("validate", "net:1")
    assert done.code == 0, done.err
    assert "engine 1 (cpu fp16) is left out: engine 2 is the same, repaired, and passed" in done.err
    assert "next: modelreg promote net:1 --to production" in done.err
    told = shop.cli("validate", "net:1", "--dry-run", "--json").document
    assert [each["engine"] for each in told["engines"]] == [2]
    assert told["superseded"] == [{"engine": 1, "by": 2}]
    assert shop.cli("promote", "net:1", "--to", "production", "--json").document["version"] == 1


def test_when_fp32_itself_fails_it_is_said_that_no_set_of_nodes_helps(shop: Shop, tmp_path: Path) -> None:
    calibration = register(shop, outlier_net(), tmp_path / "in", wrong_by=5.0)
    done = shop.cli("repair", "net", "--precision", "int8", "--calibration", calibration)
    assert done.code == 3
    assert "no set of nodes can repair net:1 int8 for cpu: FP32 itself fails the policy (cosine of y" in done.err
    assert engines(shop) == []


def python_running(folder: Path, job_file: str) -> Path:
    """Write an interpreter that builds as ours does, and runs plans by another job file."""
    (folder / "job.py").write_text(job_file)
    python = folder / "python"
    swap = f'case "$*" in */runtime/ort.py) set -- "$1" "$2" "$3" "$4" {folder}/job.py;; esac'
    python.write_text(f'#!/bin/sh\n{swap}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


NO_NUMPY = "raise ModuleNotFoundError(\"No module named 'numpy'\")"
NO_DEVICE = "def load(*_):\n    raise OSError('no device')\nJOBS = {'load': load}\n"


@pytest.mark.parametrize(
    ("job_file", "said"),
    [
        (NO_NUMPY, "it cannot be run on this host: {python} has no NumPy"),
        (NO_DEVICE, "FP32 is not judged: run of plan: the plan cannot be loaded: no device"),
    ],
)
def test_what_cannot_be_run_here_is_no_failing_policy(shop: Shop, tmp_path: Path, job_file: str, said: str) -> None:
    register(shop, overflowing_net(), tmp_path / "in")
    python = python_running(tmp_path, job_file)
    assert shop.cli("toolchain", "add", "odd", "--python", python, "--backend", "onnxruntime").code == 0
    done = shop.cli("repair", "net", "--precision", "fp16", "--toolchain", "odd")
    assert done.code == 3
    assert f"net:1 fp16 for cpu cannot be repaired: {said.format(python=python)}" in done.err
    assert "fails the policy" not in done.err
    assert "export, the golden set" not in done.err
    assert not (shop.path / "repairs").exists()


def test_a_dry_run_names_the_suspects_and_writes_nothing(shop: Shop, tmp_path: Path) -> None:
    calibration = register(shop, outlier_net(), tmp_path / "in")
    before = sorted(path.relative_to(shop.path) for path in shop.path.rglob("*"))
    done = shop.cli("repair", "net", "--precision", "int8", "--calibration", calibration, "--dry-run")
    assert done.code == 0, done.err
    assert "net:1 int8 for cpu fails: cosine of y" in done.out
    assert "first bad layer: mix (MatMul, node mix)" in done.out
    assert "would try to keep in a high precision, in this order: mix, " in done.out
    assert sorted(path.relative_to(shop.path) for path in shop.path.rglob("*")) == before


def test_an_engine_that_passes_needs_no_repair(shop: Shop, tmp_path: Path) -> None:
    register(shop, overflowing_net(factor=2.0), tmp_path / "in")
    done = shop.cli("repair", "net", "--precision", "fp16")
    assert (done.code, done.out) == (0, "net:1 fp16 for cpu passes as it is: nothing to repair\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--precision", "fp32"], "fp32 converts nothing, so no node can be kept out of it"),
        (["--precision", "int8"], "int8 of net:1 needs a calibration set"),
        (["--precision", "fp16", "--target", "sm_90"], "no toolchain"),
    ],
)
def test_what_cannot_be_repaired_is_refused_at_once(shop: Shop, tmp_path: Path, words: list[str], message: str) -> None:
    register(shop, overflowing_net(), tmp_path / "in")
    done: CliResult = shop.cli("repair", "net", *words)
    assert done.code != 0
    assert message in done.err
