"""Where the tests lie: in a checkout, or (`make wheel-test`) in a folder without the packages, which are installed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[3]
"""The folder with pyproject.toml, tests/ and examples/."""

has_packages = (ROOT / "registry" / "__init__.py").is_file()
"""Whether the packages' own folders are here too."""

needs_checkout = pytest.mark.skipif(not has_packages, reason="looks at the packages' folders; none beside the wheel")


def read_pyproject() -> dict[str, Any]:
    """Return pyproject.toml."""
    pyproject: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return pyproject


def package_folders() -> dict[str, Path]:
    """Return the folder of every package, by the name that it installs as; empty beside the wheel."""
    found = [init.parent for top in ROOT.glob("*/__init__.py") for init in top.parent.rglob("__init__.py")]
    return {"modelreg." + ".".join(folder.relative_to(ROOT).parts): folder for folder in found}


def listed_packages() -> list[str]:
    """Return the packages that pyproject.toml lists."""
    packages: list[str] = read_pyproject()["tool"]["setuptools"]["packages"]
    return packages
