"""There is one version number: `cli/version.py` has it, everything else reads it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import version

from modelreg.cli.version import __version__
from modelreg_testing.checkout import ROOT, read_pyproject


def test_the_installed_package_has_the_version_of_the_code() -> None:
    assert version("modelreg") == __version__


def test_pyproject_reads_the_version_and_does_not_repeat_it() -> None:
    pyproject = read_pyproject()
    assert "version" not in pyproject["project"]
    assert pyproject["tool"]["setuptools"]["dynamic"]["version"]["attr"] == "cli.version.__version__"


def test_the_command_tells_it_without_reading_the_installed_metadata() -> None:
    script = (
        "import sys\n"
        "from modelreg.cli.main import run\n"
        "code = run(['--version'])\n"
        "sys.exit(code or 'importlib.metadata' in sys.modules)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith("COV")},  # it imports a lot
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.split()[-1] == __version__


def test_the_changelog_starts_with_unreleased_and_names_no_newer_version() -> None:
    sections = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sections[0] == "Unreleased"
    assert sections[1:2] in ([], [__version__])
