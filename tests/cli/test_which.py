"""`which` on a host with a GPU that is pretended, for a release whose plans begin as TensorRT's do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from modelreg.registry.clock import utc_now
from modelreg.registry.manifest import make_manifest
from modelreg.registry.pointers import next_pointer
from modelreg.registry.records import ToolchainRecord
from modelreg.registry.words import ActivationKind, Backend, Precision, Verdict
from modelreg.runtime.host import Gpu, _find_gpus
from modelreg_testing.cli import Shop
from modelreg_testing.plans import tensorrt_plan
from modelreg_testing.records import ORT, make_engine, make_version
from modelreg_testing.storage import stored_files
from modelreg_testing.toolchains import pretend_backend, pretend_python

FIND_GPUS = _find_gpus
H200 = Gpu(name="NVIDIA H200", target="sm_90", driver="580.159.04")
TRT = ToolchainRecord(
    id=2, name="trt", backend=Backend.TENSORRT, version="8.6.0.12", python="/p", details={"cuda": "12"}
)
COMPATIBLE = {"flags": [], "build": {"hardware_compatibility": "AMPERE_PLUS"}}


@pytest.fixture
def served(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """Serve engines for sm_90, sm_80 (compatible), sm_75 and the CPU to a host with an H200."""
    monkeypatch.setattr("modelreg.runtime.host._find_gpus", lambda: ((H200,), ""))
    engines = {
        "cpu": make_engine(1, toolchain=ORT),
        "sm_75": make_engine(2, Precision.INT8, target="sm_75", toolchain=TRT),
        "sm_80": replace(make_engine(3, Precision.INT8, target="sm_80", toolchain=TRT), recipe=COMPATIBLE),
        "sm_90": make_engine(4, Precision.FP16, target="sm_90", toolchain=TRT),
    }
    manifest = make_manifest(make_version(), engines)
    released = [
        engine._replace(files=stored_files(shop.storage, {engine.plan.path: tensorrt_plan("8.6.0.12")}))
        for engine in manifest.engines
    ]
    manifest = manifest._replace(engines=tuple(released))
    pointer = next_pointer(
        None,
        model="lenet",
        channel="production",
        release=shop.storage.publish_release(manifest.to_bytes(), manifest.files),
        version=1,
        kind=ActivationKind.PROMOTE,
        rolls_back_to=None,
        txn="t",
        actor="ada",
        message="",
        at=utc_now(),
        overridden=("sm_90 fp16: not validated, never run",),
    )
    shop.storage.swap_pointer(pointer, expected=None)
    return shop


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Give an interpreter that has TensorRT 8.6.0."""
    return pretend_python(tmp_path, {"tensorrt": pretend_backend("8.6.0")})


def test_the_best_engine_and_why_not_the_others(served: Shop, python: Path) -> None:
    lines = served.cli("which", "lenet@production", "--python", python).out.splitlines()
    assert lines[1:6] == [
        "  gates overridden: sm_90 fp16: not validated, never run",
        f"-> sm_90    fp16  tensorrt: runs on sm_90, in {python}",
        f"   sm_80    int8  tensorrt: runs on sm_90: built for sm_80 as AMPERE_PLUS, in {python}",
        f"   cpu      fp32  onnxruntime: runs on cpu, in {python}",
        "   sm_75    int8  tensorrt: needs sm_75; this host has sm_90, cpu",
    ]
    assert lines[6].endswith("/sm_90/model.onnx")


def test_explain_shows_every_check_and_the_rank(served: Shop, python: Path) -> None:
    told = served.cli("which", "lenet@production", "--explain", "--python", python).out
    assert [line.strip() for line in told.split("-> ")[1].splitlines()[1:6]] == [
        "plan     its header says tensorrt 8.6.0.12",
        "gpu      this host has sm_90",
        "backend  tensorrt 8.6.0 is here",
        "driver   driver 580.159.04 has CUDA 12",
        "gates    caveat: its gates were overridden: not validated, never run",
    ]
    assert "rank     behind sm_90 fp16: an exact match goes before a compatible one" in told
    assert "rank     behind sm_90 fp16: a GPU goes before the CPU" in told
    assert "gpu      built for sm_80 as AMPERE_PLUS, which sm_90 runs" in told
    assert "gpu      refused: needs sm_75; this host has sm_90, cpu" in told
    assert told.count("rank ") == 2


def test_the_document_has_the_checks_and_the_host(served: Shop, python: Path) -> None:
    document = served.cli("which", "lenet@production", "--python", python, "--json").document
    assert [each["versions"]["tensorrt"] for each in document["host"]["interpreters"]] == ["8.6.0"]
    best, compatible, *_, refused = document["engines"]
    assert (best["target"], best["chosen"], best["python"], best["runs_on"]) == ("sm_90", True, str(python), "sm_90")
    assert (compatible["hardware_compatibility"], compatible["runs_on"]) == ("AMPERE_PLUS", "sm_90")
    assert (refused["usable"], refused["runs_on"]) == (False, None)
    assert refused["checks"][1] == {
        "check": "gpu",
        "outcome": "refused",
        "finding": "needs sm_75; this host has sm_90, cpu",
    }


def test_what_config_says_serves_counts_and_an_option_goes_before_it(
    served: Shop, python: Path, tmp_path: Path
) -> None:
    (served.path / "config.toml").write_text(f'[serve]\npython = ["{python}", "/no/python"]\n')
    found = served.cli("which", "lenet@production")
    assert f"-> sm_90    fp16  tensorrt: runs on sm_90, in {python}" in found.out
    assert found.err == "modelreg: warning: there is no interpreter /no/python\n"
    newer = pretend_python(tmp_path, {"tensorrt": pretend_backend("10.3.0")}, name="newer")
    other = served.cli("which", "lenet@production", "--python", newer)
    assert "-> cpu      fp32  onnxruntime: runs on cpu" in other.out
    assert "sm_90    fp16  tensorrt: needs tensorrt 8.6.0.12; this host has 10.3.0" in other.out
    path = served.cli("which", "lenet@production", "--path-only", "--python", python)
    assert path.out.endswith("/sm_90/model.onnx\n")


def test_an_interpreter_that_is_named_and_not_there_is_an_error(served: Shop, python: Path) -> None:
    nothing = served.cli("which", "lenet@production", "--path-only", "--python", python, "--python", "/no/python")
    assert (nothing.code, nothing.out) == (1, "")
    assert nothing.err.startswith("modelreg: error: there is no interpreter /no/python\n")


@pytest.mark.parametrize(
    ("script", "warning"),
    [("exit 3", "it ends with 3"), ("echo garbage", "says 'garbage'"), (r"printf '\377'", "says '\ufffd'")],
)
def test_a_driver_that_cannot_be_asked_is_said_and_the_cpu_serves(
    served: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, warning: str
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("modelreg.runtime.host._find_gpus", FIND_GPUS)
    monkeypatch.setattr("modelreg.runtime.host.has_driver", lambda: True)
    which = served.cli("which", "lenet@production")
    assert which.code == 0
    assert "-> cpu" in which.out
    assert which.err.startswith("modelreg: warning: this host's GPUs are not known: ")
    assert warning in which.err
    pulled = served.cli("pull", "lenet@production", "--into", "served")
    assert warning in pulled.err


@pytest.mark.parametrize(
    ("script", "fact"),
    [(r"printf '\000'", "does not answer as a Python does"), ("echo garbage", "does not answer as a Python does")],
)
def test_an_odd_interpreter_is_named(served: Shop, tmp_path: Path, script: str, fact: str) -> None:
    python = tmp_path / "odd"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    refused = served.cli("which", "lenet@production", "--python", python)
    assert refused.code == 1
    assert f"{python} {fact}" in refused.err


def test_the_home_of_nobody_is_refused_in_one_line(served: Shop) -> None:
    refused = served.cli("which", "lenet@production", "--python", "~nobodyx/x")
    assert (refused.code, "nobody of that name has a home folder here" in refused.err) == (1, True)
    (served.path / "config.toml").write_text('[serve]\npython = ["~nobodyx/x"]\n')
    assert "there is no interpreter" in served.cli("which", "lenet@production").err


@pytest.fixture
def elsewhere(shop: Shop) -> Shop:
    """Serve an engine of another GPU to a host without one, before which a version was built for the CPU too."""
    shop.add_version(precisions=())
    shop.add_engine(target="sm_89", precision=Precision.FP16)
    shop.add_engine(target="sm_120", precision=Precision.FP16)
    assert shop.cli("promote", "lenet:1", "--to", "production").code == 0
    return shop


def test_where_nothing_is_built_for_this_host_its_target_is_named(
    elsewhere: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = elsewhere.cli("which", "lenet@production")
    assert [line.split()[0] for line in found.out.splitlines()[1:]] == ["sm_89", "sm_120"]
    assert found.code == 1
    assert found.err.endswith("Build one for it and promote it: modelreg build lenet:1 --target cpu\n")
    monkeypatch.setattr("modelreg.runtime.host._find_gpus", lambda: ((H200,), ""))
    assert elsewhere.cli("which", "lenet@production").err.endswith("modelreg build lenet:1 --target sm_90\n")
    elsewhere.database_path.unlink()
    assert elsewhere.cli("which", "lenet@production").err.endswith("modelreg build lenet:1 --target sm_90\n")


def test_where_an_engine_for_this_host_only_waits_for_promotion_the_hint_promotes_it(elsewhere: Shop) -> None:
    elsewhere.add_engine(precision=Precision.INT8, verdict=Verdict.FAIL)
    elsewhere.add_engine(verdict=None)
    waiting = elsewhere.cli("which", "lenet@production").err
    assert "Engine 4 (cpu fp32) runs here: not validated. Validate it, then promote it:" in waiting
    assert waiting.endswith("modelreg validate lenet:1 --engine 4\n")
    elsewhere.add_engine(variant={"excluded_nodes": ["/fc/Gemm"]})
    hint = elsewhere.cli("which", "lenet@production").err.splitlines()[-1]
    assert "Engine 5 (cpu fp32) runs here and passes; promote it: " in hint
    words = hint.partition("promote it: modelreg ")[2].split()
    assert elsewhere.cli(*words).code == 0
    found = elsewhere.cli("which", "lenet@production", "--json").document
    assert [each["target"] for each in found["engines"]] == ["cpu", "sm_89", "sm_120"]
