import os
import stat
from pathlib import Path

import pytest

from modelreg.registry.words import Backend
from modelreg.runtime import host
from modelreg.runtime.host import Gpu, Host, describe_host, parse_gpu_query


def test_gpus_are_read_from_the_driver_tools_lines() -> None:
    text = "NVIDIA H200, 9.0, 580.159.04\nNVIDIA GeForce RTX 5090, 12.0, 580.1\n"
    assert parse_gpu_query(text) == (
        Gpu(name="NVIDIA H200", target="sm_90", driver="580.159.04"),
        Gpu(name="NVIDIA GeForce RTX 5090", target="sm_120", driver="580.1"),
    )


@pytest.mark.parametrize("text", ["", "No devices were found\n", "a, b, c\n", "GPU, [N/A], 1\n"])
def test_other_lines_are_no_gpus(text: str) -> None:
    assert parse_gpu_query(text) == ()


def test_targets_are_each_named_once_gpus_first() -> None:
    gpu = Gpu(name="H200", target="sm_90", driver="1")
    made = Host(name="n", gpus=(gpu, gpu), backends=frozenset({Backend.ONNXRUNTIME}))
    assert made.targets == ("sm_90", "cpu")
    assert made.to_json()["targets"] == ["sm_90", "cpu"]


def test_this_host_runs_the_cpu_and_has_the_embedded_backend() -> None:
    made = describe_host()
    assert "cpu" in made.targets
    assert Backend.ONNXRUNTIME in made.backends


@pytest.mark.parametrize(("script", "expected"), [("exit 9", ()), ("echo 'NVIDIA H200, 9.0, 1'", ("sm_90",))])
def test_a_broken_driver_means_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, expected: tuple[str, ...]
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(host, "has_driver", lambda: True)
    assert tuple(gpu.target for gpu in describe_host().gpus) == expected


def test_without_a_driver_the_tool_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "has_driver", lambda: False)
    assert describe_host().gpus == ()


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
