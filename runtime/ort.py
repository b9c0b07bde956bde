"""The job file that runs plans of ONNX Runtime: load one, then run it as often as asked.

Runs in the toolchain's interpreter: Python 3.8, the standard library, NumPy and onnxruntime alone; mode `rounded`
needs onnx and modelreg too, and so the registry's own interpreter.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

Json = Dict[str, Any]
Arrays = Dict[str, Any]
Report = Callable[[Optional[float], str], None]

_state: Dict[str, Any] = {}


def load(request: Json, _arrays: Arrays, _report: Report) -> Json:
    """
    Load `request["path"]`; answer with its inputs and outputs.

    Modes: `plan` runs the plan as it is served. `rounded` takes an FP16 variant and keeps the rounding of every
    value to FP16, which the plan itself does not on the CPU.
    """
    if request["mode"] == "rounded":
        session, counters = _load_rounded(request["path"], request.get("threads"))
    else:
        session, counters = _open(request["path"], "ORT_ENABLE_ALL", request.get("threads")), None
    _state["session"], _state["counters"] = session, counters
    outputs = [each for each in session.get_outputs() if each.name not in (counters or {})]
    return {"inputs": _describe(session.get_inputs()), "outputs": _describe(outputs)}


def run(_request: Json, arrays: Arrays, _report: Report) -> Tuple[Json, Arrays]:
    """Run the loaded session; answer with every output, and in mode `rounded` with the overflows by node."""
    session = _state["session"]
    names = [each.name for each in session.get_outputs()]
    inputs = {}
    for each in session.get_inputs():
        if each.name not in arrays:
            raise ValueError("input %r is missing" % each.name)
        is_half = each.type == "tensor(float16)" and arrays[each.name].dtype == "float32"
        inputs[each.name] = arrays[each.name].astype("float16") if is_half else arrays[each.name]
    outputs = dict(zip(names, session.run(names, inputs)))  # noqa: B905 - Python 3.8
    if _state["counters"] is None:
        return {}, outputs
    overflows = [[node, int(outputs.pop(name))] for name, node in _state["counters"].items()]
    return {"overflows": overflows}, outputs


def _load_rounded(path: str, threads: Optional[int]) -> Tuple[Any, Dict[str, str]]:
    from modelreg.runtime.rounding import write_rounded

    handle, name = tempfile.mkstemp(dir=str(Path(path).parent), prefix="rounded-", suffix=".onnx")
    os.close(handle)
    try:
        counters = write_rounded(Path(path), Path(name)).counters
        return _open(name, "ORT_ENABLE_BASIC", threads), dict(counters)
    finally:
        Path(name).unlink()


def _open(path: str, level: str, threads: Optional[int]) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.use_deterministic_compute = True
    if threads:
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _describe(declared: List[Any]) -> List[Json]:
    return [{"name": each.name, "type": each.type, "shape": list(each.shape)} for each in declared]


JOBS = {"load": load, "run": run}
