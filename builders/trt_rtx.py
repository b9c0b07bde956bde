"""The job file of TensorRT-RTX: parse, check, compile ahead of time for a GPU that need not be here, save.

Runs in the toolchain's interpreter: Python 3.8, the standard library and TensorRT-RTX (1.4 or newer) alone. The
network is strongly typed: the ONNX says each tensor's type, and a builder flag is what the recipe lists by name.
Everything that TensorRT refuses it says to its logger alone, so a logged error fails the build.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

Json = Dict[str, Any]
Report = Callable[[Optional[float], str], None]

_MODULES = ("tensorrt_rtx", "tensorrt_rtx_bindings")
_NOISE = re.compile(r"catchCudaError.*cudaError 35")
"""Each error is followed by this one where there is no driver."""

_ECHO = re.compile(r"catchCudaError.*Cuda Runtime \(In catchCudaError at [^:]*:\d+\)$")
"""The same in 1.4, which leaves the reason out; alone it would be an error like any other."""

_DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "INT8": "int8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
    "UINT8": "uint8",
}
_SHAPING_KINDS = ("SHUFFLE", "SQUEEZE", "UNSQUEEZE")
_MAX_SHOWN = 5
_MAX_WARNINGS = 20


class RtxBuildError(Exception):
    """TensorRT-RTX cannot build it; `details` carries the hint, and nodes that it cannot parse."""

    def __init__(self, message: str, hint: str = "", nodes: Optional[List[Json]] = None) -> None:
        super().__init__(message)
        self.details: Json = {"hint": hint} if hint else {}
        if nodes:
            self.details["nodes"] = nodes


def build(request: Json, _arrays: Json, report: Report) -> Json:
    """
    Build `request["model"]` for `request["target"]` into `request["plan"]`; answer with what was made of it.

    The types of every layer go to the file `request["layers"]`.
    """
    trt = _load()
    _require_version(trt, request)
    log = _make_log(trt)
    builder = _made(trt.Builder(log), log, "TensorRT-RTX makes no builder")
    report(0.05, "parsing")
    network, parser = _parse(trt, builder, log, request)
    _check_edges(network, request)
    report(0.2, "setting up the build")
    config = _configure(trt, builder, network, log, request)
    log.require_no_error("TensorRT-RTX does not accept the settings")
    began = time.monotonic()
    report(0.3, "compiling for %s" % request["target"])
    plan = builder.build_serialized_network(network, config)
    build_s = time.monotonic() - began
    _made(plan, log, "TensorRT-RTX cannot build it for %s" % request["target"], _hint(trt.__version__, log.errors))
    log.require_no_error("TensorRT-RTX reported an error and went on")
    report(0.9, "saving")
    Path(request["plan"]).write_bytes(plan)
    flags = _set_flags(trt, config)
    Path(request["layers"]).write_text(json.dumps({"flags": flags, "layers": _describe_layers(network)}))
    del parser  # it owns the weights that the network refers to
    return {
        "version": trt.__version__,
        "flags": flags,
        "build_s": build_s,
        "inputs": [_describe(network.get_input(index)) for index in range(network.num_inputs)],
        "outputs": [_describe(network.get_output(index)) for index in range(network.num_outputs)],
        "warnings": log.warnings[:_MAX_WARNINGS],
    }


def _load() -> Any:
    for name in _MODULES:
        if importlib.util.find_spec(name) is not None:
            return importlib.import_module(name)
    raise RtxBuildError("TensorRT-RTX is not installed in %s" % sys.executable)


def _require_version(trt: Any, request: Json) -> None:
    if trt.__version__ != request["version"]:
        raise RtxBuildError(
            "the toolchain was registered with TensorRT-RTX %s, its interpreter has %s now"
            % (request["version"], trt.__version__),
            "Register what is there now: modelreg toolchain add",
        )


def _make_log(trt: Any) -> Any:
    class Log(trt.ILogger):  # type: ignore[misc]
        """Writes what is said to the build log, and keeps what went wrong."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: List[str] = []
            self.warnings: List[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity > trt.ILogger.INFO:
                return
            sys.stderr.write("[%s] %s\n" % (severity.name, message))
            if severity <= trt.ILogger.ERROR:
                if not _NOISE.search(message) and not (self.errors and _ECHO.search(message)):
                    self.errors.append(clean(message))
            elif severity == trt.ILogger.WARNING and clean(message) not in self.warnings:
                self.warnings.append(clean(message))

        def require_no_error(self, problem: str) -> None:
            if self.errors:
                raise RtxBuildError("%s: %s" % (problem, _join(self.errors)))

    return Log()


def _made(thing: Any, log: Any, problem: str, hint: str = "") -> Any:
    """Return a thing that TensorRT made; what it could not make is None, and the reason in the log."""
    if thing is None:
        raise RtxBuildError("%s: %s" % (problem, _join(log.errors) or "it gives no reason"), hint)
    return thing


def _hint(version: str, errors: List[str]) -> str:
    """Return what to do about a refusal whose text does not say."""
    text = " ".join(errors)
    if "FP32 GEMM is not supported" in text:
        return "Build fp16 for this target, or leave it out."
    if "HW-specific datatypes" in text:
        return "This GPU does not have the type: build fp16 for it, or leave it out."
    numbers = tuple(int(number) for number in version.split(".")[:2])
    if "dtype == myelinTypeFloat" in text and numbers < (1, 7):
        return (
            "TensorRT-RTX before 1.7 does not compile INT8 convolutions without a GPU: build with a newer one, "
            "or keep them in FP32 with --op-types-to-exclude Conv."
        )
    return ""


def _parse(trt: Any, builder: Any, log: Any, request: Json) -> Tuple[Any, Any]:
    members = trt.NetworkDefinitionCreationFlag.__members__
    flags = sum(1 << int(members[name]) for name in ("STRONGLY_TYPED",) if name in members)
    network = _made(builder.create_network(flags), log, "TensorRT-RTX makes no network")
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(request["model"]):
        raise _parse_error(parser, log, request["version"])
    log.require_no_error("TensorRT-RTX reported an error while parsing")
    return network, parser


def _parse_error(parser: Any, log: Any, version: str) -> RtxBuildError:
    errors = [parser.get_error(index) for index in range(parser.num_errors)]
    nodes = [
        {
            "node": error.node_name() or "#%d" % error.node(),
            "op": error.node_operator(),
            "code": error.code().name,
            "reason": _reason(error),
        }
        for error in errors
    ]
    listed = ["%s (%s): %s" % (each["node"], each["op"] or "no op", each["reason"]) for each in nodes]
    return RtxBuildError(
        "TensorRT-RTX %s cannot parse the model: %s"
        % (version, _join(listed) or _join(log.errors) or "no reason given"),
        "Replace these nodes in the model, or build for another backend.",
        nodes,
    )


def _reason(error: Any) -> str:
    text = clean(error.desc())
    if error.code().name == "UNSUPPORTED_NODE" and text in ("", "false"):
        return "there is no importer for this op"
    if "Plugin not found" in text:
        return "no importer and no plugin for this op"
    return re.sub(r"^Invalid Node - \S+ ", "", text)


def _check_edges(network: Any, request: Json) -> None:
    """Refuse a network that does not take and give what the source does: the parser may narrow types silently."""
    found = [network.get_input(index) for index in range(network.num_inputs)]
    if [each.name for each in found] != list(request["inputs"]):
        names = ", ".join(each.name for each in found)
        raise RtxBuildError("the network has inputs %s, the source %s" % (names, ", ".join(request["inputs"])))
    for each in found:
        if each.is_shape_tensor:
            raise RtxBuildError("input %r decides shapes by its values, which is not supported yet" % each.name)
    outputs = [network.get_output(index) for index in range(network.num_outputs)]
    if [each.name for each in outputs] != list(request["outputs"]):
        names = ", ".join(each.name for each in outputs)
        raise RtxBuildError("the network has outputs %s, the source %s" % (names, ", ".join(request["outputs"])))
    if not request["keep_io_types"]:
        return
    for what, tensors, wanted in (("input", found, request["inputs"]), ("output", outputs, request["outputs"])):
        for each in tensors:
            if _dtype(each) != wanted[each.name]:
                raise RtxBuildError(
                    "%s %r is %s in the source, and %s in TensorRT-RTX"
                    % (what, each.name, wanted[each.name], _dtype(each))
                )


def _configure(trt: Any, builder: Any, network: Any, log: Any, request: Json) -> Any:
    config = _made(builder.create_builder_config(), log, "TensorRT-RTX makes no build configuration")
    members = trt.BuilderFlag.__members__
    unknown = [name for name in request["flags"] if name not in members]
    if unknown:
        raise RtxBuildError("TensorRT-RTX %s has no builder flag %s" % (trt.__version__, ", ".join(unknown)))
    for name, flag in members.items():
        if name in request["flags"]:
            config.set_flag(flag)
        elif config.get_flag(flag):
            config.clear_flag(flag)
    if sorted(_set_flags(trt, config)) != sorted(request["flags"]):  # a flag can be refused without a word
        raise RtxBuildError(
            "TensorRT-RTX took the flags %s instead of %s" % (_set_flags(trt, config), request["flags"])
        )
    verbosities = trt.ProfilingVerbosity.__members__
    config.profiling_verbosity = verbosities[request["profiling_verbosity"]]
    _set_target(trt, config, request["target"])
    for index, shapes in enumerate(request["profiles"]):
        _add_profile(builder, config, shapes, index, log)
    return config


def _set_flags(trt: Any, config: Any) -> List[str]:
    return sorted(name for name, flag in trt.BuilderFlag.__members__.items() if config.get_flag(flag))


def _set_target(trt: Any, config: Any, target: str) -> None:
    members = trt.ComputeCapability.__members__
    name = target.replace("sm_", "SM")
    if name not in members:
        raise RtxBuildError("TensorRT-RTX %s does not build for %s" % (trt.__version__, target))
    config.num_compute_capabilities = 1
    if not config.set_compute_capability(members[name], 0) or config.get_compute_capability(0) != members[name]:
        raise RtxBuildError("TensorRT-RTX did not take %s as its target" % target)


def _add_profile(builder: Any, config: Any, shapes: Json, index: int, log: Any) -> None:
    profile = builder.create_optimization_profile()
    for name, points in shapes.items():
        profile.set_shape(name, points["min"], points["opt"], points["max"])
    if not profile or config.add_optimization_profile(profile) != index:
        raise RtxBuildError("TensorRT-RTX does not take profile %d: %s" % (index, _join(log.errors) or shapes))


def _describe(tensor: Any) -> Json:
    return {"name": tensor.name, "dtype": _dtype(tensor), "shape": list(tensor.shape)}


def _dtype(tensor: Any) -> str:
    name: str = tensor.dtype.name
    return _DTYPES.get(name, name.lower())


def _describe_layers(network: Any) -> List[Json]:
    """Return every layer: its kind, the ONNX nodes it stands for, its types, and what makes its inputs' values."""
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    kinds: Dict[str, str] = {}
    for layer in layers:
        kind = layer.type.name
        if kind in _SHAPING_KINDS:  # the parser puts them between what it dequantises and a product of more axes
            kind = kinds.get(layer.get_input(0).name, "INPUT")
        kinds.update({tensor.name: kind for tensor in _outputs(layer)})
    described = []
    for layer in layers:
        inputs = [layer.get_input(index) for index in range(layer.num_inputs)]
        present = [tensor for tensor in inputs if tensor is not None]
        described.append(
            {
                "name": layer.name,
                "kind": layer.type.name,
                "nodes": re.findall(r"\[ONNX Layer: (.*?)\]", layer.metadata or ""),
                "inputs": [_dtype(tensor) for tensor in present],
                "outputs": [_dtype(tensor) for tensor in _outputs(layer)],
                "sources": [kinds.get(tensor.name, "INPUT") for tensor in present],
            }
        )
    return described


def _outputs(layer: Any) -> List[Any]:
    return [layer.get_output(index) for index in range(layer.num_outputs)]


def _join(texts: List[str]) -> str:
    more = "; and %d more" % (len(texts) - _MAX_SHOWN) if len(texts) > _MAX_SHOWN else ""
    return "; ".join(texts[:_MAX_SHOWN]) + more


def clean(message: str) -> str:
    """Return what TensorRT says on one line, without its source locations and the error of a missing driver."""
    lines = [line for line in message.splitlines() if not _NOISE.search(line)]
    text = " ".join(" ".join(lines).split())
    text = re.sub(r"\.? In \w+ at /_src/\S+?:\d+", "", text)
    text = re.sub(r"^[\w.]+\.cpp:\d+: ", "", text)
    return re.sub(r" \(In \w+ at /_src/[^)]*\)", "", text)[:600]


JOBS = {"build": build}
