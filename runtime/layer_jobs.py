"""The job file that looks inside models of ONNX Runtime: what a source and a candidate have between their nodes.

Runs in the registry's own interpreter, since it rewrites graphs. One session is made for each set of values that is
asked for, and kept until another set is: values are asked for in parts, so that memory stays bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

Json = dict[str, Any]
Arrays = dict[str, Any]
Report = Callable[["float | None", str], None]

_state: dict[str, Any] = {"sessions": {}}


def open_models(request: Json, _arrays: Arrays, _report: Report) -> Json:
    """
    Load the graphs of `source` and `candidate`; answer with the tensors of the first, and how the second has them.

    With `rounded`, the candidate is an FP16 variant whose rounding is kept. Without a candidate, nothing is seen.
    """
    from modelreg.runtime.layer_graph import LayerGraph  # noqa: PLC0415 - imports onnx

    _state["source"] = LayerGraph(Path(request["source"]))
    tensors = _state["source"].tensors()
    seen = {}
    if request["candidate"]:
        path = Path(request["candidate"])
        if request["rounded"]:
            from modelreg.runtime.rounding import write_rounded  # noqa: PLC0415

            target = path.with_name("rounded-layers.onnx")
            write_rounded(path, target)
            path = target
        _state["candidate"] = LayerGraph(path)
        seen = _state["candidate"].see([each.name for each in tensors])
    _state["seen"] = {name: asdict(each) for name, each in seen.items()}
    _state["threads"] = request.get("threads")
    return {
        "tensors": [asdict(each) for each in tensors],
        "outputs": _state["source"].outputs,
        "seen": _state["seen"],
    }


def run_source(request: Json, arrays: Arrays, _report: Report) -> tuple[Json, Arrays]:
    """Run the source; answer with the values of `names`, or with `shapes_only` with their shapes."""
    names = list(request["names"])
    session = _session(("source", tuple(names)), lambda: _state["source"].tap(names))
    found = _run(session, names, arrays)
    if request.get("shapes_only"):
        return {"shapes": {name: list(array.shape) for name, array in found.items()}}, {}
    return {}, found


def run_candidate(request: Json, arrays: Arrays, _report: Report) -> tuple[Json, Arrays]:
    """Run the candidate; answer with the values of `names` as their readers get them, and how many are saturated."""
    from modelreg.runtime.layer_graph import saturated  # noqa: PLC0415

    names = list(request["names"])
    wanted = _values_of(names)
    session = _session(("candidate", tuple(wanted)), lambda: _state["candidate"].tap(wanted))
    found = _run(session, wanted, arrays)
    counts = {name: saturated(found[_state["seen"][name]["made"]], _state["seen"][name]) for name in names}
    return {"saturated": counts}, {name: _plain(found[_state["seen"][name]["carrier"]]) for name in names}


def run_isolated(request: Json, arrays: Arrays, _report: Report) -> tuple[Json, Arrays]:
    """Run each of `names` on given inputs (`layer_reference::NAME`); answer with their values."""
    names, at = list(request["names"]), list(request["at"])
    wanted = [_state["seen"][name]["carrier"] for name in names]
    key = ("isolated", tuple(wanted), tuple(at))
    session = _session(key, lambda: _state["candidate"].cut(wanted, at=at)[0])
    found = _run(session, wanted, arrays)
    return {}, {name: _plain(found[carrier]) for name, carrier in zip(names, wanted, strict=True)}


def needs_of(request: Json, _arrays: Arrays, _report: Report) -> Json:
    """Answer with which of the tensors `at` must be given to run `names` alone."""
    wanted = [_state["seen"][name]["carrier"] for name in request["names"]]
    path, given = _state["candidate"].cut(wanted, at=list(request["at"]))
    path.unlink()
    return {"given": given}


def _values_of(names: Sequence[str]) -> list[str]:
    """Return carriers and, where that is quantised, what was before it."""
    seen = [_state["seen"][name] for name in names]
    return list(dict.fromkeys([*(each["carrier"] for each in seen), *(each["made"] for each in seen)]))


def _session(key: tuple[Any, ...], write: Callable[[], Path]) -> Any:
    sessions = _state["sessions"]
    if key not in sessions:
        for other in [other for other in sessions if other[0] == key[0]]:
            del sessions[other]
        path = write()
        try:
            sessions[key] = _open(path)
        finally:
            path.unlink()
    return sessions[key]


def _open(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # Every value is as the graph says: no node is fused with another.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.use_deterministic_compute = True
    options.log_severity_level = 3
    if _state["threads"]:
        options.intra_op_num_threads = _state["threads"]
        options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _run(session: Any, names: Sequence[str], arrays: Arrays) -> Arrays:
    inputs = {}
    for each in session.get_inputs():
        is_half = each.type == "tensor(float16)"
        inputs[each.name] = arrays[each.name].astype("float16") if is_half else arrays[each.name]
    return dict(zip(names, session.run(list(names), inputs), strict=True))


def _plain(array: Any) -> Any:
    return array if array.dtype.name in ("float16", "float32", "float64") else np.asarray(array, np.float32)


JOBS = {
    "open": open_models,
    "source": run_source,
    "candidate": run_candidate,
    "isolated": run_isolated,
    "needs": needs_of,
}
