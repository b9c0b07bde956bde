"""The realised precision of an engine that cannot be asked: what types its strongly typed network was parsed with.

TensorRT keeps to the types of such a network. Which kernel runs a layer is decided on the GPU; this does not say.
Runs in the child process.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from modelreg.builders.graphs import initialiser_bytes
from modelreg.builders.kept import kept_nodes
from modelreg.builders.realised import stored_word, weights_by_node
from modelreg.builders.variant_settings import GPU_WEIGHTED_OPS

Json = dict[str, Any]

_NOTE = "read from the types of the network as parsed: the plan was not run, there was no GPU to ask"
_WORDS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64", "int8": "int8", "fp8": "fp8"}
_HALF_TYPES = {"fp16": "float16", "bf16": "bfloat16"}
_STORED_TYPES = {"int8": "int8", "fp8": "float8_e4m3fn"}
_FLOATS = ("float32", "float16", "bfloat16")
_WEIGHTED_KINDS = ("CONVOLUTION", "DECONVOLUTION", "MATRIX_MULTIPLY")
_SILENT_KINDS = ("CAST", "CONSTANT", "IDENTITY", "SHAPE", "QUANTIZE", "DEQUANTIZE")
"""Layers that convert, hold or measure values instead of computing."""


def read_parsed(layers: Path, model: Path, variant: Mapping[str, Any] | None) -> Json:
    """
    Return what an engine became, in the words of `realised.read_realised`.

    Args:
        layers: The file that the job of the backend wrote: flags, and every layer with its types.
        model: The ONNX that was parsed: the variant, or the source.
        variant: The variant part of the recipe, or None for FP32 and TF32.
    """
    found = json.loads(layers.read_text())
    graph = onnx.load(model, load_external_data=False).graph
    quantised = _quantised_word(found["layers"])
    body: Json = {
        "storage": stored_word(initialiser_bytes(graph)),
        "compute": _compute(found["layers"], found["flags"], quantised),
        "ops": _count_kinds(found["layers"], quantised),
        "initialiser_bytes": initialiser_bytes(graph),
        "flags": found["flags"],
        "eligible": 0,
        "converted": 0,
        "stayed": [],
        "kept": [],
        "unwanted": [],
        "note": _NOTE,
    }
    if variant is None:
        weighted = sum(
            _word(layer, quantised) == "fp32" for layer in found["layers"] if layer["kind"] in _WEIGHTED_KINDS
        )
        return body | ({"eligible": weighted, "converted": weighted} if "TF32" in found["flags"] else {})
    if variant["kind"] in _HALF_TYPES:
        return body | _half(found["layers"], graph, variant)
    return body | _quantised(found["layers"], graph, variant)


def _half(layers: Sequence[Json], graph: onnx.GraphProto, variant: Mapping[str, Any]) -> Json:
    word = variant["kind"]
    half = _HALF_TYPES[word]
    op_types = {node.name: str(node.op_type) for node in graph.node}
    touched: dict[str, set[str]] = {}
    for layer in layers:
        if layer["kind"] not in _SILENT_KINDS:
            for name in layer["nodes"]:
                types = {dtype for dtype in (*layer["inputs"], *layer["outputs"]) if dtype in _FLOATS}
                touched.setdefault(name, set()).update(types)
    left = kept_nodes(graph, variant)
    converted = 0
    stayed: list[str] = []
    kept: list[str] = []
    unwanted: list[str] = []
    for name, types in touched.items():
        if not types:
            continue
        label = f"{name} ({op_types.get(name, '?')})"
        if name in left:
            (unwanted if types == {half} else kept).append(label)
        elif half in types:
            converted += 1
        else:
            stayed.append(label)
    stored = initialiser_bytes(graph)
    return {
        "storage": word if stored.get(half) or not stored.get("float32") else "fp32",
        "eligible": converted + len(stayed),
        "converted": converted,
        "stayed": stayed,
        "kept": kept,
        "unwanted": unwanted,
    }


def _quantised(layers: Sequence[Json], graph: onnx.GraphProto, variant: Mapping[str, Any]) -> Json:
    word = variant["kind"]
    op_types = {node.name: str(node.op_type) for node in graph.node}
    has_type = _quantised_word(layers) == word
    quantised = {name for layer in layers if has_type and _is_quantised(layer) for name in layer["nodes"]}
    excluded_ops = set(variant["excluded_op_types"])
    converted = 0
    stayed: list[str] = []
    kept: list[str] = []
    unwanted: list[str] = []
    for name in weights_by_node(graph, GPU_WEIGHTED_OPS):
        label = f"{name} ({op_types[name]})"
        is_kept = name in variant["excluded_nodes"] or op_types[name] in excluded_ops
        if name in quantised:
            converted += 1
            unwanted += [label] * is_kept
        else:
            (kept if is_kept else stayed).append(label)
    return {
        "storage": word if initialiser_bytes(graph).get(_STORED_TYPES[word]) else "fp32",
        "eligible": converted + len(stayed),
        "converted": converted,
        "stayed": stayed,
        "kept": kept,
        "unwanted": unwanted,
        "note": _NOTE if converted or stayed else f"no {', '.join(GPU_WEIGHTED_OPS)} with constant weights to quantise",
    }


def _is_quantised(layer: Json) -> bool:
    """Return whether a layer multiplies what was dequantised just before: TensorRT makes one kernel of that."""
    return (
        layer["kind"] in _WEIGHTED_KINDS and len(layer["sources"]) > 1 and set(layer["sources"][:2]) == {"DEQUANTIZE"}
    )


def _quantised_word(layers: Sequence[Json]) -> str:
    """Return what values are dequantised from: a variant has one such type."""
    sources = {dtype for layer in layers if layer["kind"] == "DEQUANTIZE" for dtype in layer["inputs"][:1]}
    return "fp8" if "fp8" in sources else "int8"


def _word(layer: Json, quantised: str) -> str:
    if _is_quantised(layer):
        return quantised
    types = [_WORDS[dtype] for dtype in (*layer["outputs"], *layer["inputs"]) if dtype in _WORDS]
    return types[0] if types else "other"


def _compute(layers: Sequence[Json], flags: Sequence[str], quantised: str) -> str:
    """Return in what the weighted layers compute, or all layers where none has weights."""
    words = {_word(layer, quantised) for layer in layers if layer["kind"] in _WEIGHTED_KINDS}
    words = words or {_word(layer, quantised) for layer in layers if layer["kind"] not in _SILENT_KINDS} - {"other"}
    if len(words) != 1:
        return "mixed" if words else "fp32"
    word = words.pop()
    return "tf32" if word == "fp32" and "TF32" in flags else word


def _count_kinds(layers: Sequence[Json], quantised: str) -> dict[str, dict[str, int]]:
    counted: dict[str, Counter[str]] = {}
    for layer in layers:
        word = "casts" if layer["kind"] in _SILENT_KINDS else _word(layer, quantised)
        counted.setdefault(word, Counter())[layer["kind"]] += 1
    return {word: dict(sorted(each.items())) for word, each in sorted(counted.items())}
