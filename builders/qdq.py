"""Static Q/DQ nodes with calibrated ranges, by ONNX Runtime's tools; INT8 variants. Runs in the child process."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping
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
from modelreg.builders.ranges import Report, find_ranges
from modelreg.builders.residuals import ADDITIONS, skip_tensors
from modelreg.builders.subgraphs import captured_names, graphs_of, sort_nodes
from modelreg.builders.variant_settings import GPU_WEIGHTED_OPS

_MATRIX_AXES = 2
_PER_CHANNEL_OPSET = 13
_RAISED_OPSET = 17
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
    model = load_for_quantising(source, variant["excluded_nodes"], at_least=_PER_CHANNEL_OPSET, to=_RAISED_OPSET)
    quantised = quantise(model, variant, calibration, report, folder=target.parent)
    files = save_model(quantised, target)
    onnx.checker.check_model(target)
    return files


def load_for_quantising(source: Path, excluded: list[str], *, at_least: int, to: int) -> onnx.ModelProto:
    """Load a model in normal form, at opset `to` where its own is below `at_least`."""
    model = load_normalised(source)
    require_nodes(model.graph, excluded)
    return raise_opset(model, at_least=at_least, to=to)


def quantise(
    model: onnx.ModelProto,
    variant: Mapping[str, Any],
    calibration: Mapping[str, Any],
    report: Report,
    *,
    folder: Path,
) -> onnx.ModelProto:
    """
    Return the graph with Q/DQ nodes; `model` is changed.

    Args:
        model: In normal form, at an opset that has the types.
        variant: The variant part of the recipe.
        calibration: What `CalibrationSet.to_request` gave.
        report: Told about the passes.
        folder: Where files may lie for a moment.

    Raises:
        NothingToConvertError: Nothing is left to quantise.
        VariantError: An activation is not finite on the calibration set, or an excluded node is folded away.
    """
    settings = variant["settings"]
    op_types = [op for op in settings["op_types"] if op not in variant["excluded_op_types"]]
    with tempfile.TemporaryDirectory(dir=folder, prefix="quantise-") as scratch:
        prepared, excluded = _prepare(model, Path(scratch), variant["excluded_nodes"])
        graph = onnx.load(prepared, load_external_data=False).graph
        _require_work(graph, variant, op_types, excluded)
        skips = _skips(graph, op_types, excluded, how=settings["residual_skips"])
        found = find_ranges(
            prepared,
            [*op_types, *ADDITIONS] if skips else op_types,
            how=variant["calibration"],
            calibration=calibration,
            is_big=weight_bytes(graph) > EXTERNAL_BYTES,
            report=report,
        )
        report(0.9, "writing Q/DQ nodes")
        left = [*excluded, *_captured_activations(graph), *_masked_nodes(graph, found.masked)]
        quantizer = _quantizer(prepared, settings, op_types, left, found.ranges)
        for name in skips:
            if name not in found.masked:
                quantizer.quantize_activation_tensor(name)
        quantizer.quantize_model()
        quantised: onnx.ModelProto = quantizer.model.model
    sort_nodes(quantised.graph)  # the quantiser appends its nodes at the end
    if settings["guard_excluded"]:
        _guard(quantised.graph, {*excluded, *_of_types(quantised.graph, variant["excluded_op_types"])})
    name_nodes(quantised.graph)
    return quantised


def _quantizer(model: Path, settings: Mapping[str, Any], op_types: list[str], left: list[str], ranges: Any) -> Any:
    """Return ONNX Runtime's quantiser; `left` names the nodes that it leaves alone."""
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
    from onnxruntime.quantization.quant_utils import load_model_with_shape_infer

    loaded = load_model_with_shape_infer(model)
    options = {
        "ActivationSymmetric": settings["activation_symmetric"],
        "WeightSymmetric": settings["weight_symmetric"],
        "TensorQuantOverrides": {name: [{"symmetric": True}] for name in _whole_weights(loaded.graph)},
        **settings["options"],
    }
    return QDQQuantizer(
        loaded,
        settings["per_channel"],
        settings["reduce_range"],
        QuantType[settings["weight_type"]],
        QuantType[settings["activation_type"]],
        ranges,
        [],
        left,
        op_types,
        options,
    )


def _prepare(model: onnx.ModelProto, scratch: Path, excluded: list[str]) -> tuple[Path, list[str]]:
    """Fold and infer shapes; return the new model and the excluded nodes' names in it."""
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


def _require_work(graph: onnx.GraphProto, variant: Mapping[str, Any], op_types: list[str], excluded: list[str]) -> None:
    """Refuse a graph without a node that can be quantised: there would be nothing to calibrate."""
    weighted_types = {*variant["settings"]["op_types"]} & {*GPU_WEIGHTED_OPS}
    weighted = [node for node in graph.node if node.op_type in weighted_types]
    if any(node.op_type in op_types and node.name not in excluded for node in weighted):
        return
    inner = [node for each in list(graphs_of(graph))[1:] for node in each.node if node.op_type in weighted_types]
    if weighted:
        why, hint = f"its {len(weighted)} weighted nodes are excluded", "Exclude fewer nodes, or build fp32 or fp16."
    elif inner:
        why, hint = f"{inner[0].name} ({inner[0].op_type}) lies inside a branch or loop", "Build fp32 or fp16 instead."
    else:
        found = ", ".join(sorted({node.op_type for node in graph.node}))
        why, hint = f"it has no {', '.join(sorted(weighted_types))}, only {found}", "Build fp32 or fp16 instead."
    raise NothingToConvertError(f"no node of this model can become {variant['kind'].upper()}: {why}", hint=hint)


def _skips(graph: onnx.GraphProto, op_types: list[str], excluded: list[str], *, how: str) -> list[str]:
    """Return the tensors that a residual addition takes and the op types alone would not quantise."""
    if how == "by_op_types" or "Conv" not in op_types:
        return []
    convolutions = {node.name for node in graph.node if node.op_type == "Conv"} - set(excluded)
    return skip_tensors(graph, convolutions=convolutions, left=excluded)


def _whole_weights(graph: onnx.GraphProto) -> list[str]:
    """
    Return the weights of MatMul nodes that have one range: those with batches of matrices, and those on the left.

    The quantiser would give each row that is summed over a range of its own, which no integer product can keep apart.
    """
    constants = {tensor.name: tensor for tensor in graph.initializer}
    products = [node for node in graph.node if node.op_type == "MatMul"]
    left = [node.input[0] for node in products if node.input[0] in constants]
    right = [node.input[1] for node in products if node.input[1] in constants]
    return sorted({*left, *(name for name in right if len(constants[name].dims) != _MATRIX_AXES)})


def _masked_nodes(graph: onnx.GraphProto, masked: Collection[str]) -> list[str]:
    """Return the nodes that take or give tensors with masked values: they stay, as an excluded node does."""
    return [node.name for node in graph.node if not {*node.input, *node.output}.isdisjoint(masked)]


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
