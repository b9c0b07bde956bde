from __future__ import annotations

import ctypes
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from modelreg.registry.errors import ToolchainError
from modelreg.registry.records import ToolchainRecord
from modelreg.registry.toolchains import probe as job
from modelreg.registry.toolchains.probing import (
    Probe,
    ToolchainState,
    glance,
    locate_python,
    look_again,
    probe_python,
)
from modelreg.registry.words import Backend
from modelreg_testing.toolchains import answering_python, bare_python, needs_rtx, pretend_backend, pretend_python

TRT, RTX, ORT = Backend.TENSORRT, Backend.TENSORRT_RTX, Backend.ONNXRUNTIME


def record_of(probe: Probe) -> ToolchainRecord:
    return ToolchainRecord(
        id=1, name="t", backend=probe.backend, version=probe.version, python=probe.python, details=probe.details
    )


def test_the_backend_its_exact_version_and_its_targets_are_found(tmp_path: Path) -> None:
    python = pretend_python(tmp_path, {"tensorrt_rtx": pretend_backend("1.6.1.120", targets=(86, 120))})
    probe = probe_python(str(python))
    assert (probe.backend, probe.version, probe.python) == (RTX, "1.6.1.120", str(python))
    assert probe.details["targets"] == ["sm_86", "sm_120"]
    assert probe.details["python_version"].startswith("3.")
    assert probe.details["module"] == "tensorrt_rtx"


@needs_rtx
def test_the_real_rtx_is_found_beside_onnxruntime() -> None:
    probe = probe_python(sys.executable)
    assert probe.backend is RTX
    assert probe.version.count(".") == 3
    assert {"sm_75", "sm_86", "sm_89", "sm_120"} <= set(probe.details["targets"])
    assert probe.details["cuda"] in ("12", "13")


def test_onnxruntime_is_taken_when_it_is_asked_for() -> None:
    probe = probe_python(sys.executable, backend=ORT)
    assert probe.backend is ORT
    assert "CPUExecutionProvider" in probe.details["providers"]


def test_two_backends_need_a_word_on_which(tmp_path: Path) -> None:
    modules = {"tensorrt_rtx": pretend_backend("1.7.1.116"), "tensorrt": pretend_backend("10.3.0.26")}
    python = str(pretend_python(tmp_path, modules))
    with pytest.raises(ToolchainError, match="has tensorrt-rtx and tensorrt") as caught:
        probe_python(python)
    assert "--backend" in caught.value.hint()
    assert probe_python(python, backend=TRT).version == "10.3.0.26"


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("import ctypes\nctypes.string_at(0)", r"was killed by SIGSEGV.* while importing tensorrt"),
        ("raise ImportError('libcudart.so.12: cannot open')", r"ImportError: libcudart.so.12: cannot open"),
        (pretend_backend("8.6.0", builder="import ctypes; ctypes.string_at(0)"), "while making a builder of tensorrt"),
        (
            pretend_backend("8.6.0", builder="raise TypeError('factory function returned nullptr')"),
            r"tensorrt makes no builder here \(no NVIDIA driver\?\): factory function returned nullptr",
        ),
        ("__version__ = '11.4.0.106'", "tensorrt has no builder: it is a runtime only"),
        ("import os; os.kill(os.getpid(), 9)", r"was killed by SIGKILL"),
    ],
)
def test_a_backend_that_cannot_be_used_says_why(tmp_path: Path, text: str, fact: str) -> None:
    python = pretend_python(tmp_path, {"tensorrt": text})
    with pytest.raises(ToolchainError, match=fact):
        probe_python(str(python), backend=TRT)


def test_a_backend_that_hangs_has_an_end(tmp_path: Path) -> None:
    python = pretend_python(tmp_path, {"tensorrt": "import time\ntime.sleep(60)"})
    with pytest.raises(ToolchainError, match=r"took longer than 1 s .* while importing tensorrt"):
        probe_python(str(python), backend=TRT, timeout_s=1.0)


def test_an_interpreter_without_the_backend_says_what_it_has(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=r"has no tensorrt, it has .*onnxruntime"):
        probe_python(sys.executable, backend=TRT)


def test_a_program_that_is_no_python_says_so(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho hello\n")
    program.chmod(0o755)
    with pytest.raises(ToolchainError, match=r"cannot be used: .*garbage"):
        probe_python(str(program))


@pytest.mark.parametrize(
    "answer",
    [
        '{"kind": "result", "body": null}',
        '{"kind": "result", "body": {"backends": ["evil"]}}',
        '{"kind": "error", "message": "odd", "details": 5}',
        "[" * 1_000_000,
    ],
    ids=lambda text: text[:40],
)
def test_an_odd_answer_names_the_interpreter(tmp_path: Path, answer: str) -> None:
    python = answering_python(tmp_path, find=answer)
    with pytest.raises(ToolchainError, match=f"{python} cannot be used: "):
        probe_python(str(python))


def test_the_home_of_nobody_is_no_interpreter() -> None:
    with pytest.raises(ToolchainError, match="there is no interpreter ~nobodyx/x: nobody of that name"):
        locate_python("~nobodyx/x")


def test_the_interpreter_is_a_path_a_venv_or_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    assert locate_python(str(tmp_path / "venv")) == str(python)
    monkeypatch.setenv("PATH", str(python.parent))
    assert locate_python("python") == str(python)
    assert locate_python(str(tmp_path / "venv" / ".." / "venv" / "bin" / "python")) == str(python)
    assert locate_python(str(tmp_path / "venv" / ".." / "venv")) == str(python)
    elsewhere = tmp_path / "deep" / "link"
    elsewhere.parent.mkdir()
    elsewhere.symlink_to(tmp_path / "venv")  # its `..` is the folder of the venv, and not of the link
    behind = f"{elsewhere}/../venv/bin/python"
    assert locate_python(behind) == behind
    for nowhere in ("python9", str(tmp_path / "absent"), str(tmp_path)):
        with pytest.raises(ToolchainError, match="there is no interpreter"):
            locate_python(nowhere)


def test_a_toolchain_as_registered_is_usable(tmp_path: Path) -> None:
    python = pretend_python(tmp_path, {"tensorrt_rtx": pretend_backend("1.6.1.120", targets=(86,))})
    standing = look_again(record_of(probe_python(str(python))))
    assert standing.state is ToolchainState.USABLE
    assert "was" not in standing.reason


MODULES = {"numpy": "", "cuda": "__path__ = [__file__ + '-parts']"}


@pytest.mark.parametrize(
    ("backend", "absent", "said"),
    [
        ("tensorrt_rtx", (), ""),
        (
            "tensorrt_rtx",
            ("numpy", "cuda"),
            "builds only: numpy and cuda-bindings are missing, needed to run plans (validate, serve, bench): ",
        ),
        ("tensorrt", ("numpy",), "neither builds nor runs: numpy is missing, needed for both: "),
    ],
)
def test_what_an_interpreter_lacks_to_run_plans_is_told(
    tmp_path: Path, backend: str, absent: tuple[str, ...], said: str
) -> None:
    modules = {name: text for name, text in MODULES.items() if name not in absent}
    python = bare_python(tmp_path, {backend: pretend_backend("10.3.0.26", targets=(86,)), **modules})
    if "cuda" not in absent:
        parts = tmp_path / "python-modules" / "cuda.py-parts" / "bindings"
        parts.mkdir(parents=True)
        for name in ("__init__", "runtime"):
            (parts / f"{name}.py").write_text("")
    probe = probe_python(str(python))
    assert probe.lacks == tuple({"numpy": "numpy", "cuda": "cuda-bindings"}[name] for name in absent)
    expected = f"{said}{python} -m pip install {' '.join(probe.lacks)}" if said else ""
    assert (probe.say_lack(), look_again(record_of(probe)).reason) == (expected, expected)
    assert look_again(record_of(probe)).state is ToolchainState.USABLE


def test_an_upgrade_in_its_place_is_a_change(tmp_path: Path) -> None:
    python = pretend_python(tmp_path, {"tensorrt_rtx": pretend_backend("1.6.1.120", targets=(86,))})
    record = record_of(probe_python(str(python)))
    pretend_python(tmp_path, {"tensorrt_rtx": pretend_backend("1.7.1.116", targets=(86, 121))})
    standing = look_again(record)
    assert standing.state is ToolchainState.CHANGED
    assert "version was 1.6.1.120, is 1.7.1.116" in standing.reason
    assert "targets was sm_86, is sm_86, sm_121" in standing.reason


def test_what_is_gone_is_missing_and_what_crashes_is_unusable(tmp_path: Path) -> None:
    python = pretend_python(tmp_path, {"tensorrt": pretend_backend("10.3.0.26")})
    record = record_of(probe_python(str(python), backend=TRT))
    (tmp_path / "python-modules" / "tensorrt.py").write_text("import os; os.abort()")
    crashed = look_again(record)
    assert (crashed.state, "SIGABRT" in crashed.reason) == (ToolchainState.UNUSABLE, True)
    (tmp_path / "python-modules" / "tensorrt.py").unlink()
    gone = look_again(record)
    assert (gone.state, "tensorrt is not installed" in gone.reason) == (ToolchainState.MISSING, True)
    nowhere = look_again(replace(record, python=str(tmp_path / "absent")))
    assert (nowhere.state, "there is no interpreter" in nowhere.reason) == (ToolchainState.MISSING, True)


def test_a_short_version_gets_its_build_number_from_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert job._exact_version("8.6.0") == "8.6.0"  # no library is loaded in this process

    class Library:
        @staticmethod
        def getInferLibBuildVersion() -> int:  # noqa: N802 - TensorRT's name
            return 12

    monkeypatch.setattr(job, "_mapped_library", lambda: "libnvinfer.so.8")
    monkeypatch.setattr(ctypes, "CDLL", lambda _path: Library)
    assert job._exact_version("8.6.0") == "8.6.0.12"


def test_a_glance_sees_what_is_gone_or_changed_without_importing_anything(tmp_path: Path) -> None:
    python = pretend_python(tmp_path, {"tensorrt": "raise RuntimeError('imported')"})
    usable, no_reason = glance(str(python), backend=TRT, version="10.3.0.26")
    assert (usable, no_reason) == (ToolchainState.USABLE, "")
    modules = tmp_path / "python-modules"
    package = modules / "tensorrt_cu12_bindings-10.4.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: tensorrt-cu12-bindings\nVersion: 10.4.0\n")
    assert glance(str(python), backend=TRT, version="10.4.0.26")[0] is ToolchainState.USABLE
    assert glance(str(python), backend=TRT, version="10.3.0.26") == (
        ToolchainState.CHANGED,
        "version was 10.3.0.26, is 10.4.0",
    )
    (modules / "tensorrt.py").unlink()
    (modules / "tensorrt").mkdir()  # what an uninstallation leaves behind
    assert glance(str(python), backend=TRT, version="10.4.0")[0] is ToolchainState.MISSING
    python.unlink()
    state, reason = glance(str(python), backend=TRT, version="10.4.0")
    assert (state, reason) == (ToolchainState.MISSING, f"there is no interpreter {python}")


@needs_rtx
def test_a_glance_knows_the_version_of_the_real_rtx() -> None:
    probe = probe_python(sys.executable)
    assert glance(sys.executable, backend=RTX, version=probe.version) == (ToolchainState.USABLE, "")
    assert glance(sys.executable, backend=RTX, version="1.4.0.76") == (
        ToolchainState.CHANGED,
        f"version was 1.4.0.76, is {probe.version}",
    )


def test_a_program_that_hangs_or_is_no_python_is_unusable_at_a_glance(tmp_path: Path) -> None:
    for text, fact in (("exec sleep 60", "took longer than 0.5 s"), ("echo hello", "garbage")):
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\n{text}\n")
        python.chmod(0o755)
        state, reason = glance(str(python), backend=TRT, version="10.4.0", timeout_s=0.5)
        assert state is ToolchainState.UNUSABLE
        assert fact in reason
