"""An INT8 graph that tells how its values use the ranges that they were calibrated to. Runs in the child process.

Beside each QuantizeLinear of an activation, what lies far beyond the range is counted, and the smallest and the largest
value are kept: a set that the calibration has not seen the like of shows there before any output does. Far is a tenth
of the range: calibration itself leaves out the ends of what it sees, and what lies just beyond loses little.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

MARGIN = 0.1
"""How far beyond the range a value counts as cut off, as a part of the range."""

_WIDTHS = {
    TensorProto.INT8: (-128, 127),
    TensorProto.UINT8: (0, 255),
    TensorProto.INT16: (-32768, 32767),
    TensorProto.UINT16: (0, 65535),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """One quantised activation.

    Attributes:
        node: What makes the values; the name of the input where no node does.
        low: The smallest value that is not cut off; `high` the largest.
        outputs: The outputs that were added for it: how many values are cut off, how many there are, the smallest and
            the largest.
    """

    node: str
    low: float
    high: float
    outputs: tuple[str, str, str, str]


def write_ranged(model: Path, target: Path, *, absorbs_clips: bool) -> tuple[Range, ...]:
    """
    Write the Q/DQ graph of `model` with counters to `target`, which must lie in the same folder.

    Args:
        model: An INT8 variant; weights outside the file stay where they are.
        target: New file.
        absorbs_clips: Whether upper ends may be a Clip that the quantiser left to the range: nothing above is counted.

    Returns:
        What is watched, in order of execution; nothing inside branches and loops is.
    """
    graph = onnx.load(model, load_external_data=False)
    ranges = _add_counters(graph.graph, model.parent, absorbs_clips=absorbs_clips)
    onnx.save(graph, target)
    onnx.checker.check_model(target)
    return ranges


def _add_counters(graph: onnx.GraphProto, folder: Path, *, absorbs_clips: bool) -> tuple[Range, ...]:
    constants = {tensor.name: tensor for tensor in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    nodes: list[onnx.NodeProto] = []
    watched: dict[str, Range] = {}
    for node in graph.node:
        nodes.append(node)
        if node.op_type != "QuantizeLinear" or node.input[0] in constants or node.input[0] in watched:
            continue
        grid = _grid(node, constants, folder)
        if grid is None:
            continue
        source, prefix = node.input[0], f"ranged{len(watched)}"
        low, high, counts_low, counts_high = grid
        outputs = tuple(f"{prefix}_{word}" for word in ("cut", "size", "smallest", "largest"))
        maker = makers.get(source)
        name = source if maker is None else maker.name or f"{maker.op_type} of {source}"
        watched[source] = Range(node=name, low=low, high=high, outputs=outputs)  # type: ignore[arg-type]
        margin = MARGIN * (high - low)
        ends = {
            f"{prefix}_low": low - margin if counts_low else -np.inf,
            f"{prefix}_high": high + margin if counts_high and not (absorbs_clips and not counts_low) else np.inf,
        }
        graph.initializer.extend(numpy_helper.from_array(np.array(v, np.float32), n) for n, v in ends.items())
        nodes += _counting_nodes(source, prefix)
    del graph.node[:]
    graph.node.extend(nodes)
    for each in watched.values():
        types = (TensorProto.INT64, TensorProto.INT64, TensorProto.FLOAT, TensorProto.FLOAT)
        graph.output.extend(helper.make_tensor_value_info(n, t, []) for n, t in zip(each.outputs, types, strict=True))
    return tuple(watched.values())


def _grid(
    node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto], folder: Path
) -> tuple[float, float, bool, bool] | None:
    """Return what a Q node maps to its ends, half a step more, and which ends cut off what must not be."""
    scale = _scalar(constants.get(node.input[1]), folder)
    zero = _scalar(constants.get(node.input[2]), folder) if len(node.input) > 2 else np.array(0, np.uint8)
    if scale is None or zero is None or scale.dtype != np.float32:
        return None
    kind = helper.np_dtype_to_tensor_dtype(zero.dtype)
    if kind not in _WIDTHS:
        return None
    first, last = _WIDTHS[kind]
    step, middle = float(scale), int(zero)
    # A range that begins at zero is that of a ReLU, which the quantiser leaves to it: what is below is meant to go.
    return (first - middle - 0.5) * step, (last - middle + 0.5) * step, middle != first, middle != last


def _scalar(tensor: onnx.TensorProto | None, folder: Path) -> NDArray[Any] | None:
    if tensor is None:
        return None
    array = numpy_helper.to_array(tensor, base_dir=str(folder))
    return array.reshape(()) if array.size == 1 else None


def _counting_nodes(source: str, prefix: str) -> list[onnx.NodeProto]:
    def node(op: str, inputs: list[str], output: str, **attributes: Any) -> onnx.NodeProto:
        return helper.make_node(op, inputs, [output], name=output, **attributes)

    return [
        node("Less", [source, f"{prefix}_low"], f"{prefix}_below"),
        node("Greater", [source, f"{prefix}_high"], f"{prefix}_above"),
        node("Or", [f"{prefix}_below", f"{prefix}_above"], f"{prefix}_beyond"),
        node("Cast", [f"{prefix}_beyond"], f"{prefix}_each", to=TensorProto.INT64),
        node("ReduceSum", [f"{prefix}_each"], f"{prefix}_cut", keepdims=0),
        node("Size", [source], f"{prefix}_size"),
        node("ReduceMin", [source], f"{prefix}_smallest", keepdims=0),
        node("ReduceMax", [source], f"{prefix}_largest", keepdims=0),
    ]
