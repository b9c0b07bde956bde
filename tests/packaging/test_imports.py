"""Every module imports with the core dependencies alone: no extra is needed until it is used."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from modelreg_testing.checkout import listed_packages

IMPORT_ALL = """
import importlib, json, pkgutil, sys, traceback

packages, blocked = json.loads(sys.stdin.read())

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"no module named {name!r} (blocked by the test)", name=name)

sys.meta_path.insert(0, Blocker())
imported, failures = [], {}
for package in packages:
    found = pkgutil.iter_modules(importlib.import_module(package).__path__, package + ".")
    for name in [package, *(module.name for module in found)]:
        try:
            importlib.import_module(name)
            imported.append(name)
        except BaseException as error:
            failures[name] = traceback.format_exc(limit=-1)
print(json.dumps([imported, failures]))
"""


def test_every_module_imports_without_any_extra() -> None:
    imported, failures = _import_all(blocked=_modules_beyond_core())
    assert failures == {}
    assert set(imported) >= {*listed_packages(), "modelreg.cli.main", "modelreg.registry.records"}


def test_the_check_above_notices_a_library_that_is_missing() -> None:
    _, failures = _import_all(blocked=_modules_beyond_core() | {"sqlalchemy"})
    assert "modelreg.registry.schema" in failures
    assert "blocked by the test" in failures["modelreg.registry.schema"]


def _import_all(*, blocked: set[str]) -> tuple[list[str], dict[str, str]]:
    """Import all modules in a fresh interpreter that finds none of `blocked`; return the names, and the failures."""
    finished = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORT_ALL],
        input=json.dumps([listed_packages(), sorted(blocked)]),
        capture_output=True,
        text=True,
        check=True,
    )
    imported, failures = json.loads(finished.stdout)
    return imported, failures


def _modules_beyond_core() -> set[str]:
    """Return the top-level modules of all that is installed here and that no core dependency brings."""
    core = _core_distributions()
    return {
        module
        for module, distributions in packages_distributions().items()
        if core.isdisjoint(canonicalize_name(distribution) for distribution in distributions)
    }


def _core_distributions() -> set[str]:
    """Return modelreg, its dependencies without extras, and all that these need themselves."""
    found: set[str] = set()
    waiting = ["modelreg"]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        try:
            lines = requires(name) or []
        except PackageNotFoundError:  # needed on another platform only
            continue
        found.add(name)
        for requirement in map(Requirement, lines):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(canonicalize_name(requirement.name))
    return found
