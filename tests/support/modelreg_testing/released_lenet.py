"""A registry with two validated versions of the example's LeNet, the second one active; made once for a whole run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from modelreg_testing.checkout import ROOT
from modelreg_testing.cli import Shop
from modelreg_testing.once import made_once

LENET = ROOT / "examples" / "lenet"


def released_lenet(factory: pytest.TempPathFactory) -> Path:
    """Return the home of the registry, which nobody may change: FP32 and INT8 of both versions, INT8 on production."""
    return made_once(factory, "released-lenet", _release) / "home"


def copy_of_released_lenet(factory: pytest.TempPathFactory, home: Path) -> Path:
    """Copy it to `home`, which must not be there, and return that."""
    shutil.copytree(released_lenet(factory), home, symlinks=True)
    return home


def _release(folder: Path) -> None:
    shop = Shop(folder)
    for number in (1, 2):
        golden = LENET / f"golden-v{number}.npz"
        for words in (
            ("register", "lenet", LENET / f"lenet-v{number}.onnx", "--golden", golden),
            ("build", f"lenet:{number}", "--precision", "fp32,int8", "--calibration", LENET / "calibration.npz"),
            ("validate", f"lenet:{number}"),
            ("promote", f"lenet:{number}", "--to", "production"),
        ):
            done = shop.cli(*words)
            assert done.code == 0, done.err
