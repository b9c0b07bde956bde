"""An ONNX graph whose values between nodes can be read, and whose layers can be run alone on given inputs.

Runs in the child process. A *tensor* is a name of the source's graph; a variant keeps these names, and puts casts and
Q/DQ nodes behind them: what carries a tensor to its readers there is one of its *carriers*. A graph that is *cut* reads
given values wherever a layer would read another layer's, so that each layer shows its own error alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

CUT = "layer_reference::"
_ORIGINS = ("pkg.torch.onnx.name_scopes", "namespace")
_CARRYING = ("Cast", "QuantizeLinear", "DequantizeLinear")
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
_RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767), "uint16": (0, 65535), "int4": (-8, 7)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """
    A tensor of the source: the node that makes it, its op, and the tensors (or inputs) that the node reads.

    `metadata` is what the exporter wrote about the node's origin.
    """

    name: str
    node: str
    op: str
    inputs: tuple[str, ...]
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """
    A tensor as a candidate has it.

    Attributes:
        carrier: The value that its readers get, after rounding or quantisation.
        made: The value before that.
        low: The smallest value that quantisation can express; None where there is none.
        high: The largest.
    """

    carrier: str
    made: str
    low: float | None = None
    high: float | None = None


class LayerGraph:
    """A model, without the data that lies beside it; what it writes goes into the same folder."""

    def __init__(self, path: Path) -> None:
        self._folder = path.parent
        self._model = onnx.load(path, load_external_data=False)
        self._numbers = itertools.count()
        self._known: set[str] = set()
        self._given: list[str] = []
        inferred = onnx.shape_inference.infer_shapes(self._model).graph
        self._types = {
            value.name: value.type.tensor_type.elem_type
            for value in (*inferred.input, *inferred.output, *inferred.value_info)
        } | {tensor.name: tensor.data_type for tensor in self._model.graph.initializer}
        self._initialisers = {tensor.name: tensor for tensor in self._model.graph.initializer}
        self.inputs = [value.name for value in self._model.graph.input if value.name not in self._initialisers]
        self.outputs = [value.name for value in self._model.graph.output]

    def tensors(self) -> list[Made]:
        """Return what nodes make of the model's inputs in floating point, in order of execution."""
        live, found = set(self.inputs), []
        for index, node in enumerate(self._model.graph.node):
            reads = [name for name in (*node.input, *sorted(_captured(node))) if name in live]
            if not reads:
                continue
            live.update(name for name in node.output if name)
            name = node.name or f"{node.op_type}_{index}"
            origin = {prop.key: prop.value for prop in node.metadata_props if prop.key in _ORIGINS}
            found += [
                Made(name=output, node=name, op=node.op_type, inputs=tuple(reads), metadata=origin)
                for output in node.output
                if output and self._types.get(output, TensorProto.FLOAT) in _FLOATS
            ]
        return found

    def see(self, tensors: Iterable[str]) -> dict[str, Seen]:
        """Return how this graph has tensors of its source; those that it does not have any more are left out."""
        made = {name for node in self._model.graph.node for name in node.output}
        self._known = set(tensors)
        return {name: self._see(name) for name in sorted(self._known) if name in made}

    def tap(self, names: Sequence[str]) -> Path:
        """Write the part of the graph that makes these values, with them as its only outputs."""
        return self._write(list(self._model.graph.node), names, [])

    def cut(self, names: Sequence[str], *, at: Collection[str]) -> tuple[Path, list[str]]:
        """
        Write the part of the graph that makes these values out of given ones; return it and which are given.

        Args:
            names: Carriers.
            at: Tensors of the source whose readers get the input `CUT` + name, in FP32, in place of them.
        """
        read, made = self._read_instead(at)
        nodes = []
        for node in self._model.graph.node:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            if not self._carries(node):
                for position, name in enumerate(node.input):
                    copy.input[position] = read.get(name, name)
            nodes.append(copy)
        path = self._write([*made, *nodes], names, [CUT + name for name in at])
        return path, [name.removeprefix(CUT) for name in self._given]

    def _see(self, name: str) -> Seen:
        carriers = list(self._carriers(name))
        dequantised = next((node for node in carriers if node.op_type == "DequantizeLinear"), None)
        if dequantised is None:
            return Seen(carrier=name, made=name)
        low, high = self._range(dequantised)
        return Seen(carrier=dequantised.output[0], made=name, low=low, high=high)

    def _range(self, node: onnx.NodeProto) -> tuple[float | None, float | None]:
        """Return what a DequantizeLinear with one scale can express."""
        constants = [self._initialisers.get(name) for name in node.input[1:]]
        if not constants or constants[0] is None:
            return None, None
        scale = np.asarray(numpy_helper.to_array(constants[0]), np.float64).reshape(-1)
        zero = constants[1] if len(constants) > 1 else None
        kind = "uint8" if zero is None else helper.tensor_dtype_to_np_dtype(zero.data_type).name
        if scale.size != 1 or kind not in _RANGES:
            return None, None
        point = 0.0 if zero is None else float(numpy_helper.to_array(zero).reshape(-1)[0])
        low, high = _RANGES[kind]
        return (low - point) * float(scale[0]), (high - point) * float(scale[0])

    def _carriers(self, name: str) -> Iterator[onnx.NodeProto]:
        """Yield the nodes that pass a tensor on in another type."""
        names = {name}
        for node in self._model.graph.node:
            if node.input and node.input[0] in names and self._carries(node):
                names.update(node.output)
                yield node

    def _carries(self, node: onnx.NodeProto) -> bool:
        is_guard = node.op_type == "Max" and len(node.input) == 1
        if not is_guard and node.op_type not in _CARRYING:
            return False
        if node.op_type == "Cast" and next(a.i for a in node.attribute if a.name == "to") not in _FLOATS:
            return False
        return not self._known.intersection(node.output) and node.input[0] not in self._initialisers

    def _read_instead(self, at: Collection[str]) -> tuple[dict[str, str], list[onnx.NodeProto]]:
        """
        Return what is read in place of each carrier of the cut tensors, and the nodes that make it of the given values.

        Given values are quantised as a layer's inputs are, for that is the layer's own error; but not rounded to FP16
        on the way, which is the error of the layer that made them: what overflows there would count twice.
        """
        read: dict[str, str] = {}
        made: list[onnx.NodeProto] = []
        for name in at:
            values = {name: CUT + name}
            for node in self._carriers(name):
                source, target = node.input[0], node.output[0]
                if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
                    values[target] = values[source]
                    continue
                copy = onnx.NodeProto()
                copy.CopyFrom(node)
                copy.name = copy.output[0] = values[target] = f"{CUT}{name}::{target}"
                copy.input[0] = values[source]
                if node.op_type == "QuantizeLinear":
                    copy.input[0] = self._typed(values[source], source, made)
                made.append(copy)
            for each, value in values.items():
                if self._types.get(each, TensorProto.FLOAT) in _FLOATS:
                    read[each] = value if value != CUT + name else self._typed(value, each, made)
        return read, made

    def _typed(self, value: str, like: str, made: list[onnx.NodeProto]) -> str:
        """Return the name of an FP32 value in the type of another one, made by a cast where that is needed."""
        elem_type = self._types.get(like, TensorProto.FLOAT)
        if elem_type == TensorProto.FLOAT:
            return value
        narrow = f"{value}::{elem_type}"
        if not any(narrow in node.output for node in made):
            made.append(helper.make_node("Cast", [value], [narrow], name=narrow, to=elem_type))
        return narrow

    def _write(self, nodes: list[onnx.NodeProto], outputs: Sequence[str], given: Sequence[str]) -> Path:
        kept = _needed(nodes, outputs)
        used = {name for node in kept for name in (*node.input, *_captured(node))} | set(outputs)
        self._given = [name for name in given if name in used]
        graph = helper.make_graph(
            kept,
            "layers",
            [value for value in self._model.graph.input if value.name in used]
            + [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in self._given],
            [self._declare(name) for name in outputs],
            [tensor for tensor in self._model.graph.initializer if tensor.name in used],
        )
        made = onnx.ModelProto()
        made.CopyFrom(self._model)
        made.graph.CopyFrom(graph)
        path = self._folder / f"layers-{next(self._numbers)}.onnx"
        onnx.save(made, path)
        return path

    def _declare(self, name: str) -> onnx.ValueInfoProto:
        elem_type = self._types.get(name)
        if not elem_type:
            return helper.make_empty_tensor_value_info(name)
        return helper.make_tensor_value_info(name, elem_type, None)


def _needed(nodes: Sequence[onnx.NodeProto], outputs: Iterable[str]) -> list[onnx.NodeProto]:
    """Return the nodes that make these values, in order."""
    wanted, kept = set(outputs), []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update(node.input)
            wanted.update(_captured(node))
    return kept[::-1]


def _captured(node: onnx.NodeProto) -> set[str]:
    """Return the names that the bodies of a node take from the graph around it."""
    names: set[str] = set()
    for attribute in node.attribute:
        for body in [attribute.g] * attribute.HasField("g") + list(attribute.graphs):
            own = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
            own |= {name for each in body.node for name in each.output}
            used = {name for each in body.node for name in (*each.input, *_captured(each)) if name}
            used |= {value.name for value in body.output}
            names |= used - own
    return names


def saturated(values: NDArray[np.floating[Any]], seen: Mapping[str, float | None]) -> tuple[int, int]:
    """Return how many values lie below and above what quantisation can express (by more than a rounding error)."""
    low, high = seen["low"], seen["high"]
    if low is None or high is None:
        return 0, 0
    slack = (high - low) / 510  # half a step of 8 bits
    return int(np.count_nonzero(values < low - slack)), int(np.count_nonzero(values > high + slack))
