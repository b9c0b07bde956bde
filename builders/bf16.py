"""BF16 variants: FP16's graph, its casts and weights in BF16 instead. Runs in the child process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.checker
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from modelreg.builders.fp16 import convert_to_half
from modelreg.builders.graphs import VariantError, declared_types, load_normalised, save_model
from modelreg.builders.subgraphs import graphs_of

_TYPE_ATTRIBUTES = ("to", "dtype")


def make_bf16(source: Path, target: Path, variant: Mapping[str, Any]) -> list[Path]:
    """
    Write the BF16 variant of `source` to `target`; return the files written.

    Where casts belong is the same for both half precisions. The numbers are taken from the source: FP16 would round
    them once more, and end at 65504.

    Args:
        source: The ONNX, external data beside it.
        target: New file; weights go to `NAME.data` when they are too many.
        variant: The variant part of the recipe.

    Raises:
        VariantError: A node to exclude does not exist, the source has FP16 tensors, or the converter failed.
    """
    model = load_normalised(source)
    _refuse_half(model.graph)
    exact = {name: numpy_helper.to_array(tensor) for name, tensor in _tensors(model.graph).items()}
    limits = {"max_finite": 65504.0, "min_positive": 5.96e-8}  # of the graph on the way
    half = {**variant, "settings": {**variant["settings"], **limits}, "keep_io_types": True}
    converted = convert_to_half(model, half, folder=target.parent)
    for name, tensor in _tensors(converted.graph).items():
        if tensor.data_type == TensorProto.FLOAT16:
            _write(tensor, exact.get(name, numpy_helper.to_array(tensor)))
    _retype(converted.graph)
    files = save_model(converted, target)
    onnx.checker.check_model(target)
    return files


def round_to_bf16(numbers: NDArray[Any]) -> NDArray[np.uint16]:
    """
    Return the bits of the nearest BF16 numbers, ties to even.

    What is finite stays so: FP32's largest numbers, which masks are made of, would round to infinity.
    """
    single = np.ascontiguousarray(numbers, dtype=np.float32)
    largest = np.array(0x7F7F0000, np.uint32).view(np.float32)
    single = np.where(np.isfinite(single), np.clip(single, -largest, largest), single)
    bits = single.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(single), 0x7FC0, rounded).astype(np.uint16)


def _refuse_half(graph: onnx.GraphProto) -> None:
    names = [name for name, elem_type in declared_types(graph).items() if elem_type == TensorProto.FLOAT16]
    casts = [
        node.output[0]
        for each in graphs_of(graph)
        for node in each.node
        for attribute in node.attribute
        if attribute.name in _TYPE_ATTRIBUTES and attribute.i == TensorProto.FLOAT16
    ]
    if names or casts:
        raise VariantError(
            f"tensor {(names + casts)[0]!r} is FP16 in the source: it would stay so among BF16 tensors",
            hint="Export the model in FP32, or build fp16.",
        )


def _tensors(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Return the initialisers by name, and the tensors in attributes by node and attribute."""
    found = {tensor.name: tensor for each in graphs_of(graph) for tensor in each.initializer}
    for node in (node for each in graphs_of(graph) for node in each.node):
        found |= {f"{node.name} {each.name}": each.t for each in node.attribute if each.HasField("t")}
    return found


def _write(tensor: onnx.TensorProto, numbers: NDArray[Any]) -> None:
    name, dims = tensor.name, list(tensor.dims)
    tensor.Clear()
    tensor.name, tensor.data_type = name, TensorProto.BFLOAT16
    tensor.dims.extend(dims)
    tensor.raw_data = round_to_bf16(numbers).tobytes()


def _retype(graph: onnx.GraphProto) -> None:
    for each in graphs_of(graph):
        for value in (*each.input, *each.output, *each.value_info):
            if value.type.tensor_type.elem_type == TensorProto.FLOAT16:
                value.type.tensor_type.elem_type = TensorProto.BFLOAT16
        for attribute in (attribute for node in each.node for attribute in node.attribute):
            if attribute.name in _TYPE_ATTRIBUTES and attribute.i == TensorProto.FLOAT16:
                attribute.i = TensorProto.BFLOAT16
