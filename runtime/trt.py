"""The job file that runs plans of TensorRT and TensorRT-RTX on this machine's GPU: load one, run it, time it.

Runs in the toolchain's interpreter: Python 3.8, NumPy, cuda-bindings and the backend alone; never in the registry's
own process, since a plan is native code.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

from modelreg.registry.toolchains.gpu import describe_driver, read_memory, use_gpu
from modelreg.registry.toolchains.trt_debug import read_debug_tensors
from modelreg.registry.toolchains.trt_log import make_log
from modelreg.registry.toolchains.trt_session import PlanRunError, Session, load_plugins, read_checked
from modelreg.runtime.trt_bench import measure as measure_plan
from modelreg.runtime.trt_bench import time_runs

Json = Dict[str, Any]
Arrays = Dict[str, Any]
Report = Callable[[Optional[float], str], None]

_MODULES = {"tensorrt": ("tensorrt",), "tensorrt-rtx": ("tensorrt_rtx", "tensorrt_rtx_bindings")}
_PRODUCTS = {"tensorrt": "TensorRT", "tensorrt-rtx": "TensorRT-RTX"}

_state: Dict[str, Any] = {}


def load(request: Json, _arrays: Arrays, _report: Report) -> Json:
    """
    Load the plan `request["path"]` whose SHA-256 is `request["digest"]`; answer with its inputs, outputs and profiles.

    Further keys: `backend`, `version` (that built it), `target`, `host_code` (whether the plan may run the runtime
    that it carries), `output_types` (of the source, by name), `uuid` (of the GPU) and `cuda_graphs`.
    """
    content = read_checked(request["path"], request["digest"])
    gpu = use_gpu(request["target"], request.get("uuid", ""))
    trt = _import(request["backend"])
    _require_version(trt, request)
    log = make_log(trt, _PRODUCTS[request["backend"]])
    if request["backend"] == "tensorrt":
        load_plugins(trt, log, sorted(str(path) for path in Path(request["path"]).parent.glob("*.so")))
    session = Session(
        trt,
        log,
        content,
        host_code=request["host_code"],
        output_types=request.get("output_types"),
        cuda_graphs=request.get("cuda_graphs", False),
    )
    _state.update(session=session, trt=trt, log=log, request=request)
    return {**session.describe(), "gpu": {**gpu, **describe_driver()}, "version": trt.__version__}


def _load_again() -> Session:
    """Return a further session of the plan that is loaded, of bytes that are checked again."""
    request = _state["request"]
    content = read_checked(request["path"], request["digest"])
    return Session(_state["trt"], _state["log"], content, host_code=request["host_code"])


def _require_version(trt: Any, request: Json) -> None:
    """Refuse what another version built, unless it carries its runtime: plans of others are never deserialised."""
    here, built = (each.split(".") for each in (trt.__version__, request["version"]))
    shared = min(len(here), len(built), 4)
    if here[:shared] != built[:shared] and not request["host_code"]:
        raise PlanRunError(
            "the plan was built by %s %s, and %s is installed here"
            % (_PRODUCTS[request["backend"]], request["version"], trt.__version__)
        )


def run(_request: Json, arrays: Arrays, _report: Report) -> Tuple[Json, Arrays]:
    """Run the loaded plan; answer with every output, and with `replayed`, the runs so far that were a graph's."""
    session: Session = _state["session"]
    try:
        outputs = session.run(arrays)
        return {"replayed": session.replayed}, outputs
    except Exception as error:
        if session.device.is_lost():
            # CUDA answers with this error until the process ends; who serves starts another one.
            raise SystemExit("the device is lost to this process: %s" % error) from error
        raise


def show(request: Json, arrays: Arrays, _report: Report) -> Tuple[Json, Arrays]:
    """Run the loaded plan; answer with the values of `names` between its layers, or among its outputs."""
    session: Session = _state["session"]
    inside = [name for name in request["names"] if name not in session.outputs]
    found = read_debug_tensors(_state["trt"], session, arrays, inside) if inside else {}
    if len(inside) < len(request["names"]):
        found.update(session.run(arrays))
    return {}, {name: found[name] for name in request["names"] if name in found}


def bench(request: Json, arrays: Arrays, report: Report) -> Tuple[Json, Arrays]:
    """Time the loaded plan on inputs that are uploaded once, as `time_runs` does."""
    return time_runs(_state["session"], request, arrays, report)


def measure(request: Json, arrays: Arrays, report: Report) -> Tuple[Json, Arrays]:
    """Time the loaded plan on `request["streams"]` streams, as `measure_plan` does; further ones load it again."""
    sessions: List[Session] = [_state["session"]]
    try:
        while len(sessions) < request["streams"]:
            sessions.append(_load_again())
        return measure_plan(sessions, request, arrays, report)
    finally:
        for session in sessions[1:]:
            session.close()


def _import(backend: str) -> Any:
    for name in _MODULES[backend]:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise PlanRunError("%s is not installed in this interpreter" % backend)


def memory(_request: Json, _arrays: Arrays, _report: Report) -> Json:
    """Answer with `free_bytes` and `total_bytes` of the device; nothing where nobody can tell."""
    return read_memory()


JOBS = {"load": load, "run": run, "bench": bench, "measure": measure, "show": show, "memory": memory}
