"""Real data that packages ship: scikit-learn's digits, and text of the standard library and of scikit-learn.

Images are kept as bytes and become 0 to 1 as they are fed; text is numbers, 0 for nothing, 1 to 96 for a character.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import inspect
import tarfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

SIDE = 16
LENGTH = 32
GOLDEN, CALIBRATION = 500, 256
CHARACTERS = 97
_MODULES: tuple[ModuleType, ...] = (argparse, ast, datetime, inspect, tarfile)


@dataclass(frozen=True)
class Data:
    """Samples with the class and the slice of each; the first `GOLDEN` of the held-out ones are the golden set."""

    inputs: Array
    labels: Array
    slices: Array
    slice_names: tuple[str, ...]

    def part(self, start: int, stop: int) -> Data:
        """Return some of the samples."""
        return Data(self.inputs[start:stop], self.labels[start:stop], self.slices[start:stop], self.slice_names)


def digits() -> Data:
    """Return grey digits, bytes of shape (1797, 1, 16, 16), sliced by how much ink they have."""
    images, labels = _scans()
    ink = images.mean(axis=(1, 2))
    slices = np.searchsorted(np.quantile(ink, [1 / 3, 2 / 3]), ink).astype(np.int64)
    return Data(images[:, None], labels, slices, ("faint", "usual", "bold"))


def coloured_digits() -> Data:
    """Return digits in ink of one colour on paper of another, bytes of shape (1797, 3, 16, 16), sliced by paper."""
    images, labels = _scans()
    rng = np.random.default_rng(7)
    papers = np.array([[230, 220, 190], [150, 190, 230], [200, 200, 205]])
    inks = np.array([[30, 30, 90], [120, 20, 20], [20, 80, 30]])
    slices = rng.integers(0, 3, len(images))
    ink, paper = inks[rng.integers(0, 3, len(images))], papers[slices]
    share = images[:, None].astype(np.float64) / 255
    mixed = share * ink[:, :, None, None] + (1 - share) * paper[:, :, None, None]
    noisy = np.clip(mixed + rng.normal(0, 4, mixed.shape), 0, 255)
    return Data(
        (np.rint(noisy / 8) * 8).clip(0, 255).astype(np.uint8),
        labels,
        slices.astype(np.int64),
        ("cream", "blue", "grey"),
    )


def _scans() -> tuple[Array, Array]:
    from sklearn.datasets import load_digits

    found = load_digits()
    order = np.random.default_rng(1998).permutation(len(found.target))
    scans = found.images[order].repeat(SIDE // 8, axis=1).repeat(SIDE // 8, axis=2)
    padded = np.pad(scans, ((0, 0), (1, 1), (1, 1)), mode="edge")
    smooth = sum(padded[:, i : i + SIDE, j : j + SIDE] for i in range(3) for j in range(3)) / 9
    return np.rint(smooth * (255 / 16)).astype(np.uint8), found.target[order].astype(np.int64)


def text() -> Data:
    """Return pieces of code, prose and tables of numbers, int64 of shape (3600, 32), sliced by length."""
    rng = np.random.default_rng(11)
    sources = ["".join(inspect.getsource(module) for module in _MODULES), _prose(), _numbers()]
    pieces, labels, slices = [], [], []
    for label, source in enumerate(sources):
        for start in rng.integers(0, len(source) - LENGTH, 1200):
            is_short = rng.random() < 0.3
            length = int(rng.integers(14, 20)) if is_short else int(rng.integers(20, LENGTH + 1))
            row = np.zeros(LENGTH, np.int64)
            row[:length] = [_number(c) for c in source[start : start + length]]
            pieces.append(row)
            labels.append(label)
            slices.append(0 if is_short else 1)
    order = rng.permutation(len(pieces))
    return Data(np.stack(pieces)[order], np.array(labels)[order], np.array(slices)[order], ("short", "long"))


def _number(character: str) -> int:
    return ord(character) - 31 if 32 <= ord(character) < 127 else CHARACTERS - 1


def _prose() -> str:
    from pydoc_data.topics import topics

    return "".join(topics.values())


def _numbers() -> str:
    import sklearn.datasets

    folder = Path(sklearn.datasets.__file__).parent / "data"
    return "".join((folder / name).read_text() for name in ("breast_cancer.csv", "wine_data.csv", "iris.csv"))
