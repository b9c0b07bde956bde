"""From an ONNX to a network of TensorRT or TensorRT-RTX, and what that network is. Python 3.8.

Used by the job files of both, which load their backend here; elsewhere its module is passed in.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from typing import Any, Dict, List, Sequence, Tuple

from modelreg.builders.trt_capabilities import has, version_numbers
from modelreg.registry.toolchains.trt_log import BackendChangedError, TensorRTError, clean, join

Json = Dict[str, Any]

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
_NODE = re.compile(r"\[ONNX Layer: (.*?)\](?=\x1e|\s*\[ONNX Layer: |\s*\Z)", re.DOTALL)
_SHAPING_KINDS = ("SHUFFLE", "SQUEEZE", "UNSQUEEZE")


def load_backend(names: Sequence[str], product: str) -> Any:
    """
    Import the first of these modules that is installed.

    Raises:
        BackendChangedError: None is, or it cannot be imported: libraries that it loads may be gone.
    """
    for name in names:
        if getattr(importlib.util.find_spec(name), "origin", None):  # an uninstallation may leave an empty folder
            try:
                return importlib.import_module(name)
            except (ImportError, OSError) as error:
                raise BackendChangedError(
                    "%s cannot be imported in %s: %s" % (product, sys.executable, error)
                ) from error
    raise BackendChangedError("%s is not installed in %s" % (product, sys.executable))


def require_version(trt: Any, request: Json, product: str) -> None:
    """Refuse an interpreter whose backend is no longer the one that was registered."""
    shared = min(len(version_numbers(trt.__version__)), len(version_numbers(request["version"])))
    if version_numbers(trt.__version__)[:shared] != version_numbers(request["version"])[:shared]:
        raise BackendChangedError(
            "the toolchain was registered with %s %s, its interpreter has %s now"
            % (product, request["version"], trt.__version__),
            "Register what is there now: modelreg toolchain add",
        )


def parse_network(trt: Any, builder: Any, log: Any, request: Json) -> Tuple[Any, Any]:
    """
    Return the network of `request["model"]`, and its parser, which owns the weights that the network refers to.

    Raises:
        TensorRTError: It cannot be parsed; says at which nodes and why.
    """
    members = trt.NetworkDefinitionCreationFlag.__members__
    wanted = ["EXPLICIT_BATCH"] + ["STRONGLY_TYPED"] * request["strongly_typed"]
    flags = sum(1 << int(members[name]) for name in wanted if name in members)
    network = log.require(builder.create_network(flags), "makes no network")
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(request["model"]):
        raise _parse_error(parser, log, request["backend"], request["version"])
    log.require_no_error("reported an error while parsing")
    return network, parser


def _parse_error(parser: Any, log: Any, backend: str, version: str) -> TensorRTError:
    named = has("parser names nodes", backend, version)
    nodes = [_describe_error(parser.get_error(index), named) for index in range(parser.num_errors)]
    listed = ["%s (%s): %s" % (each["node"], each["op"] or "no op", each["reason"]) for each in nodes]
    reasons = join(listed) or log.say_errors() or "no reason given"
    hint = "Replace these nodes in the model, or build for another backend."
    if any("plugin" in each["reason"] for each in nodes):
        hint = "Give the library that has the plugin with --plugins, replace these nodes, or build for another backend."
    return TensorRTError("%s %s cannot parse the model: %s" % (log.product, version, reasons), hint, nodes)


def _describe_error(error: Any, named: bool) -> Json:
    """Return a parser's error as node, op and reason; 8.6 does not name the node, but counts it."""
    return {
        "node": (error.node_name() if named else "") or "#%d" % error.node(),
        "op": error.node_operator() if named else "",
        "code": _code(error),
        "reason": _reason(error),
    }


def _code(error: Any) -> str:
    """Return the name of a parser's error code; in 8.6 the code's own `name` is a method."""
    return str(error.code()).rpartition(".")[2]


def _reason(error: Any) -> str:
    text = clean(error.desc())
    if _code(error) == "UNSUPPORTED_NODE" and text in ("", "false"):
        return "there is no importer for this op"
    if "Plugin not found" in text or "getPluginCreator" in text:
        return "no importer and no plugin for this op"
    return re.sub(r"^Invalid Node - \S+ ", "", text)


def check_edges(network: Any, request: Json, product: str) -> None:
    """
    Refuse a network that does not take and give what the source does: the parser may narrow types silently.

    Raises:
        TensorRTError: Says which input or output.
    """
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    outputs = [network.get_output(index) for index in range(network.num_outputs)]
    for what, tensors in (("inputs", inputs), ("outputs", outputs)):
        names, known = [each.name for each in tensors], list(request[what])
        if names != known:
            raise TensorRTError("the network has %s %s, the source %s" % (what, ", ".join(names), ", ".join(known)))
    for each in inputs:
        if each.is_shape_tensor:
            raise TensorRTError("input %r decides shapes by its values, which is not supported yet" % each.name)
    if not request["keep_io_types"]:
        return
    backend = request["backend"]
    for what, tensors in (("input", inputs), ("output", outputs)):
        for each in tensors:
            wanted, found = request[what + "s"][each.name], dtype_of(each)
            # TensorRT before 10 has no INT64; who runs the plan converts, and refuses what does not fit
            is_narrowed = (wanted, found) == ("int64", "int32") and not has("int64", backend, request["version"])
            if found != wanted and not is_narrowed:
                raise TensorRTError(
                    "%s %r is %s in the source, and %s in %s" % (what, each.name, wanted, found, product),
                    "%s computes no float64: export the model in float32." % product if wanted == "float64" else "",
                )


def mark_taps(network: Any, names: Sequence[str], how: str) -> List[str]:
    """
    Make values between layers readable; return the tensors that the network has and that were marked.

    Args:
        network: As parsed.
        names: Tensors of the ONNX.
        how: `debug`, which leaves fusions alone as far as TensorRT can, or `output`, for releases without it.
    """
    outputs = {network.get_output(index).name for index in range(network.num_outputs)}
    wanted, marked = set(names) - outputs, []
    for index in range(network.num_layers if wanted else 0):
        for tensor in outputs_of(network.get_layer(index)):
            if tensor is None or tensor.name not in wanted:
                continue
            wanted.discard(tensor.name)
            if how == "debug":
                if not network.mark_debug(tensor):
                    continue
            else:
                network.mark_output(tensor)
            marked.append(tensor.name)
    return marked


def describe_edges(network: Any) -> Json:
    """Return the inputs and outputs of a network, each with `name`, `dtype` and `shape` (-1: free)."""
    return {
        "inputs": [_describe(network.get_input(index)) for index in range(network.num_inputs)],
        "outputs": [_describe(network.get_output(index)) for index in range(network.num_outputs)],
    }


def _describe(tensor: Any) -> Json:
    return {"name": tensor.name, "dtype": dtype_of(tensor), "shape": list(tensor.shape)}


def dtype_of(tensor: Any) -> str:
    """Return the type of a network's tensor in NumPy's words."""
    name: str = tensor.dtype.name
    return _DTYPES.get(name, name.lower())


def describe_layers(network: Any) -> List[Json]:
    """Return every layer: its kind, the ONNX nodes it stands for, its types, and what makes its inputs' values."""
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    kinds: Dict[str, str] = {}
    for layer in layers:
        kind = layer.type.name
        if kind in _SHAPING_KINDS:  # the parser puts them between what it dequantises and a product of more axes
            kind = kinds.get(layer.get_input(0).name, "INPUT")
        kinds.update({tensor.name: kind for tensor in outputs_of(layer)})
    described = []
    for layer in layers:
        inputs = [layer.get_input(index) for index in range(layer.num_inputs)]
        present = [tensor for tensor in inputs if tensor is not None]
        described.append(
            {
                "name": layer.name,
                "kind": layer.type.name,
                "nodes": nodes_of(layer),
                "inputs": [dtype_of(tensor) for tensor in present],
                "outputs": [dtype_of(tensor) for tensor in outputs_of(layer)],
                "sources": [kinds.get(tensor.name, "INPUT") for tensor in present],
            }
        )
    return described


def nodes_of(layer: Any) -> List[str]:
    """Return the names of the ONNX nodes that a layer was parsed from."""
    return read_nodes(layer.metadata or "")


def read_nodes(metadata: str) -> List[str]:
    """Return the names of the ONNX nodes in the metadata of a layer; a name may hold brackets and line breaks."""
    return _NODE.findall(metadata)


def outputs_of(layer: Any) -> List[Any]:
    """Return the output tensors of a layer."""
    return [layer.get_output(index) for index in range(layer.num_outputs)]
