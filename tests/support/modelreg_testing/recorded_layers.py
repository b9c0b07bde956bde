"""A job file in place of `runtime/trt.py`: shows layers of a plan that `recorded_tensorrt` built, by ONNX Runtime.

Only TensorRT is replaced: what is built, loaded, asked for and compared is asked by the real parent's side.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import onnx

_state: dict[str, Any] = {}


def load(request: dict[str, Any], _arrays: dict[str, Any], _report: object) -> dict[str, Any]:
    """Take the ONNX out of the plan, whose digest must be the one that was asked for."""
    content = Path(request["path"]).read_bytes()
    assert hashlib.sha256(content).hexdigest() == request["digest"]
    _state["model"] = onnx.load_from_string(content.partition(b"\0ONNX")[2])
    return {"inputs": [], "outputs": [], "profiles": []}


def show(request: dict[str, Any], arrays: dict[str, Any], _report: object) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return values between the nodes, or among the outputs."""
    import onnxruntime

    model = onnx.ModelProto()
    model.CopyFrom(_state["model"])
    del model.graph.output[:]
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in request["names"])
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return {}, dict(zip(request["names"], session.run(request["names"], arrays), strict=True))


JOBS = {"load": load, "show": show}
