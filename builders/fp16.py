"""FP16 variants: every tensor and weight in half precision but what cannot bear it. Runs in the child process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import onnx.checker
from onnx import TensorProto

from modelreg.builders.casts import remove_round_trips
from modelreg.builders.graph_sizes import EXTERNAL_BYTES
from modelreg.builders.graphs import (
    VariantError,
    declared_types,
    first_line,
    load_normalised,
    require_nodes,
    save_model,
    weight_bytes,
)
from modelreg.builders.kept import kept_nodes
from modelreg.builders.subgraphs import bodies_of, copy_captures, graphs_of, settle_nodes, sort_nodes


def make_fp16(source: Path, target: Path, variant: Mapping[str, Any]) -> list[Path]:
    """
    Write the FP16 variant of `source` to `target`; return the files written.

    Args:
        source: The ONNX, external data beside it.
        target: New file; weights go to `NAME.data` when they are too many.
        variant: The variant part of the recipe.

    Raises:
        VariantError: A node to exclude does not exist, or the converter failed.
    """
    converted = convert_to_half(load_normalised(source), variant, folder=target.parent)
    types = declared_types(converted.graph)
    copy_captures(converted.graph, {name for name in types if types[name] == TensorProto.FLOAT16})
    files = save_model(converted, target)
    onnx.checker.check_model(target)
    return files


def convert_to_half(model: onnx.ModelProto, variant: Mapping[str, Any], *, folder: Path) -> onnx.ModelProto:
    """
    Return the graph with FP16 tensors and weights where the variant leaves nothing in FP32; `model` is changed.

    Args:
        model: In normal form.
        variant: The variant part of the recipe.
        folder: Where files may lie for a moment.

    Raises:
        VariantError: A node to exclude does not exist, or the converter failed.
    """
    from onnxruntime.transformers.float16 import convert_float_to_float16

    require_nodes(model.graph, variant["excluded_nodes"])
    model = _with_inferred_shapes(model, folder)
    settings = variant["settings"]
    op_types = {*settings["blocked_ops"], *variant["excluded_op_types"]}
    kept = kept_nodes(model.graph, variant)
    own = {node.name for each in graphs_of(model.graph) for node in each.node}
    # The converter leaves an excluded If or Loop with a half-converted body: it is converted, and its body is not.
    outer = {node.name: node.op_type for each in graphs_of(model.graph) for node in each.node if bodies_of(node)}
    try:
        converted: onnx.ModelProto = convert_float_to_float16(
            model,
            min_positive_val=settings["min_positive"],
            max_finite_val=settings["max_finite"],
            keep_io_types=variant["keep_io_types"],
            disable_shape_infer=True,
            op_block_list=sorted(op_types - set(outer.values())),
            node_block_list=sorted(kept - set(outer)),
        )
    except Exception as error:
        raise VariantError(f"the FP16 converter failed: {type(error).__name__}: {first_line(error)}") from error
    # The converter appends its casts to the main graph, those of branches and loops too.
    settle_nodes(converted.graph)
    sort_nodes(converted.graph)
    remove_round_trips(converted.graph, own=own)
    return converted


def _with_inferred_shapes(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """Infer shapes, through files where the model is too big for memory-based inference (it returns nothing)."""
    nodes = len(model.graph.node)
    if weight_bytes(model.graph) <= EXTERNAL_BYTES:
        inferred = onnx.shape_inference.infer_shapes(model)
    else:
        plain, out = folder / "plain.onnx", folder / "inferred.onnx"
        data = save_model(model, plain)
        onnx.shape_inference.infer_shapes_path(plain, out)
        inferred = onnx.load(out)
        for path in (*data, out):
            path.unlink()
    if len(inferred.graph.node) != nodes:
        raise VariantError(f"shape inference returned {len(inferred.graph.node)} of {nodes} nodes")
    return inferred
