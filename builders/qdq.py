"""INT8 variants: static Q/DQ nodes with calibrated ranges, by ONNX Runtime's tools. Runs in the child process."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import onnx.checker

from modelreg.builders.graph_sizes import EXTERNAL_BYTES
from modelreg.builders.graphs import (
    NothingToConvertError,
    VariantError,
    first_line,
    load_normalised,
    name_nodes,
    raise_opset,
    require_nodes,
    save_model,
    weight_bytes,
)
from modelreg.builders.precision import WEIGHTED_OPS
from modelreg.builders.ranges import Report, find_ranges
from modelreg.builders.subgraphs import captured_names, graphs_of, sort_nodes

_REMOVABLE_OPS = ("Relu", "Clip")


def make_int8(
    source: Path, target: Path, variant: Mapping[str, Any], calibration: Mapping[str, Any], report: Report
) -> list[Path]:
    """
    Write the Q/DQ variant of `source` to `target`; return the files written.

    Args:
        source: The ONNX, external data beside it.
        target: New file.
        variant: The variant part of the recipe.
        calibration: What `CalibrationSet.to_request` gave.
        report: Told about the passes.

    Raises:
        NothingToConvertError: Nothing is left to quantise.
        VariantError: A node to exclude is not there, or an activation is not finite on the calibration set.
    """
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
    from onnxruntime.quantization.quant_utils import load_model_with_shape_infer

    settings = variant["settings"]
    op_types = [op for op in settings["op_types"] if op not in variant["excluded_op_types"]]
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="int8-") as scratch:
        prepared, excluded = _prepare(source, Path(scratch), variant["excluded_nodes"])
        graph = onnx.load(prepared, load_external_data=False).graph
        _require_work(graph, op_types, excluded)
        is_big = weight_bytes(graph) > EXTERNAL_BYTES
        ranges = find_ranges(
            prepared,
            op_types,
            how=variant["calibration"],
            calibration=calibration,
            is_big=is_big,
            report=report,
        )
        report(0.9, "writing Q/DQ nodes")
        quantizer = QDQQuantizer(
            load_model_with_shape_infer(prepared),
            settings["per_channel"],
            settings["reduce_range"],
            QuantType[settings["weight_type"]],
            QuantType[settings["activation_type"]],
            ranges,
            [],
            [*excluded, *_captured_activations(graph)],
            op_types,
            {
                "ActivationSymmetric": settings["activation_symmetric"],
                "WeightSymmetric": settings["weight_symmetric"],
                **settings["options"],
            },
        )
        quantizer.quantize_model()
        model = quantizer.model.model
        sort_nodes(model.graph)  # the quantiser appends its nodes at the end
        if settings["guard_excluded"]:
            _guard(model.graph, {*excluded, *_of_types(model.graph, variant["excluded_op_types"])})
        name_nodes(model.graph)
        files = save_model(model, target)
    onnx.checker.check_model(target)
    return files


def _prepare(source: Path, scratch: Path, excluded: list[str]) -> tuple[Path, list[str]]:
    """Fold and infer shapes; return the new model and the excluded nodes' names in it."""
    model = load_normalised(source)
    require_nodes(model.graph, excluded)
    model = raise_opset(model)
    before = {node.name: node for node in model.graph.node}
    plain, folded, prepared = (scratch / f"{name}.onnx" for name in ("plain", "folded", "prepared"))
    _fold(plain, folded, is_big=len(save_model(model, plain)) > 1)
    onnx.shape_inference.infer_shapes_path(folded, prepared)
    inferred = onnx.load(prepared)
    if before and not inferred.graph.node:
        raise VariantError("nothing is left of the graph after folding constants: it has no inputs that matter")
    name_nodes(inferred.graph)
    save_model(inferred, prepared)
    return prepared, [_find_again(inferred.graph, before[name]) if name in before else name for name in excluded]


def _require_work(graph: onnx.GraphProto, op_types: list[str], excluded: list[str]) -> None:
    """Refuse a graph without a node that can become INT8: there would be nothing to calibrate."""
    weighted = [node for node in graph.node if node.op_type in WEIGHTED_OPS]
    if any(node.op_type in op_types and node.name not in excluded for node in weighted):
        return
    inner = [node for each in list(graphs_of(graph))[1:] for node in each.node if node.op_type in WEIGHTED_OPS]
    if weighted:
        why, hint = f"its {len(weighted)} weighted nodes are excluded", "Exclude fewer nodes, or build fp32 or fp16."
    elif inner:
        why, hint = f"{inner[0].name} ({inner[0].op_type}) lies inside a branch or loop", "Build fp32 or fp16 instead."
    else:
        found = ", ".join(sorted({node.op_type for node in graph.node}))
        why, hint = f"it has no {', '.join(WEIGHTED_OPS)}, only {found}", "Build fp32 or fp16 instead."
    raise NothingToConvertError(f"no node of this model can become INT8: {why}", hint=hint)


def _captured_activations(graph: onnx.GraphProto) -> list[str]:
    """Return the activations that must stay because a branch or loop uses what goes into them."""
    captured = {name for node in graph.node for name in captured_names(node)}
    return [node.name for node in graph.node if node.op_type in _REMOVABLE_OPS and node.input[0] in captured]


def _fold(model: Path, folded: Path, *, is_big: bool) -> None:
    """Fold constants and batch norms, which must be gone before nodes are quantised one by one."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(folded)
    if is_big:
        name = f"{folded.name}.data"
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", name)
    try:
        onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise VariantError(f"ONNX Runtime cannot load the model: {first_line(error)}") from error


def _find_again(graph: onnx.GraphProto, node: onnx.NodeProto) -> str:
    """Return the name of what became of a node: same name, else same output, else same weight."""
    if any(each.name == node.name for each in graph.node):
        return node.name
    weights = set(node.input) & {tensor.name for tensor in graph.initializer}
    for each in graph.node:
        if set(each.output) & set(node.output) or set(each.input) & weights:
            return str(each.name)
    raise VariantError(
        f"node {node.name!r} is fused or folded away before quantisation and cannot be excluded",
        hint="Exclude the node that it is fused into, or its op type.",
    )


def _of_types(graph: onnx.GraphProto, op_types: list[str]) -> set[str]:
    return {node.name for node in graph.node if node.op_type in op_types}


def _guard(graph: onnx.GraphProto, excluded: set[str]) -> None:
    """
    Keep ONNX Runtime from quantising excluded nodes itself.

    It gives every Conv and Gemm behind a DequantizeLinear INT8 weights (`WeightBiasQuantization`), when the plan is
    built and again when it is loaded. A Max of one value changes nothing and is never optimised away.
    """
    dequantised = {name for node in graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.name in excluded and node.op_type in ("Conv", "ConvTranspose", "Gemm") and node.input[0] in dequantised:
            guarded = f"{node.name}_unquantised_input"
            nodes.append(onnx.helper.make_node("Max", [node.input[0]], [guarded], name=f"{node.name}_guard"))
            node.input[0] = guarded
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
