"""The job file that runs plans of ONNX Runtime: load one, then run it as often as asked.

Runs in the toolchain's interpreter: Python 3.8, the standard library, NumPy and onnxruntime alone; mode `rounded`
and mode `ranged` need onnx and modelreg too, and so the registry's own interpreter.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

Json = Dict[str, Any]
Arrays = Dict[str, Any]
Report = Callable[[Optional[float], str], None]

_CPU, _CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_state: Dict[str, Any] = {}


def load(request: Json, _arrays: Arrays, _report: Report) -> Json:
    """
    Load `request["path"]`; answer with its inputs and outputs.

    Modes: `plan` runs the plan as it is served. `rounded` takes an FP16 variant and keeps the rounding of every
    value to FP16, which the plan itself does not on the CPU. `ranged` takes an INT8 variant and looks at its ranges.
    """
    counters, ranges = None, None
    if request["mode"] == "rounded":
        session, counters = _load_rounded(request["path"], request.get("threads"))
    elif request["mode"] == "ranged":
        session, ranges = _load_ranged(request["path"], request["absorbs_clips"], request.get("threads"))
    else:
        session = _open(request["path"], "ORT_ENABLE_ALL", request.get("threads"))
    _state["session"], _state["counters"], _state["ranges"] = session, counters, ranges
    added = {*(counters or {}), *(name for each in ranges or () for name in each.outputs)}
    outputs = [each for each in session.get_outputs() if each.name not in added]
    return {"inputs": _describe(session.get_inputs()), "outputs": _describe(outputs)}


def run(_request: Json, arrays: Arrays, _report: Report) -> Tuple[Json, Arrays]:
    """Run the loaded session; answer with every output, and with what the modes `rounded` and `ranged` count."""
    session = _state["session"]
    names = [each.name for each in session.get_outputs()]
    inputs = {}
    for each in session.get_inputs():
        if each.name not in arrays:
            raise ValueError("input %r is missing" % each.name)
        is_half = each.type == "tensor(float16)" and arrays[each.name].dtype == "float32"
        inputs[each.name] = arrays[each.name].astype("float16") if is_half else arrays[each.name]
    outputs = dict(zip(names, session.run(names, inputs)))  # noqa: B905 - Python 3.8
    if _state["ranges"] is not None:
        return {"ranges": [_read_range(each, outputs) for each in _state["ranges"]]}, outputs
    if _state["counters"] is None:
        return {}, outputs
    overflows = [[node, int(outputs.pop(name))] for name, node in _state["counters"].items()]
    return {"overflows": overflows}, outputs


def bench(request: Json, arrays: Arrays, _report: Report) -> Tuple[Json, Arrays]:
    """
    Time the loaded session on the inputs; answer with the milliseconds of every call, as `host`.

    The body has `wall_s`, from the first call that counts to the end of the last, and `provider`, what ran it.
    Keys: `warmup_ms`, `duration_s` and `iterations` (the longer of both counts), and `streams`: so many threads call
    the one session at once.
    """
    import numpy

    session = _state["session"]
    inputs = {each.name: arrays[each.name] for each in session.get_inputs()}
    streams = request.get("streams", 1)

    def time_calls(duration_s: float, at_least: int) -> List[float]:
        times: List[float] = []
        until = time.perf_counter() + duration_s
        while len(times) < at_least or time.perf_counter() < until:
            began = time.perf_counter()
            session.run(None, inputs)
            times.append((time.perf_counter() - began) * 1000)
        return times

    time_calls(request["warmup_ms"] / 1000, 0)
    at_least = -(-request["iterations"] // streams)
    began = time.perf_counter()
    if streams == 1:
        times = time_calls(request["duration_s"], at_least)
    else:
        with ThreadPoolExecutor(streams) as pool:
            jobs = [pool.submit(time_calls, request["duration_s"], at_least) for _ in range(streams)]
            times = [each for job in jobs for each in job.result()]
    wall_s = time.perf_counter() - began
    told = {"wall_s": wall_s, "streams": streams, "provider": session.get_providers()[0]}
    return told, {"host": numpy.array(times)}


def _read_range(watched: Any, outputs: Arrays) -> Json:
    """Take what was added for one range out of the outputs."""
    cut, size, smallest, largest = (outputs.pop(name).item() for name in watched.outputs)
    return {
        "node": watched.node,
        "low": watched.low,
        "high": watched.high,
        "cut": cut,
        "size": size,
        # JSON has no NaN and no infinity: whatever made one fails the gate for it.
        "smallest": smallest if math.isfinite(smallest) else 0.0,
        "largest": largest if math.isfinite(largest) else 0.0,
    }


def _load_ranged(path: str, absorbs_clips: bool, threads: Optional[int]) -> Tuple[Any, List[Any]]:
    from modelreg.runtime.ranging import write_ranged

    handle, name = tempfile.mkstemp(dir=str(Path(path).parent), prefix="ranged-", suffix=".onnx")
    os.close(handle)
    try:
        ranges = write_ranged(Path(path), Path(name), absorbs_clips=absorbs_clips)
        return _open(name, "ORT_ENABLE_BASIC", threads), list(ranges)
    finally:
        Path(name).unlink()


def _load_rounded(path: str, threads: Optional[int]) -> Tuple[Any, Dict[str, str]]:
    from modelreg.runtime.rounding import write_rounded

    handle, name = tempfile.mkstemp(dir=str(Path(path).parent), prefix="rounded-", suffix=".onnx")
    os.close(handle)
    try:
        counters = write_rounded(Path(path), Path(name)).counters
        return _open(name, "ORT_ENABLE_BASIC", threads), dict(counters)
    finally:
        Path(name).unlink()


def open_session(path: str, *, threads: Optional[int] = None, target: str = "cpu", device_id: int = 0) -> Any:
    """
    Return a session of a plan as it is served, in this process; `device_id` is CUDA's number of the GPU.

    Raises:
        RuntimeError: The plan is for a GPU, and this ONNX Runtime does not run it there.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # it counts where this is the first import of the process
    import onnxruntime

    if target == "cpu":
        return _open(path, "ORT_ENABLE_ALL", threads)
    if _CUDA not in onnxruntime.get_available_providers():
        raise RuntimeError("ONNX Runtime has no %s here, and the plan is for %s" % (_CUDA, target))
    session = _open(path, "ORT_ENABLE_ALL", threads, providers=((_CUDA, {"device_id": device_id}), _CPU))
    if session.get_providers()[0] != _CUDA:  # it falls back without a word
        raise RuntimeError("ONNX Runtime cannot start %s here, and the plan is for %s" % (_CUDA, target))
    return session


def _open(path: str, level: str, threads: Optional[int], providers: Tuple[Any, ...] = (_CPU,)) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.use_deterministic_compute = True
    if threads:
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=list(providers))


def _describe(declared: List[Any]) -> List[Json]:
    return [{"name": each.name, "type": each.type, "shape": list(each.shape)} for each in declared]


JOBS = {"load": load, "run": run, "bench": bench, "measure": bench}
