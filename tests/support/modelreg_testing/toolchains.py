"""Interpreters with pretended backends, and the real TensorRT-RTX where it is installed."""

from __future__ import annotations

import functools
import importlib.util
import sys
import textwrap
from pathlib import Path

import pytest

from modelreg.builders.interface import ToolchainSpec
from modelreg.registry.toolchains.probing import probe_python

_HAS_RTX = importlib.util.find_spec("tensorrt_rtx_bindings") is not None

needs_rtx = pytest.mark.skipif(
    not _HAS_RTX, reason="TensorRT-RTX is not installed here (its packages exist for Linux on x86-64)"
)

BUILDER = """
    class Logger:
        WARNING = 2
        def __init__(self, level): pass

    class Builder:
        def __init__(self, logger): {builder}
"""


def pretend_python(folder: Path, modules: dict[str, str], *, name: str = "python") -> Path:
    """Write an interpreter that finds these modules before any installed one; return its path."""
    place = folder / f"{name}-modules"
    place.mkdir(parents=True, exist_ok=True)
    for module, text in modules.items():
        (place / f"{module}.py").write_text(textwrap.dedent(text))
    python = folder / name
    python.write_text(f'#!/bin/sh\nPYTHONPATH={place} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def bare_python(folder: Path, modules: dict[str, str]) -> Path:
    """Write an interpreter that has the standard library and these modules alone; return its path."""
    python = pretend_python(folder, modules)
    python.write_text(python.read_text().replace('"$@"', '-S "$@"'))
    return python


def answering_python(folder: Path, *, find: str, probe: str = "", name: str = "python") -> Path:
    """Write a program that speaks as a worker does and answers the jobs with these frames; return its path."""
    answers = {"find": find, "probe": probe}
    python = folder / name
    python.write_text(
        textwrap.dedent(
            f"""\
            #!{sys.executable}
            import json, sys
            print('{{"kind": "ready", "protocol": 1}}', flush=True)
            answers = {answers!r}
            for line in sys.stdin:
                print(answers[json.loads(line)["job"]], flush=True)
            """
        )
    )
    python.chmod(0o755)
    return python


def pretend_backend(version: str, *, builder: str = "pass", targets: tuple[int, ...] = ()) -> str:
    """Return the text of a module that looks like TensorRT as far as probing goes."""
    members = ", ".join(f"'SM{target}': {target}" for target in targets)
    capability = f"class ComputeCapability:\n    __members__ = {{'NONE': 0, {members}}}\n" if targets else ""
    return f"__version__ = {version!r}\n{capability}" + textwrap.dedent(BUILDER.format(builder=builder))


@functools.cache
def rtx_toolchain(python: str = sys.executable, name: str = "rtx") -> ToolchainSpec:
    """Return the TensorRT-RTX of this interpreter as a toolchain."""
    probe = probe_python(python)
    return ToolchainSpec(
        name=name, backend=probe.backend, version=probe.version, python=probe.python, details=probe.details
    )
