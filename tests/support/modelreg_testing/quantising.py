"""Calibration sets for the functions that quantise, and how much of the signal is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from modelreg.builders.calibration import check_calibration_set, recipe_part
from modelreg.builders.interface import CalibrationOptions
from modelreg.registry.sources.signature import read_signature
from modelreg.registry.tensor_sets import write_tensor_set

Array = NDArray[Any]


def calibrated(model: onnx.ModelProto, data: Array, folder: Path, **how: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Write `data` for the model's first input; return the recipe's part, and what the child needs to read it."""
    path = folder / "set.safetensors"
    path.unlink(missing_ok=True)
    write_tensor_set(path, {f"input.{model.graph.input[0].name}": data}, {})
    options = CalibrationOptions(path=path, **how)
    checked = check_calibration_set(options, read_signature(model.graph))
    return recipe_part(options, checked), checked.to_request()


def snr_db(found: Array, want: Array) -> float:
    """Return the ratio of signal to error in decibels."""
    return float(10 * np.log10((want**2).sum() / ((found - want) ** 2).sum()))
