from __future__ import annotations

import sys
from pathlib import Path

import pytest

from modelreg.registry.words import Backend
from modelreg.runtime import interpreters
from modelreg.runtime.host import describe_serving_host
from modelreg.runtime.interpreters import ask_interpreter
from modelreg_testing.toolchains import pretend_backend, pretend_python


def test_an_interpreter_says_what_it_could_import(tmp_path: Path) -> None:
    python = pretend_python(tmp_path, {"tensorrt": pretend_backend("8.6.0")})
    found = ask_interpreter(str(python))
    assert (found.path, found.problem) == (str(python), "")
    assert found.versions[Backend.TENSORRT] == "8.6.0"


def test_nothing_is_imported_there(tmp_path: Path) -> None:
    python = pretend_python(tmp_path, {"tensorrt": "raise SystemExit('imported')\n__version__ = '10.3.0'"})
    assert ask_interpreter(str(python)).versions[Backend.TENSORRT] == "10.3.0"


def test_a_module_without_a_version_in_its_text_is_there_all_the_same(tmp_path: Path) -> None:
    modules = {"tensorrt": "from tensorrt_bindings import *", "tensorrt_bindings": "__version__ = '10.3.0'"}
    python = pretend_python(tmp_path, modules)
    assert ask_interpreter(str(python)).versions[Backend.TENSORRT] == "10.3.0"
    (tmp_path / "python-modules" / "tensorrt_bindings.py").unlink()
    assert ask_interpreter(str(python)).versions[Backend.TENSORRT] == ""


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("exit 3", "cannot be asked: it ends with 3"),
        ("echo 'no libc' >&2; exit 1", "cannot be asked: no libc"),
        ("exec sleep 60", "cannot be asked: it did not answer within 0.5 s"),
        ("echo garbage", "does not answer as a Python does: 'garbage'"),
        ("exit 0", "does not answer as a Python does: ''"),
        (r"printf '\377\000x'", "does not answer as a Python does: '\ufffd\\x00x'"),
        (r"""echo '["/a\\u0000b"]'""", "does not answer as a Python does: "),
        (r"""echo '["\\ud800"]'""", "does not answer as a Python does: "),
        ("echo '[7]'", "does not answer as a Python does: '[7]'"),
        ("echo 7", "does not answer as a Python does: '7'"),
    ],
)
def test_an_interpreter_that_cannot_be_asked_has_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, problem: str
) -> None:
    monkeypatch.setattr(interpreters, "_TIMEOUT_S", 0.5)
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    found = ask_interpreter(str(python))
    assert found.versions == {}
    assert problem in found.problem


def test_a_python_that_greets_first_is_a_python(tmp_path: Path) -> None:
    python = pretend_python(tmp_path, {"sitecustomize": "print('welcome', end='')"})
    assert ask_interpreter(str(python)).problem == ""


def test_the_home_of_nobody_is_a_problem() -> None:
    assert "nobody of that name" in ask_interpreter("~nobodyx/x").problem


def test_an_interpreter_that_is_not_there_has_a_problem(tmp_path: Path) -> None:
    found = ask_interpreter(str(tmp_path / "python"))
    assert found == (str(tmp_path / "python"), {}, f"there is no interpreter {tmp_path / 'python'}")
    (tmp_path / "python").write_text("no program")
    assert "Permission denied" in ask_interpreter(str(tmp_path / "python")).problem


def test_interpreters_that_are_named_load_plans_in_place_of_our_own(tmp_path: Path) -> None:
    python = pretend_python(tmp_path, {"tensorrt": pretend_backend("8.6.0")})
    host = describe_serving_host([str(python), "/no/python"])
    assert host.installations(Backend.TENSORRT) == ((str(python), "8.6.0"),)
    assert host.backends == frozenset()
    assert [each["problem"] for each in host.to_json()["interpreters"]] == ["", "there is no interpreter /no/python"]
    own = describe_serving_host([])
    assert own.installations(Backend.ONNXRUNTIME)[0][0] == ""
    assert own.interpreters == ()
    assert describe_serving_host([sys.executable]).installations(Backend.ONNXRUNTIME)[0][0] == sys.executable
