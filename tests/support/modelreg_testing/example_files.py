"""Files that the ResNet example makes, and its modules."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from modelreg_testing.checkout import ROOT
from modelreg_testing.once import made_once

RESNET = ROOT / "examples" / "resnet50"
SIDE = 64
SAMPLES = 100


def resnet18_files(factory: pytest.TempPathFactory) -> Path:
    """Return the folder with a ResNet-18 for images of 64 pixels: its ONNX, weights, golden set, calibration set."""
    sizes = ("--image-size", str(SIDE), "--samples", str(SAMPLES), "--calibration-samples", "100")
    return made_once(factory, "resnet18", lambda folder: make_into(folder, "--arch", "resnet18", *sizes))


def make_into(folder: Path, *arguments: str) -> None:
    """Have the example's script fill a folder."""
    make_example(*arguments, "--into", str(folder))


def make_example(*arguments: str) -> str:
    """Run the example's script; return what it prints."""
    command = [sys.executable, str(RESNET / "make.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@contextmanager
def example_module(name: str) -> Iterator[ModuleType]:
    """Import a module of the example by its name, as its script does, and forget it and its siblings afterwards."""
    siblings = [path.stem for path in RESNET.glob("*.py")]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(RESNET)
        yield importlib.import_module(name)
        for sibling in siblings:
            sys.modules.pop(sibling, None)
