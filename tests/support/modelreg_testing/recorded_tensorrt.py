"""A job file in place of `builders/trt.py`: answers what TensorRT 8.6.0 answered for LeNet on an H200.

Only TensorRT's part is replaced; the parent's side, the variants and the reading of layers are the real ones.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parents[2] / "builders" / "recorded"
GPU = {"index": 0, "name": "NVIDIA H200", "target": "sm_90", "sm_count": 132, "driver": "580.159.04", "cuda": "13.0"}
VERSION = bytes([8, 6, 0, 12])


class TensorRTError(Exception):
    """As the real job file raises it."""

    details = {"hint": "Replace these nodes in the model, or build for another backend."}  # noqa: RUF012


def build(request: dict[str, Any], arrays: dict[str, Any], _report: object) -> dict[str, Any]:
    """Write a plan of a header alone and the recorded layers; what was asked goes into the log, for the test."""
    asked = {**request, "arrays": {name: list(array.shape) for name, array in arrays.items()}}
    sys.stderr.write(json.dumps(asked) + "\n")  # into the build log
    if request["seed"] == 13:
        raise TensorRTError(
            "TensorRT 8.6.0 cannot parse the model: #2 (no op): there is no importer; #999 (no op): odd"
        )
    version = bytes([9, 0, 0, 0]) if request["seed"] == 14 else VERSION
    Path(request["plan"]).write_bytes(b"ftrt" + bytes(20) + version + b"a plan of the H200" + _model(request))
    is_fp16 = "FP16" in request["flags"] and (request["seed"] != 16 or request["preferred"])
    name = "lenet-fp16" if is_fp16 else "lenet-tf32"
    if request["calibrator"] is not None:
        name = "lenet-implicit-int8" if request["seed"] == 15 else "resnet18-implicit-int8"
        Path(request["calibrator"]["cache_out"]).write_text("TRT-8600-EntropyCalibration2\n")
    layers = json.loads((RECORDED / f"{name}.json").read_text())
    if name == "resnet18-implicit-int8":  # LeNet's layers, in INT8
        text = (RECORDED / "lenet-fp16.json").read_text().replace('"Float"', '"Int8"').replace('"Half"', '"Int8"')
        layers = json.loads(text)
    Path(request["layers"]).write_text(json.dumps({**layers, "flags": request["flags"]}))
    if request["timing_cache_out"]:
        Path(request["timing_cache_out"]).write_bytes(b"timings of " + request["target"].encode())
    return {
        "version": "8.6.0",
        "build_s": 1.5,
        "gpu": GPU,
        "taps": [name for name in request.get("taps", ()) if name],
        "checked": {"inputs": "golden", "runs": 1, "not_finite": {}},
    }


def _model(request: dict[str, Any]) -> bytes:
    """Return the ONNX for `recorded_layers` where the plan shall show its layers, else nothing."""
    return b"\0ONNX" + Path(request["model"]).read_bytes() if request.get("taps") else b""


JOBS = {"build": build}
