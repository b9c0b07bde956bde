"""The job file of TensorRT: parse, build on the GPU that the plan is for, save, load again, inspect and run it.

Runs in the toolchain's interpreter: Python 3.8, NumPy, cuda-bindings and TensorRT (8.6 to 11) alone. What a version
lacks is asked of `trt_capabilities`; what TensorRT refuses it says to its logger alone, so a logged error fails the
build.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import numpy as np

from modelreg.builders.trt_calibrator import PREFIX, set_calibrator
from modelreg.builders.trt_config import (
    configure,
    hint_at_pools,
    load_timing_cache,
    read_flags,
    save_timing_cache,
    set_flags,
)
from modelreg.builders.trt_network import (
    check_edges,
    describe_edges,
    describe_layers,
    dtype_of,
    load_backend,
    mark_taps,
    nodes_of,
    outputs_of,
    parse_network,
    require_version,
)
from modelreg.registry.toolchains.gpu import describe_driver, use_gpu
from modelreg.registry.toolchains.trt_log import make_log
from modelreg.registry.toolchains.trt_session import Session, choose_profile, load_plugins

Json = Dict[str, Any]
Arrays = Dict[str, Any]
Report = Callable[[Optional[float], str], None]

_MODULES = ("tensorrt",)
_PRODUCT = "TensorRT"
_MAX_WARNINGS = 20
_FLOATS = ("float32", "float16", "bfloat16")
_TYPED_KINDS = ("CONSTANT", "SHAPE", "QUANTIZE", "DEQUANTIZE")
"""Layers whose types follow from what they are."""


def build(request: Json, arrays: Arrays, report: Report) -> Json:
    """
    Build `request["model"]` into `request["plan"]` on the GPU of `request["target"]`; answer with what was made.

    The layers as parsed and as built go to the file `request["layers"]`.
    """
    trt = load_backend(_MODULES, _PRODUCT)
    gpu = use_gpu(request["target"])
    require_version(trt, request, _PRODUCT)
    log = make_log(trt, _PRODUCT)
    load_plugins(trt, log, request["plugins"])
    began = time.monotonic()
    plan, made = _build_plan(trt, log, request, arrays, report)
    build_s = time.monotonic() - began
    report(0.85, "loading and running what was saved")
    session = Session(trt, log, plan, host_code="VERSION_COMPATIBLE" in request["flags"])
    try:
        checked = _try_out(session, request, arrays)
        # 8.6 puts control characters into names
        inspected = json.loads(session.inspect(checked["shapes"][0]), strict=False)
    finally:
        session.close()
    Path(request["layers"]).write_text(json.dumps({**made["parsed"], "inspected": inspected}))
    return {
        "version": trt.__version__,
        "build_s": build_s,
        "taps": made["taps"],
        "gpu": {**gpu, **describe_driver()},
        "checked": {**checked, "edges": made["edges"], "warnings": log.warnings[:_MAX_WARNINGS]},
    }


def _build_plan(trt: Any, log: Any, request: Json, arrays: Arrays, report: Report) -> Tuple[bytes, Json]:
    """Return the plan as saved, and what the network was."""
    builder = log.require(trt.Builder(log), "makes no builder")
    report(0.02, "parsing")
    network, parser = parse_network(trt, builder, log, request)
    check_edges(network, request, _PRODUCT)
    parsed = {"layers": describe_layers(network)}
    taps = mark_taps(network, request.get("taps", ()), request.get("tapped_as", "debug"))
    config = configure(trt, builder, log, request)
    constrained = _pin(trt, network, request["pins"])
    if request["preferred"]:
        constrained += _prefer(trt, network, request["preferred"], but=request["pins"])
    if constrained:
        # OBEY alone, without any constraint, makes 8.6.0 refuse every INT8 residual network.
        prefers = request["preferred"] or "INT8" in request["flags"]
        name = "PREFER_PRECISION_CONSTRAINTS" if prefers else "OBEY_PRECISION_CONSTRAINTS"
        set_flags(trt, config, [*request["flags"], name], _PRODUCT)
    if request["calibrator"] is not None:
        set_calibrator(trt, builder, config, request["calibrator"], arrays)
    if request["timing_cache_out"]:
        load_timing_cache(config, request["timing_cache"], log)
    log.require_no_error("does not accept the settings")
    report(0.05, "building for %s: kernels are timed, which can take minutes" % request["target"])
    memory = builder.build_serialized_network(network, config)
    memory = log.require(memory, "cannot build it", hint_at_pools(request, log.errors))
    log.require_no_error("reported an error and went on")
    plan = bytes(memory)
    Path(request["plan"]).write_bytes(plan)
    if request["timing_cache_out"]:
        save_timing_cache(config, request["timing_cache_out"])
    flags = read_flags(trt, config)
    del parser  # it owns the weights that the network refers to
    return plan, {"parsed": {**parsed, "flags": flags}, "edges": describe_edges(network), "taps": taps}


def _pin(trt: Any, network: Any, nodes: List[str]) -> int:
    """
    Keep the layers of these ONNX nodes in FP32; return how many were constrained.

    Weakly typed networks may choose any precision that is allowed.
    """
    constrained = 0
    for layer in _layers_of(network, nodes):
        outputs = outputs_of(layer)
        if _is_free(layer):
            layer.precision = trt.DataType.FLOAT
            for index in range(len(outputs)):
                layer.set_output_type(index, trt.DataType.FLOAT)
            constrained += 1
    return constrained


def _prefer(trt: Any, network: Any, name: str, *, but: List[str]) -> int:
    """Ask for a data type in every layer that computes, but those of these nodes; return how many were asked."""
    kept = {layer.name for layer in _layers_of(network, but)}
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    asked = [layer for layer in layers if layer.name not in kept and _is_free(layer)]
    for layer in asked:
        layer.precision = trt.DataType.__members__[name]
    return len(asked)


def _layers_of(network: Any, nodes: List[str]) -> List[Any]:
    """Return the layers of these ONNX nodes, and the activations that follow them."""
    wanted = set(nodes)
    layers = [network.get_layer(index) for index in range(network.num_layers if wanted else 0)]
    found = [layer for layer in layers if wanted & set(nodes_of(layer) or [layer.name])]
    made = {tensor.name for layer in found for tensor in outputs_of(layer)}
    # An activation is fused with what it follows, and 8.6 has no kernel of two precisions for both.
    return found + [layer for layer in layers if layer.type.name == "ACTIVATION" and layer.get_input(0).name in made]


def _is_free(layer: Any) -> bool:
    """Return whether a layer computes in a floating type that can be chosen."""
    return layer.type.name not in _TYPED_KINDS and all(dtype_of(tensor) in _FLOATS for tensor in outputs_of(layer))


def _try_out(session: Session, request: Json, arrays: Arrays) -> Json:
    """Run the plan as loaded, on the first golden samples, or on random ones where they do not fit a profile."""
    described = session.describe()
    inputs = {name: array for name, array in arrays.items() if not name.startswith(PREFIX)}
    shapes = {name: list(array.shape) for name, array in inputs.items()}
    is_golden = bool(inputs) and choose_profile(described["profiles"], shapes) is not None
    if not is_golden:
        inputs = _random_inputs(described, request["seed"])
    outputs = session.run(inputs)
    return {
        "inputs": "golden" if is_golden else "random",
        "shapes": [{name: list(array.shape) for name, array in inputs.items()}],
        "runs": 1,
        "not_finite": _count_not_finite(outputs),
    }


def _random_inputs(described: Json, seed: int) -> Arrays:
    generator = np.random.default_rng(seed)
    best = described["profiles"][0]
    inputs: Arrays = {}
    for each in described["inputs"]:
        shape = best[each["name"]]["opt"]
        if each["type"] in _FLOATS:
            dtype = "float32" if each["type"] == "bfloat16" else each["type"]
            inputs[each["name"]] = generator.standard_normal(shape, dtype="float32").astype(dtype)
        else:  # small counts: they may be indices
            inputs[each["name"]] = generator.integers(0, 2, shape).astype(each["type"])
    return inputs


def _count_not_finite(outputs: Mapping[str, Any]) -> Dict[str, int]:
    floating = {name: array for name, array in outputs.items() if array.dtype.kind == "f"}
    counts = {name: int(array.size - np.isfinite(array).sum()) for name, array in floating.items()}
    return {name: count for name, count in counts.items() if count}


JOBS = {"build": build}
