"""FP8 variants: the Q/DQ nodes of INT8, in E4M3 instead. Runs in the child process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.checker
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from modelreg.builders.graphs import save_model
from modelreg.builders.qdq import load_for_quantising, quantise
from modelreg.builders.ranges import Report
from modelreg.builders.subgraphs import graphs_of

_OPSET = 19
"""The first whose QuantizeLinear knows FP8; IR 9 is the first with the type."""

_IR = 9
_LARGEST = 448.0
_INT8_LARGEST = 127.0


def make_fp8(
    source: Path, target: Path, variant: Mapping[str, Any], calibration: Mapping[str, Any], report: Report
) -> list[Path]:
    """
    Write the FP8 variant of `source` to `target`; return the files written.

    Ranges are found and nodes placed as for INT8, with weights in FP32 before Q nodes of their own. Then each range is
    mapped to 448, the end of E4M3, instead of 127, and weights are stored in FP8.

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
    model = load_for_quantising(source, variant["excluded_nodes"], at_least=_OPSET, to=_OPSET)
    settings = variant["settings"]
    options = {**settings["options"], "AddQDQPairToWeight": True}
    int8 = {**variant, "settings": {**settings, "options": options}}
    quantised = quantise(model, int8, calibration, report, folder=target.parent)
    quantised.ir_version = max(quantised.ir_version, _IR)
    _turn_to_fp8(quantised.graph)
    files = save_model(quantised, target)
    onnx.checker.check_model(target)
    return files


def round_to_e4m3(numbers: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the bits of the nearest E4M3 numbers, ties to even; what lies beyond 448 becomes 448."""
    size = np.minimum(np.abs(numbers.astype(np.float64)), _LARGEST)
    # Below 2^-6 the steps stay at 2^-9; above, each power of two has eight.
    exponent = np.maximum(np.floor(np.log2(size, where=size > 0, out=np.full(size.shape, -9.0))), -6.0)
    steps = np.rint(size / 2.0 ** (exponent - 3))
    bits = np.where(exponent == -6.0, steps, steps + (exponent + 6) * 8)  # a carry into the next power counts on
    signed: NDArray[np.uint8] = bits.astype(np.uint8) | (np.signbit(numbers).astype(np.uint8) << 7)
    return signed


def _turn_to_fp8(graph: onnx.GraphProto) -> None:
    constants = {tensor.name: tensor for each in graphs_of(graph) for tensor in each.initializer}
    converters = [node for node in graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    for name in {node.input[1] for node in converters}:
        scale = numpy_helper.to_array(constants[name]) * np.float32(_INT8_LARGEST / _LARGEST)
        constants[name].CopyFrom(numpy_helper.from_array(scale.astype(np.float32), name))
    for name in {node.input[2] for node in converters}:
        _write(constants[name], np.zeros(list(constants[name].dims), np.uint8))
    stored = [node for node in converters if node.op_type == "QuantizeLinear" and node.input[0] in constants]
    for node in stored:
        weight, scale = (numpy_helper.to_array(constants[name]) for name in node.input[:2])
        tensor = graph.initializer.add(name=node.output[0])
        _write(tensor, round_to_e4m3(weight / _spread(scale, node, weight.ndim)))
    names = {node.name for node in stored}
    nodes = [node for node in graph.node if node.name not in names]
    del graph.node[:]
    graph.node.extend(nodes)
    used = {name for each in graphs_of(graph) for node in each.node for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    del graph.value_info[:]  # it says INT8


def _spread(scale: NDArray[Any], node: onnx.NodeProto, axes: int) -> NDArray[Any]:
    """Return a scale per channel in a shape that divides the weight."""
    if scale.ndim == 0:
        return scale
    axis = next(helper.get_attribute_value(each) for each in node.attribute if each.name == "axis") % axes
    return scale.reshape([-1 if each == axis else 1 for each in range(axes)])


def _write(tensor: onnx.TensorProto, bits: NDArray[np.uint8]) -> None:
    name = tensor.name
    tensor.Clear()
    tensor.name, tensor.data_type = name, TensorProto.FLOAT8E4M3FN
    tensor.dims.extend(bits.shape)
    tensor.raw_data = bits.tobytes()
