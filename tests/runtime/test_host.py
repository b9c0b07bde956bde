import os
from pathlib import Path

import pytest

from modelreg.registry.words import Backend
from modelreg.runtime import host
from modelreg.runtime.host import Gpu, Host, describe_host, parse_gpu_query


def test_gpus_are_read_from_the_driver_tools_lines() -> None:
    text = "NVIDIA H200, 9.0, 580.159.04\nNVIDIA GeForce RTX 5090, 12.0, 580.1\n"
    gpus = (
        Gpu(name="NVIDIA H200", target="sm_90", driver="580.159.04"),
        Gpu(name="NVIDIA GeForce RTX 5090", target="sm_120", driver="580.1"),
    )
    assert parse_gpu_query(text) == (gpus, ())


@pytest.mark.parametrize(
    "text", ["", "No devices were found\n", "a, b, c\n", "GPU, [N/A], 1\n", "GPU, \u0669.0, 1\n", "GPU, 9, 1\n"]
)
def test_other_lines_are_no_gpus(text: str) -> None:
    assert parse_gpu_query(text) == ((), tuple(text.splitlines()))


def test_targets_are_each_named_once_gpus_first() -> None:
    gpu = Gpu(name="H200", target="sm_90", driver="1")
    made = Host(name="n", gpus=(gpu, gpu), backends=frozenset({Backend.ONNXRUNTIME}))
    assert made.targets == ("sm_90", "cpu")
    assert made.to_json()["targets"] == ["sm_90", "cpu"]


def test_this_host_runs_the_cpu_and_has_the_embedded_backend() -> None:
    made = describe_host()
    assert "cpu" in made.targets
    assert Backend.ONNXRUNTIME in made.backends


@pytest.fixture
def driver_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the place of the driver's tool on a host that has a driver."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(host, "has_driver", lambda: True)
    monkeypatch.setattr(host, "_DRIVER_TIMEOUT_S", 1.0)
    return tmp_path / "nvidia-smi"


@pytest.mark.parametrize(
    ("script", "targets", "problem"),
    [
        ("exit 9", (), "cannot be asked: it ends with 9"),
        ("echo broken >&2; exit 3", (), "cannot be asked: broken"),
        ("kill -9 $$", (), "cannot be asked: it was killed by SIGKILL"),
        ("exec sleep 60", (), "cannot be asked: it did not answer within 1 s"),
        ("yes", (), "cannot be asked: it did not answer within 1 s"),
        ("exit 0", (), "says nothing"),
        ("echo garbage", (), "says 'garbage'"),
        (r"printf '\377\376\n'", (), "says '\ufffd\ufffd'"),
        ("echo 'NVIDIA H200, 9.0, 1'", ("sm_90",), ""),
        ("echo 'NVIDIA H200, 9.0, 1'; sleep 60 &", ("sm_90",), ""),
        ("echo 'NVIDIA H200, 9.0, 1'; echo 'A, [N/A], 1'", ("sm_90",), "says 'A, [N/A], 1'"),
    ],
)
def test_a_broken_driver_means_no_gpu_and_is_said(
    driver_tool: Path, script: str, targets: tuple[str, ...], problem: str
) -> None:
    driver_tool.write_text(f"#!/bin/sh\n{script}\n")
    driver_tool.chmod(0o755)
    found = describe_host()
    assert tuple(gpu.target for gpu in found.gpus) == targets
    assert found.driver_problem == (f"this host's GPUs are not known: {driver_tool} {problem}" if problem else "")
    assert found.to_json()["driver_problem"] == found.driver_problem


def test_a_driver_without_its_tool_is_said(driver_tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(driver_tool.parent))
    assert "no nvidia-smi on the PATH" in describe_host().driver_problem


def test_without_a_driver_the_tool_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "has_driver", lambda: False)
    assert (describe_host().gpus, describe_host().driver_problem) == ((), "")


def test_versions_are_read_from_the_text_of_a_module_that_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "_BACKEND_MODULES", {Backend.TENSORRT: ("absent_trt", "pretend_trt")})
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / "pretend_trt" / "__init__.py"
    module.parent.mkdir()
    module.write_text('raise SystemExit("imported")\n__version__ = "10.3.0.26"\n')
    assert describe_host().versions == {Backend.TENSORRT: "10.3.0.26"}
    assert describe_host().to_json()["versions"] == {"tensorrt": "10.3.0.26"}
    module.write_text("from somewhere import __version__\n")
    assert describe_host().versions == {}
    module.unlink()  # a namespace package has no file
    assert describe_host().versions == {}
