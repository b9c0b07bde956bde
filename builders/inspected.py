"""The realised precision of a TensorRT plan, as its inspector tells after loading it. Runs in the child process.

The inspector lists what TensorRT made of the network: fused layers, each with the ONNX nodes that it stands for, the
formats of its tensors and the type of its weights. Names of keys differ between releases; what is missing is left out.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from modelreg.builders.graphs import initialiser_bytes
from modelreg.builders.realised import weights_by_node
from modelreg.builders.trt_network import read_nodes

Json = dict[str, Any]

_PRECISIONS = ("int8", "fp8", "fp16", "bf16", "tf32", "fp32")
"""The words of precisions, the lowest first."""
_LOW = {"int8": {"int8"}, "fp16": {"fp16"}, "bf16": {"bf16"}, "fp8": {"fp8"}, "best": {"fp16", "bf16", "int8", "fp8"}}
_FORMATS = (
    (re.compile(r"\bint8\b", re.IGNORECASE), "int8"),
    (re.compile(r"\bfp8\b", re.IGNORECASE), "fp8"),
    (re.compile(r"\bfp16\b|\bhalf\b", re.IGNORECASE), "fp16"),
    (re.compile(r"\bbf16\b|\bbfloat16\b", re.IGNORECASE), "bf16"),
    (re.compile(r"\bfp32\b|\bfloat\b", re.IGNORECASE), "fp32"),
)
_MOVES = ("Reformat", "NoOp", "Constant", "Shuffle", "Cast", "Reformatting")


def read_inspected(layers: Path, model: Path, recipe: Mapping[str, Any], pinned: Sequence[str]) -> Json:
    """
    Return what an engine became, in the words of `realised.read_realised`.

    Args:
        layers: The file of the build job: flags, layers as parsed, and `inspected`.
        model: The ONNX that was parsed.
        recipe: The whole recipe.
        pinned: Nodes that were constrained to FP32.

    Returns:
        The same keys, and `layers`: name, precision and ONNX nodes of every layer of the plan.
    """
    found = json.loads(layers.read_text())
    built = [_read_layer(layer) for layer in found["inspected"].get("Layers", []) if isinstance(layer, dict)]
    graph = onnx.load(model, load_external_data=False).graph
    asked = str(recipe["precision"])
    words = _words_by_node(built)
    body: Json = {
        "storage": _storage(built),
        "compute": _compute(built, words, graph, found["flags"]),
        "ops": _count(built),
        "initialiser_bytes": initialiser_bytes(graph),
        "flags": found["flags"],
        "layers": [{key: layer[key] for key in ("name", "precision", "nodes")} for layer in built],
        "eligible": 0,
        "converted": 0,
        "stayed": [],
        "kept": [],
        "unwanted": [],
        "note": "" if built else "the inspector tells of no layer",
    }
    if asked == "tf32":
        count = len(weights_by_node(graph)) if "TF32" in found["flags"] else 0
        return body | {"eligible": count, "converted": count}
    return body if asked == "fp32" else body | _judge(graph, words, recipe, pinned)


def _judge(graph: onnx.GraphProto, words: Mapping[str, str], recipe: Mapping[str, Any], pinned: Sequence[str]) -> Json:
    """Sort the nodes with weights by what became of them; a weakly typed TensorRT may leave some in FP32."""
    asked, wanted = str(recipe["precision"]), _LOW[str(recipe["precision"])]
    op_types = {node.name: str(node.op_type) for node in graph.node}
    kept_names = {*pinned, *_excluded(recipe, op_types)}
    is_free = recipe.get("typing") == "weak" and recipe["variant"] is None
    converted = 0
    stayed: list[str] = []
    kept: list[str] = []
    unwanted: list[str] = []
    for name in weights_by_node(graph):
        word, label = words.get(name, ""), f"{name} ({op_types[name]})"
        if word in wanted:
            converted += 1
            unwanted += [label] * (name in kept_names)
        elif name in kept_names or (is_free and word):
            kept.append(label)
        elif word:
            stayed.append(label)
    unread = [name for name in weights_by_node(graph) if name not in words]
    notes = [f"TensorRT chose a higher precision for {len(kept)} layers with weights"] if is_free and kept else []
    notes += [f"the inspector does not tell of {len(unread)} layers with weights"] if unread else []
    return {
        "eligible": converted + len(stayed),
        "converted": converted,
        "stayed": stayed,
        "kept": kept,
        "unwanted": unwanted,
        "note": "; ".join(notes) or ("" if converted else f"no layer with weights became {asked}"),
    }


def _excluded(recipe: Mapping[str, Any], op_types: Mapping[str, str]) -> Iterable[str]:
    variant = recipe["variant"]
    if variant is None:
        return ()
    types = set(variant["excluded_op_types"])
    return {*variant["excluded_nodes"], *(name for name, op in op_types.items() if op in types)}


def _read_layer(layer: Mapping[str, Any]) -> Json:
    name = str(layer.get("Name", ""))
    return {
        "name": name,
        "kind": str(layer.get("LayerType", "")),
        "nodes": _nodes(layer, name),
        "precision": _precision(layer),
        "weights": _word(str(_weights(layer).get("Type", ""))),
    }


def _nodes(layer: Mapping[str, Any], name: str) -> list[str]:
    """Return the ONNX nodes behind a layer: from its metadata, else from the parts of its name."""
    stated = read_nodes(str(layer.get("Metadata", "")))
    return stated or [part.strip() for part in re.split(r" \+ |\|\|", name)]


def _weights(layer: Mapping[str, Any]) -> Mapping[str, Any]:
    weights = layer.get("Weights")
    return weights if isinstance(weights, dict) else {}


def _precision(layer: Mapping[str, Any]) -> str:
    """Return in what a layer computes: the type of its weights, else the lowest of its tensors."""
    weights = _word(str(_weights(layer).get("Type", "")))
    if weights:
        return weights
    words = {_format(tensor) for side in ("Inputs", "Outputs") for tensor in layer.get(side, []) or []}
    return next((word for word in _PRECISIONS if word in words), "other")


def _format(tensor: Any) -> str:
    if not isinstance(tensor, dict):
        return ""
    return _word(f"{tensor.get('Format/Datatype', '')} {tensor.get('Datatype', '')} {tensor.get('DataType', '')}")


def _word(text: str) -> str:
    return next((word for pattern, word in _FORMATS if pattern.search(text)), "")


def _words_by_node(built: Sequence[Json]) -> dict[str, str]:
    """Return the precision of each ONNX node: of the layer that computes it, not of one that moves its values."""
    words: dict[str, str] = {}
    for layer in sorted(built, key=lambda each: each["kind"] not in _MOVES):
        for node in layer["nodes"]:
            words[node] = layer["precision"]
    return words


def _storage(built: Sequence[Json]) -> str:
    found = {layer["weights"] or layer["precision"] for layer in built if layer["kind"] not in _MOVES}
    return next((word for word in _PRECISIONS if word in found), "fp32")


def _compute(built: Sequence[Json], words: Mapping[str, str], graph: onnx.GraphProto, flags: Sequence[str]) -> str:
    """Return in what the layers with weights compute, or all layers where none has weights."""
    found = {words[name] for name in weights_by_node(graph) if name in words}
    found = found or {layer["precision"] for layer in built if layer["kind"] not in _MOVES} - {"other"}
    if len(found) != 1:
        return "mixed" if found else "fp32"
    word = found.pop()
    return "tf32" if word == "fp32" and "TF32" in flags else word


def _count(built: Sequence[Json]) -> dict[str, dict[str, int]]:
    counted: dict[str, Counter[str]] = {}
    for layer in built:
        word = "casts" if layer["kind"] in _MOVES else layer["precision"]
        counted.setdefault(word, Counter())[layer["kind"]] += 1
    return {word: dict(sorted(each.items())) for word, each in sorted(counted.items())}
