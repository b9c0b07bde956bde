"""The GPU run itself, without a GPU: its script is rehearsed on the CPU, and its page is written from a record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from modelreg.config.settings import load_settings
from modelreg_testing.checkout import ROOT
from modelreg_testing.gpu_lab import Recorder, read_setting
from modelreg_testing.gpu_report import render
from modelreg_testing.gpu_timing import paired_ratio, take_turns

SCRIPT = ROOT / "tests" / "gpu" / "run.sh"


def run(*words: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the script with this interpreter, and without what a GPU machine would have set."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("MODELREG_GPU")}
    environment = {**inherited, "PYTHON": sys.executable, **variables}
    command = [str(SCRIPT), *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_stages_of_lenet_pass_when_they_are_rehearsed(tmp_path: Path) -> None:
    stages = "release latency layers bench"  # builds by Dask's workers have tests of their own
    rehearsed = run("--rehearse", tmp_path, PYTEST_ADDOPTS="-k 'lenet or registry'", MODELREG_GPU_STAGES=stages)
    assert rehearsed.returncode == 0, rehearsed.stdout[-3000:]
    body = json.loads((tmp_path / "results.json").read_text())
    outcomes = {stage["name"]: stage["outcome"] for stage in body["stages"]}
    assert outcomes["test_a_registry_is_made_whose_channel_requires_this_gpu"] == "passed"
    assert outcomes["test_every_engine_is_timed_against_pytorch[lenet]"] == "passed"
    assert {(each["network"], each["precision"], each["verdict"]) for each in body["engines"]} == {
        ("lenet", precision, "pass") for precision in ("fp32", "fp16", "int8")
    }
    assert len(body["latency"]) == 6
    page = (tmp_path / "gpu-results.md").read_text()
    assert page in rehearsed.stdout
    assert "| lenet:1 | int8 | pass |" in page
    assert "modelreg build lenet:1 --precision fp16" in (tmp_path / "commands.log").read_text()


@pytest.mark.slow
def test_a_stage_that_fails_is_told_with_its_reason_and_the_exit_code(tmp_path: Path) -> None:
    # Nothing was registered: the engine cannot be built.
    failed = run("--rehearse", tmp_path, PYTEST_ADDOPTS="-k 'engine_is_built and fp32-lenet'")
    assert failed.returncode == 1
    (stage,) = json.loads((tmp_path / "results.json").read_text())["stages"]
    assert stage["outcome"] == "failed"
    assert "ended with" in stage["reason"]
    assert "| test_an_engine_is_built[fp32-lenet] | failed |" in failed.stdout


@pytest.mark.parametrize("words", [(), ("--help",), ("a", "b")])
def test_it_says_how_it_is_called(words: tuple[str, ...]) -> None:
    told = run(*words)
    assert told.returncode == 2
    assert "tests/gpu/run.sh FOLDER" in told.stderr


def test_serving_alone_has_a_script_that_takes_the_same() -> None:
    script = SCRIPT.with_name("serving.sh")
    told = subprocess.run([str(script)], capture_output=True, text=True, check=False)
    assert told.returncode == 2
    assert "tests/gpu/run.sh FOLDER" in told.stderr


def test_what_was_served_is_in_the_page_with_its_own_columns() -> None:
    body = Recorder(Path("nowhere")).body | {"environment": {"rehearsal": True}}
    body["serving"] = [{"what": "batching", "rows_s": 12345.6, "p99_ms": 1.23456}, {"what": "batching", "rows_s": 7.0}]
    page = render(body)
    assert "Serving: batching\n\n| rows_s | p99_ms |\n| --- | --- |\n| 12346 | 1.235 |\n| 7 | - |" in page


def test_a_toolchain_that_is_not_there_is_named(tmp_path: Path) -> None:
    told = run(tmp_path, MODELREG_GPU_TOOLCHAIN="/nowhere/python")
    assert told.returncode == 2
    assert told.stderr == "MODELREG_GPU_TOOLCHAIN names no interpreter: /nowhere/python\n"


def test_only_the_script_starts_the_run() -> None:
    with pytest.raises(RuntimeError, match=r"started by tests/gpu/run\.sh FOLDER"):
        read_setting({})
    setting = read_setting(
        {"MODELREG_GPU_RESULTS": "/r", "MODELREG_GPU_TARGET": "sm_90", "MODELREG_GPU_TOOLCHAIN": "/t/python"}
    )
    assert (setting.device, setting.is_rehearsal, setting.image_size) == ("cuda", False, 224)
    assert setting.build_words == [
        *("--target", "sm_90", "--toolchain", "trt", "--tacticSources", "none", "--builderOptimizationLevel", "2")
    ]


@pytest.mark.parametrize(("toolchain", "serving"), [("", ()), ("/t/python", ("/t/python",))])
def test_the_registry_knows_what_its_channel_requires_and_what_loads_plans(
    tmp_path: Path, toolchain: str, serving: tuple[str, ...]
) -> None:
    environment = {"MODELREG_GPU_RESULTS": "/r", "MODELREG_GPU_TARGET": "sm_90", "MODELREG_GPU_TOOLCHAIN": toolchain}
    path = tmp_path / "config.toml"
    path.write_text(read_setting(environment).home_settings)
    settings = load_settings(path)
    assert settings.channel_targets("production") == ("sm_90",)
    assert settings.serve_python == serving


def test_an_engine_is_found_by_network_and_precision_in_version_1(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "results.json")
    for version in (1, 2):
        recorder.add("engines", {"network": "lenet", "version": version, "precision": "fp16"})
    assert recorder.engine("lenet", "fp16")["version"] == 1
    with pytest.raises(AssertionError, match="lenet:1 int8 was not built"):
        recorder.engine("lenet", "int8")
    assert len(json.loads(recorder.path.read_text())["engines"]) == 2


def test_timers_take_turns_and_are_compared_turn_by_turn() -> None:
    called: list[str] = []

    def timer(name: str, base: float) -> list[float]:
        called.append(name)
        slow = 10.0 if len(called) > 4 else 1.0  # the card is throttled in the last turns: the ratio stays
        return [base * slow, base * slow, base * slow * 50]

    found = take_turns({"one": lambda: timer("one", 3.0), "two": lambda: timer("two", 2.0)}, rounds=3)
    assert called == ["one", "two"] * 3
    assert found["one"]["rounds_ms"] == [3.0, 3.0, 30.0]
    assert found["one"]["runs"] == 9
    assert paired_ratio(found["one"], found["two"]) == pytest.approx(1.5)


def test_the_page_of_a_gpu_run_has_every_number_and_says_what_failed() -> None:
    times: dict[str, Any] = {name: {"median_ms": ms} for name, ms in [("runner", 0.31), ("torch_fp16", 2.5)]}
    body = {
        "environment": {
            **{"date": "2026-11-30", "name": "NVIDIA H200", "driver_version": "580.1", "torch": "2.11.0"},
            **{"onnxruntime": "1.30.0", "modelreg": "0.1.0"},
            "toolchain": {"backend": "tensorrt", "version": "8.6.0"},
        },
        "engines": [
            {
                **{"network": "resnet18", "version": 1, "precision": "fp16", "verdict": "pass", "build_s": 12.04},
                "size_bytes": 3 << 20,
                "gates": [{"gate": "cosine", "measured": 0.999994}, {"gate": "sqnr_db", "measured": None}],
            }
        ],
        "latency": [
            {"network": "resnet18", "precision": "fp16", "batch": 64, "runner_to_bare": 1.01, **times},
        ],
        "bench": [
            {
                "settings": {"cuda_graph": True, "streams": 2},
                "clocks": [{"said": "clocks not read"}],
                "latencies": [
                    {
                        **{"version": "resnet18:1", "precision": "fp16", "batch": 64, "throughput": 12345.6},
                        "boundaries": {"gpu-compute": {"median_ms": 0.5}, "enqueue": {"median_ms": 0.25}},
                    }
                ],
            }
        ],
        "stages": [{"name": "test_x", "outcome": "failed", "seconds": 1.0, "reason": "\nbad | worse\nmore"}],
    }
    page = render(body)
    assert "an NVIDIA H200 (driver 580.1)" in page
    assert "TensorRT 8.6.0, PyTorch 2.11.0" in page
    assert "| resnet18:1 | fp16 | pass | 0.999994 | - | - | - | 3.00 | 12.0 |" in page
    assert "| resnet18 | fp16 | 64 | 0.310 | - | - | 1.01 | - | 2.500 | - | - |" in page
    assert "| resnet18:1 fp16 | 64 | on | 2 | 0.250 | - | 0.500 | - | - | 12,346 |" in page
    assert "| test_x | failed | 1.0 | bad \\| worse |" in page
    empty: dict[str, Any] = {"environment": {"rehearsal": True}, "engines": [], "latency": [], "stages": []}
    assert "A rehearsal" in render(empty)
    assert "Nothing was built." in render(empty)
