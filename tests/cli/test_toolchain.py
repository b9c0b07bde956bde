from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from modelreg.registry.toolchains.catalogue import register_toolchain
from modelreg.registry.toolchains.probing import Probe
from modelreg.registry.words import Backend
from modelreg_testing.cli import Shop
from modelreg_testing.toolchains import answering_python, pretend_backend, pretend_python


@pytest.fixture
def python(tmp_path: Path) -> Path:
    return pretend_python(tmp_path, {"tensorrt_rtx": pretend_backend("1.6.1.120", targets=(86, 89))})


def test_a_toolchain_is_added_listed_and_removed(shop: Shop, python: Path) -> None:
    added = shop.cli("toolchain", "add", "rtx", "--python", python)
    assert added.code == 0, added.err
    assert added.out.splitlines()[0] == "toolchain rtx added: tensorrt-rtx 1.6.1.120"
    assert "builds for sm_86, sm_89" in added.out
    assert "is registered already" in shop.cli("toolchain", "add", "rtx", "--python", python).out
    rows = [line.split() for line in shop.cli("toolchain", "list").out.splitlines()]
    assert rows[1][0] == "onnxruntime"
    assert rows[2] == ["rtx", "tensorrt-rtx", "1.6.1.120", "sm_86,", "sm_89", "usable"]
    assert "out of use" in shop.cli("toolchain", "remove", "rtx").out
    names = [each["name"] for each in shop.cli("toolchain", "list", "--json").document["toolchains"]]
    assert names == ["onnxruntime"]
    assert shop.cli("verify", "--events").code == 0


def test_the_list_says_what_changed_since(shop: Shop, python: Path, tmp_path: Path) -> None:
    assert shop.cli("toolchain", "add", "rtx", "--python", python).code == 0
    pretend_python(tmp_path, {"tensorrt_rtx": pretend_backend("1.7.1.116", targets=(86, 89))})
    listed = shop.cli("toolchain", "list")
    assert listed.code == 0
    assert "changed" in listed.out
    assert "rtx: version was 1.6.1.120, is 1.7.1.116" in listed.out
    python.unlink()
    entry = shop.cli("toolchain", "list", "--json").document["toolchains"][1]
    assert (entry["state"], entry["reason"]) == ("missing", f"there is no interpreter {python}")


def test_a_dry_run_keeps_nothing(shop: Shop, python: Path) -> None:
    dry = shop.cli("toolchain", "add", "rtx", "--python", python, "--dry-run")
    assert "would be added" in dry.out
    assert len(shop.cli("toolchain", "list", "--json").document["toolchains"]) == 1
    document = shop.cli("toolchain", "add", "rtx", "--python", python, "--json").document
    assert (document["changed"], document["toolchain"]["version"]) == (True, "1.6.1.120")
    assert "would be taken" in shop.cli("toolchain", "remove", "rtx", "--dry-run").out
    assert shop.cli("toolchain", "remove", "rtx", "--json").document["removed"]["name"] == "rtx"


@pytest.mark.parametrize(
    ("words", "code", "fact"),
    [
        (("add", "x", "--python", "/no/python"), 1, "there is no interpreter /no/python"),
        (("add", "x", "--python", sys.executable, "--backend", "tensorrt"), 1, "has no tensorrt, it has"),
        (("add", "x", "--python", sys.executable, "--backend", "cuda"), 2, "'cuda' is not one of"),
        (("add", "a b", "--python", sys.executable), 2, "a b"),
        (("add", "onnxruntime", "--python", sys.executable, "--backend", "onnxruntime"), 2, "comes with"),
        (("remove", "x"), 1, "there is no toolchain 'x'"),
    ],
)
def test_what_cannot_be_added_or_removed_is_one_line(shop: Shop, words: tuple[str, ...], code: int, fact: str) -> None:
    refused = shop.cli("toolchain", *words)
    assert refused.code == code
    assert fact in refused.err
    assert refused.out == ""


@pytest.mark.parametrize(
    ("probe", "fact"),
    [
        ('{"version":5,"targets":7,"cuda":{}}', "no version: 5"),
        ('{"version":"1.7","python_version":"3.10","platform":"p","module":"m","cuda":""}', "no usable targets: None"),
    ],
)
def test_an_odd_answer_is_refused_before_anything_is_written(shop: Shop, tmp_path: Path, probe: str, fact: str) -> None:
    found = '{"kind":"result","body":{"backends":["tensorrt-rtx"]}}'
    python = answering_python(tmp_path, find=found, probe=f'{{"kind":"result","body":{probe}}}')
    refused = shop.cli("toolchain", "add", "poison", "--python", python)
    assert refused.code == 1
    assert fact in refused.err
    assert "internal error" not in refused.err
    assert len(shop.cli("toolchain", "list", "--json").document["toolchains"]) == 1


def test_an_odd_answer_that_is_kept_blocks_nothing(shop: Shop, python: Path) -> None:
    probe = Probe(backend=Backend.TENSORRT_RTX, version="5", python=str(python), details={"targets": 7, "cuda": {}})
    with shop.database() as database, database.write() as connection:
        register_toolchain(connection, name="poison", probe=probe, actor="ada")
    assert shop.cli("toolchain", "add", "rtx", "--python", python).code == 0
    listed = shop.cli("toolchain", "list")
    assert listed.code == 0, listed.err
    assert "poison: version was 5, is 1.6.1.120" in listed.out
    shop.add_version()
    planned = shop.cli("build", "lenet:1", "--target", "sm_89", "--dry-run")
    assert planned.code == 0, planned.err


def test_the_time_limit_of_a_build_bounds_the_start_of_its_interpreter(shop: Shop, tmp_path: Path) -> None:
    sleeper = tmp_path / "python"
    sleeper.write_text("#!/bin/sh\nexec sleep 60\n")
    sleeper.chmod(0o755)
    probe = Probe(
        backend=Backend.TENSORRT_RTX, version="1.7.1.116", python=str(sleeper), details={"targets": ["sm_89"]}
    )
    with shop.database() as database, database.write() as connection:
        register_toolchain(connection, name="rtx", probe=probe, actor="ada")
    shop.add_version()
    began = time.monotonic()
    built = shop.cli("build", "lenet:1", "--target", "sm_89", "--precision", "fp32", "--timeout", "1")
    assert time.monotonic() - began < 20
    assert built.code == 1
    assert "took longer than 1 s" in built.out + built.err


def test_an_interpreter_that_segfaults_is_no_toolchain(shop: Shop, tmp_path: Path) -> None:
    python = pretend_python(tmp_path, {"tensorrt": "import ctypes\nctypes.string_at(0)"})
    refused = shop.cli("toolchain", "add", "trt", "--python", python, "--backend", "tensorrt")
    assert refused.code == 1
    assert "SIGSEGV" in refused.err
    assert len(shop.cli("toolchain", "list", "--json").document["toolchains"]) == 1


def test_a_registry_that_cannot_be_written_is_said_before_the_probe(shop: Shop, python: Path) -> None:
    (shop.path / "config.toml").write_text("[limits]\nlock_timeout_s = 0.2\n")
    with shop.database() as database, database.write():
        refused = shop.cli("toolchain", "add", "rtx", "--python", python)
        assert shop.cli("toolchain", "add", "rtx", "--python", python, "--dry-run").code == 0
    assert refused.code == 4
    assert "stayed locked" in refused.err
    assert "probing" not in refused.err
