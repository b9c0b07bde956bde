"""The job file of TensorRT-RTX: parse, check, compile ahead of time for a GPU that need not be here, save.

Runs in the toolchain's interpreter: Python 3.8, the standard library and TensorRT-RTX (1.4 or newer) alone. The
network is strongly typed: the ONNX says each tensor's type, and a builder flag is what the recipe lists by name.
Everything that TensorRT refuses it says to its logger alone, so a logged error fails the build.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from modelreg.builders.trt_capabilities import version_numbers
from modelreg.builders.trt_config import configure, hint_at_pools, read_flags
from modelreg.builders.trt_network import (
    check_edges,
    describe_edges,
    describe_layers,
    load_backend,
    mark_taps,
    parse_network,
    require_version,
)
from modelreg.registry.toolchains.trt_log import TensorRTError, make_log

Json = Dict[str, Any]
Report = Callable[[Optional[float], str], None]

_MODULES = ("tensorrt_rtx", "tensorrt_rtx_bindings")
_PRODUCT = "TensorRT-RTX"
_MAX_WARNINGS = 20


def build(request: Json, _arrays: Json, report: Report) -> Json:
    """
    Build `request["model"]` for `request["target"]` into `request["plan"]`; answer with what was made of it.

    The types of every layer go to the file `request["layers"]`.
    """
    trt = load_backend(_MODULES, _PRODUCT)
    require_version(trt, request, _PRODUCT)
    log = make_log(trt, _PRODUCT)
    builder = log.require(trt.Builder(log), "makes no builder")
    report(0.05, "parsing")
    network, parser = parse_network(trt, builder, log, {**request, "strongly_typed": True})
    check_edges(network, request, _PRODUCT)
    taps = mark_taps(network, request.get("taps", ()), request.get("tapped_as", "debug"))
    report(0.2, "setting up the build")
    config = configure(trt, builder, log, request)
    _set_target(trt, config, request["target"])
    log.require_no_error("does not accept the settings")
    began = time.monotonic()
    report(0.3, "compiling for %s" % request["target"])
    plan = builder.build_serialized_network(network, config)
    build_s = time.monotonic() - began
    hint = _hint(trt.__version__, log.errors) or hint_at_pools(request, log.errors)
    log.require(plan, "cannot build it for %s" % request["target"], hint)
    log.require_no_error("reported an error and went on")
    report(0.9, "saving")
    Path(request["plan"]).write_bytes(plan)
    flags = read_flags(trt, config)
    Path(request["layers"]).write_text(json.dumps({"flags": flags, "layers": describe_layers(network)}))
    del parser  # it owns the weights that the network refers to
    return {
        "version": trt.__version__,
        "flags": flags,
        "build_s": build_s,
        "taps": taps,
        **describe_edges(network),
        "warnings": log.warnings[:_MAX_WARNINGS],
    }


def _hint(version: str, errors: List[str]) -> str:
    """Return what to do about a refusal whose text does not say."""
    text = " ".join(errors)
    if "FP32 GEMM is not supported" in text:
        return "Build fp16 for this target, or leave it out."
    if "HW-specific datatypes" in text:
        return "This GPU does not have the type: build fp16 for it, or leave it out."
    if "dtype == myelinTypeFloat" in text and version_numbers(version) < (1, 7):
        return (
            "TensorRT-RTX before 1.7 does not compile INT8 convolutions without a GPU: build with a newer one, "
            "or keep them in FP32 with --op-types-to-exclude Conv."
        )
    return ""


def _set_target(trt: Any, config: Any, target: str) -> None:
    members = trt.ComputeCapability.__members__
    name = target.replace("sm_", "SM")
    if name not in members:
        raise TensorRTError("%s %s does not build for %s" % (_PRODUCT, trt.__version__, target))
    config.num_compute_capabilities = 1
    if not config.set_compute_capability(members[name], 0) or config.get_compute_capability(0) != members[name]:
        raise TensorRTError("%s did not take %s as its target" % (_PRODUCT, target))


JOBS = {"build": build}
