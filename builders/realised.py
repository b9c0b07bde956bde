"""The realised precision: what the optimised graph of ONNX Runtime really holds. Runs in the child process.

INT8 is read from the plan: a weighted node is INT8 when its kernel is an integer one. FP16 is read from both: the
variant tells which nodes round to FP16, the plan what is stored, and in what its kernels compute.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto

from modelreg.builders.graphs import element_types, initialiser_bytes
from modelreg.builders.kept import kept_nodes
from modelreg.builders.subgraphs import bodies_of, graphs_of, is_copy
from modelreg.builders.variant_settings import WEIGHTED_OPS

Json = dict[str, Any]

_INTEGER_OPS = ("ConvInteger", "MatMulInteger", "MatMulIntegerToFloat", "QGemm", "DynamicQuantizeMatMul")
_FLOAT_KERNELS = {
    "Conv": ("Conv", "FusedConv", "NhwcFusedConv"),
    "Gemm": ("Gemm", "FusedGemm"),
    "MatMul": ("MatMul", "FusedMatMul"),
}
_KERNEL_OPS = {kernel: op for op, kernels in _FLOAT_KERNELS.items() for kernel in kernels}
_CASTS = ("Cast", "CastLike", "QuantizeLinear", "DequantizeLinear", "Constant")
_WORDS: dict[int, str] = {
    TensorProto.FLOAT: "fp32",
    TensorProto.FLOAT16: "fp16",
    TensorProto.BFLOAT16: "bf16",
    TensorProto.DOUBLE: "fp64",
    TensorProto.INT8: "int8",
    TensorProto.UINT8: "int8",
}


def read_realised(plan: Path, model: Path, variant: Mapping[str, Any] | None) -> Json:
    """
    Return what a plan became.

    Args:
        plan: The optimised graph as saved.
        model: What was optimised: the variant, or the source.
        variant: The variant part of the recipe, or None for FP32.

    Returns:
        `storage` and `compute` (words), `ops` (op types counted by compute precision), `initialiser_bytes` by
        dtype, `eligible` and `converted` (numbers of nodes), `stayed` (nodes that should have become the asked
        precision and did not), `kept` (nodes that stayed on purpose), `unwanted` (nodes that should have stayed and
        did not), `note`.
    """
    optimised = onnx.load(plan, load_external_data=False)
    ops = _count_ops(optimised)
    body: Json = {
        "storage": "fp32",
        "compute": "fp32",
        "ops": ops,
        "initialiser_bytes": initialiser_bytes(optimised.graph),
        "eligible": 0,
        "converted": 0,
        "stayed": [],
        "kept": [],
        "unwanted": [],
        "note": "",
    }
    if variant is None:
        compute = _compute(ops) or _integer_word(optimised)
        return body | {"storage": _plain_storage(body["initialiser_bytes"], compute), "compute": compute}
    made = onnx.load(model, load_external_data=False)
    return body | (
        _fp16(optimised, made, variant, ops) if variant["kind"] == "fp16" else _int8(optimised, made, variant)
    )


def stored_word(size_bytes: Mapping[str, int]) -> str:
    """Return in what floating-point weights are stored, given their bytes by dtype: the widest of them."""
    halves = {"float16": "fp16", "bfloat16": "bf16"}
    found = [word for dtype, word in halves.items() if size_bytes.get(dtype)]
    return found[0] if found and not size_bytes.get("float32") else "fp32"


def _plain_storage(size_bytes: Mapping[str, int], compute: str) -> str:
    """Return in what the weights of an unconverted model are stored; where none are floating, what it computes in."""
    if size_bytes.get("float32"):
        return "fp32"
    if size_bytes.get("float64"):
        return "fp64"
    return stored_word(size_bytes) if size_bytes.get("float16") or size_bytes.get("bfloat16") else compute


def _integer_word(model: onnx.ModelProto) -> str:
    """Return in what a graph without floating-point kernels computes: the type of most values that its nodes make."""
    types = element_types(model)
    made = [name for node in model.graph.node if node.op_type not in _CASTS for name in node.output]
    counted = Counter(types[name] for name in made or [value.name for value in model.graph.output] if name in types)
    if not counted:
        return "fp32"
    found = counted.most_common(1)[0][0]
    return _WORDS.get(found) or str(TensorProto.DataType.Name(found)).lower()


def _fp16(optimised: onnx.ModelProto, made: onnx.ModelProto, variant: Mapping[str, Any], ops: Json) -> Json:
    types = element_types(made)
    left = kept_nodes(made.graph, variant)
    converted, stayed, kept = 0, [], []
    for node in (node for graph in graphs_of(made.graph) for node in graph.node):
        touched = {types.get(name) for name in (*node.input, *node.output)}
        if (
            node.op_type in _CASTS
            or bodies_of(node)
            or is_copy(node)
            or not touched & {TensorProto.FLOAT, TensorProto.FLOAT16}
        ):
            continue
        if node.name in left:
            kept.append(_label(node))
        elif TensorProto.FLOAT16 in touched:
            converted += 1
        else:
            stayed.append(_label(node))
    wanted = initialiser_bytes(made.graph).get("float16", 0)
    found = initialiser_bytes(optimised.graph).get("float16", 0)
    compute = _compute(ops) or "fp32"
    note = (
        "" if compute == "fp16" else "stored in FP16, computed in FP32 between casts: judged in the pass `rounded` too"
    )
    return {
        "storage": "fp16" if 2 * found >= wanted else "fp32",
        "compute": compute,
        "eligible": converted + len(stayed),
        "converted": converted,
        "stayed": stayed,
        "kept": kept,
        "note": note,
    }


def _int8(optimised: onnx.ModelProto, made: onnx.ModelProto, variant: Mapping[str, Any]) -> Json:
    weights = weights_by_node(made.graph)
    excluded = {
        *variant["excluded_nodes"],
        *(node.name for node in made.graph.node if node.op_type in variant["excluded_op_types"]),
    }
    kept_weights = {weight for name, weight in weights.items() if name in excluded}
    constants = {tensor.name for tensor in optimised.graph.initializer}
    producers = {name: node for node in optimised.graph.node for name in node.output}
    converted = 0
    unwanted: list[str] = []
    stayed: list[str] = []
    kept: list[str] = []
    kept += _inner_weighted(optimised.graph)
    for node in optimised.graph.node:
        if _is_integer(node):
            converted += node.op_type in ("QLinearConv", "QLinearMatMul", *_INTEGER_OPS)
            unwanted += [_label(node)] * (node.name in excluded)
            continue
        weight = _weight(node, constants, producers) if node.op_type in _KERNEL_OPS else ""
        if not weight:
            continue
        # A fused kernel has a name of its own; its weight tells which node it was.
        is_kept = node.name in excluded or weight in kept_weights
        (kept if is_kept else stayed).append(_label(node))
    return {
        "storage": "int8" if converted else "fp32",
        "compute": "int8" if converted and not kept and not stayed else ("mixed" if converted else "fp32"),
        "eligible": converted + len(stayed),
        "converted": converted,
        "stayed": stayed,
        "kept": kept,
        "unwanted": unwanted,
        "note": "" if converted or stayed else f"no {', '.join(WEIGHTED_OPS)} with constant weights to quantise",
    }


def _inner_weighted(graph: onnx.GraphProto) -> list[str]:
    """Return the weighted nodes of branches and loops, which the quantiser leaves alone."""
    inner = (node for each in list(graphs_of(graph))[1:] for node in each.node)
    return [_label(node) for node in inner if node.op_type in _KERNEL_OPS]


def weights_by_node(graph: onnx.GraphProto, op_types: Collection[str] = WEIGHTED_OPS) -> dict[str, str]:
    """Return the initialiser behind each weighted node, by node name; nodes without constant weights are left out."""
    constants = {tensor.name for tensor in graph.initializer}
    producers = {name: node for node in graph.node for name in node.output}
    found = {node.name: _weight(node, constants, producers) for node in graph.node if node.op_type in op_types}
    return {name: weight for name, weight in found.items() if weight}


def _weight(node: onnx.NodeProto, constants: set[str], producers: Mapping[str, onnx.NodeProto]) -> str:
    """Return the initialiser behind a node's weight, seen through Q and DQ nodes, or an empty string."""
    candidates = node.input[:2] if _KERNEL_OPS.get(node.op_type) in ("Gemm", "MatMul") else node.input[1:2]
    for candidate in reversed(candidates):
        name = candidate
        while name in producers and producers[name].op_type in ("DequantizeLinear", "QuantizeLinear"):
            name = producers[name].input[0]
        if name in constants:
            return str(name)
    return ""


def _is_integer(node: onnx.NodeProto) -> bool:
    return node.op_type.startswith("QLinear") or node.op_type in _INTEGER_OPS


def _compute(ops: Mapping[str, Mapping[str, int]]) -> str:
    """Return in what the weighted kernels compute, or all kernels where none has weights; "" where none is floating."""
    counted = {word: sum(n for op, n in each.items() if op in _KERNEL_OPS) for word, each in ops.items()}
    if not any(counted.values()):
        counted = {word: sum(each.values()) for word, each in ops.items()}
    found = [word for word in ("fp16", "bf16", "fp32", "fp64") if counted.get(word)]
    return "mixed" if len(found) > 1 else "".join(found)


def _count_ops(model: onnx.ModelProto) -> dict[str, dict[str, int]]:
    """Count op types by compute precision; data movement counts under the type that it moves."""
    types = element_types(model)
    counted: dict[str, Counter[str]] = {}
    for node in (node for graph in graphs_of(model.graph) for node in graph.node):
        _guess_types(node, types)
        word = "casts" if node.op_type in _CASTS else _precision(node, types)
        counted.setdefault(word, Counter())[node.op_type] += 1
    return {word: dict(sorted(each.items())) for word, each in sorted(counted.items())}


def _precision(node: onnx.NodeProto, types: Mapping[str, int]) -> str:
    if _is_integer(node):
        return "int8"
    words = [_WORDS[types[name]] for name in (*node.output, *node.input) if types.get(name) in _WORDS]
    return words[0] if words else "other"


def _guess_types(node: onnx.NodeProto, types: dict[str, int]) -> None:
    """Fill in the output type of ops that ONNX does not know: ONNX Runtime's own keep the type of their input."""
    if _is_integer(node):
        guess: int = TensorProto.FLOAT if node.op_type == "MatMulIntegerToFloat" else TensorProto.UINT8
    else:
        guess = next((types[name] for name in node.input if name in types), 0)
    for name in node.output:
        if guess:
            types.setdefault(name, guess)


def _label(node: onnx.NodeProto) -> str:
    return f"{node.name} ({node.op_type})"
