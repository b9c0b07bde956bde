"""The demo, as `make demo` runs it: it goes through to its end, and leaves what it says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from modelreg_testing.checkout import ROOT

SCRIPT = ROOT / "examples" / "lenet" / "demo.sh"

STEPS = [
    *["init", "register", "build", "validate", "promote"],
    *["register", "build", "validate", "promote"],
    *["which", "rollback", "history", "show"],
]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """Return an environment whose `modelreg` is the one under test."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("MODELREG_")}
    return {**own, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "120", "NO_COLOR": "1"}


@pytest.fixture(scope="module")
def demo(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Run the demo from a folder that is not the checkout; return its registry and what it printed."""
    folder = tmp_path_factory.mktemp("demo")
    finished = subprocess.run(
        [SCRIPT, folder / "here"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout
    return folder / "here" / "registry", finished.stdout


def ask(demo: tuple[Path, str], environment: dict[str, str], *arguments: str) -> Any:
    """Return what modelreg says of the demo's registry, as JSON."""
    command = ["modelreg", "--home", str(demo[0]), "--json", *arguments]
    return json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)


def test_every_command_is_shown_before_its_output(demo: tuple[Path, str]) -> None:
    assert re.findall(r"^\$ modelreg (\S+)", demo[1], flags=re.MULTILINE) == STEPS


def test_the_commands_shown_can_be_pasted_into_a_shell(demo: tuple[Path, str]) -> None:
    (first, *_) = re.findall(r"^\$ (modelreg register .*)$", demo[1], flags=re.MULTILINE)
    words = subprocess.run(["bash", "-c", f"printf '%s\\n' {first}"], capture_output=True, text=True, check=True)
    files = "examples/lenet"
    assert words.stdout.splitlines() == [
        *["modelreg", "register", "lenet", f"{files}/lenet-v1.onnx"],
        *["--golden", f"{files}/golden-v1.npz", "--message", "first LeNet"],
    ]


def test_three_precisions_of_both_versions_pass_their_gates(
    demo: tuple[Path, str], environment: dict[str, str]
) -> None:
    for version in ("lenet:1", "lenet:2"):
        engines = ask(demo, environment, "show", version)["engines"]
        assert sorted(engine["precision"] for engine in engines) == ["fp16", "fp32", "int8"]
        assert {engine["validation"]["verdict"] for engine in engines} == {"pass"}


def test_production_went_forward_twice_and_back_once(demo: tuple[Path, str], environment: dict[str, str]) -> None:
    generations = ask(demo, environment, "history", "lenet", "--channel", "production")["generations"]
    told = [(one["generation"], one["version"], one["kind"]) for one in generations]
    assert told == [(3, 1, "rollback"), (2, 2, "promote"), (1, 1, "promote")]
    assert ask(demo, environment, "which", "lenet@production")["version"] == 1


def test_the_registry_is_in_order_afterwards(demo: tuple[Path, str], environment: dict[str, str]) -> None:
    ask(demo, environment, "verify")
    ask(demo, environment, "doctor")


def test_the_commands_to_go_on_with_work(demo: tuple[Path, str], environment: dict[str, str]) -> None:
    _, advice = demo[1].split("# Go on with this registry:\n")
    script = re.sub(r" {2,}.*", "", advice)
    subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=ROOT, env=environment, check=True)


def test_a_folder_that_exists_is_left_alone(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "kept").touch()
    finished = subprocess.run([SCRIPT, tmp_path], env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 1
    assert finished.stderr == f"{tmp_path} exists: name a folder that does not\n"
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_second_run_keeps_the_registry_of_the_first(environment: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "examples" / "lenet" / "demo.sh"
    script.parent.mkdir(parents=True)
    shutil.copy(SCRIPT, script)
    for name in ("registry", "registry-2", "registry-3"):
        finished = subprocess.run([script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert finished.returncode != 0, "there is no model beside this copy: it ends after `init`"
        assert f"{tmp_path}/.demo/{name} is a registry now" in finished.stdout
        assert ("an earlier run is kept" in finished.stdout) == (name != "registry")
    assert sorted(path.name for path in (tmp_path / ".demo").iterdir()) == ["registry", "registry-2", "registry-3"]


def test_without_modelreg_it_says_how_to_get_it(environment: dict[str, str], tmp_path: Path) -> None:
    finished = subprocess.run(
        [SCRIPT, tmp_path / "here"],
        env={**environment, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 1
    assert "make demo" in finished.stderr
    assert not (tmp_path / "here").exists()
