"""The Makefile says what is missing in one line, and the docs name only targets that it has."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from modelreg_testing.checkout import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make in the root."""
    return subprocess.run(["make", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def pretend_python(folder: Path, change: str) -> Path:
    """Write an interpreter that runs `change` before any `-c` program, and can do nothing else."""
    path = folder / "pretend-python"
    path.write_text(f"#!{sys.executable}\nimport sys\n{change}\nassert sys.argv[1] == '-c'\nexec(sys.argv[2])\n")
    path.chmod(0o755)
    return path


def test_help_lists_every_target_of_the_makefile() -> None:
    listed = {line.split()[0] for line in make("help").stdout.splitlines()}
    assert listed >= {"demo", "test", "lint", "types", "imports", "wheel-test", "check", "clean"}
    assert make().stdout == make("help").stdout


def test_the_docs_name_only_targets_that_exist() -> None:
    targets = {line.split()[0] for line in make("help").stdout.splitlines()}
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    named = set(re.findall(r"(?:^    |`)(?:\w+=\S+ )*make ([a-z-]+)", text, flags=re.MULTILINE))
    assert "test" in named
    assert named <= targets


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("sys.version_info = (3, 9, 18)", "modelreg needs Python 3.10 or newer, and {python} is 3.9"),
        ("sys.modules['ensurepip'] = None", "{python} cannot make virtual environments"),
    ],
    ids=["an old Python", "a Python without ensurepip"],
)
def test_an_unfit_interpreter_is_refused_in_one_line(tmp_path: Path, change: str, message: str) -> None:
    python, venv = pretend_python(tmp_path, change), tmp_path / "venv"
    finished = make("demo", f"PYTHON={python}", f"VENV={venv}")
    assert finished.returncode != 0
    assert finished.stderr.startswith(message.format(python=python))
    assert len(finished.stderr.splitlines()) == 2  # ours, and make's own
    assert not venv.exists()


def test_a_missing_interpreter_is_named(tmp_path: Path) -> None:
    finished = make("demo", f"PYTHON={tmp_path}/python3.99", f"VENV={tmp_path}/venv")
    assert finished.returncode != 0
    assert finished.stderr.startswith(f"There is no {tmp_path}/python3.99 here")
