"""What each release has, and what our job files ask of it, against the recorded API of every release."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import modelreg.builders.trt as builder_job
import modelreg.registry.toolchains.trt_session as session_module
import modelreg.runtime.trt as runner_job
import modelreg.runtime.trt_bench as bench_job
from modelreg.builders import trt_calibrator, trt_config, trt_network, trt_rtx
from modelreg.builders.precision import offered, translate
from modelreg.builders.trt_capabilities import CAPABILITIES, has, version_numbers
from modelreg.builders.trt_options import TensorRTOptions
from modelreg.registry.toolchains import trt_debug, trt_log
from modelreg.registry.words import Backend, Precision

API = json.loads((Path(__file__).parent / "recorded" / "api.json").read_text())
RELEASES: list[str] = API["releases"]

FULL = [builder_job, trt_calibrator, trt_config, trt_network, trt_log, trt_debug, session_module, runner_job]
FULL += [bench_job]
RTX = [trt_rtx, trt_config, trt_network, trt_log, trt_debug, session_module, runner_job, bench_job]

CLASSES = {
    "builder": "Builder",
    "config": "IBuilderConfig",
    "network": "INetworkDefinition",
    "parser": "OnnxParser",
    "error": "ParserError",
    "layer": "ILayer",
    "tensor": "ITensor",
    "profile": "IOptimizationProfile",
    "runtime": "Runtime",
    "engine": "ICudaEngine",
    "_context": "IExecutionContext",
    "context": "IExecutionContext",
    "inspector": "EngineInspector",
    "cache": "ITimingCache",
}
"""What a variable or attribute of this name is in our job files."""

PYTHONS = ("__members__", "__init__")

EXCEPTIONS = {
    # `engine` and `error` are other things in these files
    "modelreg.runtime.trt": {"engine"},
}


def has_name(member: str, release: str) -> bool:
    """Return whether a release has `Class.member`; members that every layer has are listed under `ILayer`."""
    owner, name = member.split(".")
    versions = API["names"].get(owner, {}).get(name, [])
    return versions == "all" or RELEASES.index(release) in versions


def asked_names(path: Path) -> Iterator[str]:
    """Yield what a job file asks of TensorRT, as `Class.member`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Attribute):
            continue
        owner = node.value
        if isinstance(owner, ast.Attribute) and isinstance(owner.value, ast.Name) and owner.value.id == "trt":
            yield f"{owner.attr}.{node.attr}"  # trt.DataType.FLOAT
        elif isinstance(owner, ast.Name) and owner.id == "trt":
            yield f"top.{node.attr}"
        elif isinstance(owner, ast.Name) and owner.id in CLASSES:
            yield f"{CLASSES[owner.id]}.{node.attr}"
        elif isinstance(owner, ast.Attribute) and owner.attr in CLASSES and isinstance(owner.value, ast.Name):
            yield f"{CLASSES[owner.attr]}.{node.attr}"  # self.engine.num_io_tensors


def guards(member: str) -> list[str]:
    return [name for name, capability in CAPABILITIES.items() if member in capability.api]


@pytest.mark.parametrize("release", RELEASES)
def test_the_table_of_capabilities_agrees_with_the_recorded_api(release: str) -> None:
    backend, version = release.split()
    for name, capability in CAPABILITIES.items():
        is_there = all(has_name(member, release) for member in capability.api)
        if backend == "tensorrt":
            assert has(name, backend, version) is is_there, name
        else:  # RTX has names that do nothing there
            assert is_there or not has(name, backend, version), name


@pytest.mark.parametrize("release", RELEASES)
def test_our_calls_exist_in_every_release_or_are_guarded_by_a_capability(release: str) -> None:
    backend, version = release.split()
    asked: set[str] = set()
    for module in FULL if backend == "tensorrt" else RTX:
        skipped = {CLASSES[name] for name in EXCEPTIONS.get(module.__name__, ())}
        asked |= {name for name in asked_names(Path(str(module.__file__))) if name.split(".")[0] not in skipped}
    known = {"top.__version__"}
    missing = {name for name in asked - known if name.split(".")[1] not in PYTHONS and not has_name(name, release)}
    unguarded = {
        name
        for name in missing
        if not guards(name) or any(has(capability, backend, version) for capability in guards(name))
    }
    assert not unguarded
    assert len(asked) > 30


@pytest.mark.parametrize("release", RELEASES)
def test_every_flag_that_a_precision_or_option_means_is_one_of_the_release(release: str) -> None:
    backend, version = Backend(release.split(maxsplit=1)[0]), release.split()[1]
    translations = [translate(Precision(name), backend, version) for name in offered(backend, version)]
    assert len(translations) >= 4
    flags = {flag for each in translations for flag in each.flags}
    every = TensorRTOptions(version_compatible=True, refit=True, gpu_fallback=True, pin_tactics=True)
    named = {
        "VERSION_COMPATIBLE": "version compatible",
        "REFIT": "refit",
        "ERROR_ON_TIMING_CACHE_MISS": "pinned tactics",
    }
    flags |= {flag for flag in every.flags if has(named.get(flag, "dla"), str(backend), version)}
    assert {flag for flag in flags if not has_name(f"BuilderFlag.{flag}", release)} == set()
    assert {each.typing for each in translations} <= {"weak", "strong", ""}


def test_a_call_that_no_release_has_would_be_found(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text("def f(config, trt):\n    config.max_workspace_size = 1\n    trt.BuilderFlag.STRICT_TYPES\n")
    assert set(asked_names(job)) == {"IBuilderConfig.max_workspace_size", "BuilderFlag.STRICT_TYPES", "top.BuilderFlag"}
    assert not has_name("IBuilderConfig.max_workspace_size", "tensorrt 10.0.1")
    assert has_name("IBuilderConfig.max_workspace_size", "tensorrt 8.6.0")
    assert guards("IBuilderConfig.max_workspace_size") == []


@pytest.mark.parametrize(
    ("capability", "version", "there"),
    [
        ("strong typing", "8.6.0", False),
        ("strong typing", "10.12.0.36", True),
        ("flag FP16", "10.16.1.11", True),
        ("flag FP16", "11.0.0.114", False),
        ("flag BF16", "8.6.0.12", False),
        ("implicit calibration", "11.4", False),
        ("pinned tactics", "8.6.0", False),
    ],
)
def test_versions_differ(capability: str, version: str, there: bool) -> None:
    assert has(capability, "tensorrt", version) is there


def test_a_capability_that_is_not_in_the_table_is_a_mistake() -> None:
    with pytest.raises(KeyError):
        has("time travel", "tensorrt", "11.0")
    assert version_numbers("11.4.0.106") == (11, 4, 0, 106)
