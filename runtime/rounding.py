"""An FP16 graph rewritten so that its rounding survives ONNX Runtime on the CPU. Runs in the child process.

Few CPU kernels compute in FP16, so ONNX Runtime puts casts around the others, and then removes each pair of them
between two nodes, at every optimisation level, `disabled` too: what should have been rounded to FP16 (or have
overflowed) stays FP32. Casts that are in the model are never removed, so they are put there: every node computes in
FP32, every value between two nodes is FP16. Beside each of these casts, what it turns from finite into infinite is
counted: an operator such as Tanh or Softmax may make finite values of it again, and no output would show it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Types = dict[str, int]

_UNTOUCHED = ("Cast", "CastLike", "Constant", "ConstantOfShape", "EyeLike", "BitCast")
_OVERFLOWS_FROM = np.float32(65520)  # halfway from the largest finite FP16 value, 65504, to what would be the next
_LARGEST, _INFINITE, _CALM, _NOTHING = (f"rounded_{word}" for word in ("largest", "infinite", "calm", "nothing"))
_CONSTANTS = {
    _LARGEST: np.array(np.nextafter(_OVERFLOWS_FROM, np.float32(0))),
    _INFINITE: np.array(np.inf, np.float32),
    _CALM: np.array(0.9 * _OVERFLOWS_FROM**2, np.float32),  # less, since the sum is rounded too
    _NOTHING: np.array(0, np.int64),
}
_RANDOM = ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundedGraph:
    """What was written: how many nodes got casts, and which outputs were added to count overflows.

    `counters` names the node that makes the values, by output, in order of execution.
    """

    nodes: int
    counters: Mapping[str, str]


def write_rounded(model: Path, target: Path) -> RoundedGraph:
    """
    Write the graph of `model` with explicit casts to `target`, which must lie in the same folder.

    Weights outside the ONNX file stay where they are. Values inside branches and loops are rounded, but what
    overflows among them is not counted.
    """
    graph = onnx.load(model, load_external_data=False)
    counter = itertools.count()
    opsets = {each.domain: each.version for each in graph.opset_import}
    types = _declared(onnx.shape_inference.infer_shapes(graph).graph)
    rounded = _round_graph(graph.graph, types, opsets, counter)
    counters = _count_overflows(graph.graph, types)
    onnx.save(graph, target)
    onnx.checker.check_model(target)
    return RoundedGraph(nodes=rounded, counters=counters)


def _declared(graph: onnx.GraphProto) -> Types:
    """Return the element types that a graph states for its tensors."""
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type:
            types[value.name] = value.type.tensor_type.elem_type
    return types


def _round_graph(graph: onnx.GraphProto, types: Types, opsets: Mapping[str, int], counter: Iterator[int]) -> int:
    """Put casts into a graph and those inside it; `types` grows by what each node makes."""
    prefix = f"rounded{next(counter)}_"
    rounded = 0
    for node in graph.node:
        for name, elem_type in _made_by(node, types, opsets).items():
            types.setdefault(name, elem_type)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                inner = {**types, **_declared(attribute.g)}
                rounded += _round_graph(attribute.g, inner, opsets, counter)
    return rounded + _round_nodes(graph, types, prefix)


def _made_by(node: onnx.NodeProto, types: Types, opsets: Mapping[str, int]) -> Types:
    """Return the element types of a node's outputs; inference leaves out what lies inside branches and loops."""
    if all(name in types for name in node.output if name):
        return {}
    known = {name: types[name] for name in node.input if name in types}
    try:
        schema = onnx.defs.get_schema(node.op_type, opsets.get(node.domain, 1), node.domain)
        declared = {name: helper.make_tensor_type_proto(each, None) for name, each in known.items()}
        made = onnx.shape_inference.infer_node_outputs(schema, node, declared)
        return {name: each.tensor_type.elem_type for name, each in made.items() if each.tensor_type.elem_type}
    except Exception:
        # An op of ONNX Runtime alone, or a shape that is needed and unknown: such ops keep their input's type.
        return dict.fromkeys(node.output, TensorProto.FLOAT16) if TensorProto.FLOAT16 in known.values() else {}


def _round_nodes(graph: onnx.GraphProto, types: Types, prefix: str) -> int:
    nodes: list[onnx.NodeProto] = []
    widened: dict[str, str] = {}
    rounded = 0
    for node in graph.node:
        if _is_left(node) or not _is_half(node, types):
            nodes.append(node)
            continue
        rounded += 1
        for position, name in enumerate(node.input):
            if types.get(name) == TensorProto.FLOAT16:
                if name not in widened:
                    widened[name] = f"{prefix}{name}_wide"
                    nodes.append(_cast(name, widened[name], TensorProto.FLOAT))
                node.input[position] = widened[name]
        nodes.append(node)
        for position, name in enumerate(node.output):
            if types.get(name) == TensorProto.FLOAT16:
                exact = f"{prefix}{name}_exact"
                types[exact] = TensorProto.FLOAT
                node.output[position] = exact
                nodes.append(_cast(exact, name, TensorProto.FLOAT16))
    del graph.node[:]
    graph.node.extend(nodes)
    del graph.value_info[:]
    return rounded


def _count_overflows(graph: onnx.GraphProto, types: Types) -> dict[str, str]:
    """Count, beside each cast from FP32 to FP16, the values that are finite before and infinite after it."""
    nodes: list[onnx.NodeProto] = []
    counters: dict[str, str] = {}
    makers = {name: node for node in graph.node for name in node.output}
    for node in graph.node:
        nodes.append(node)
        if node.op_type != "Cast" or types.get(node.output[0]) != TensorProto.FLOAT16:
            continue
        source = node.input[0]
        if types.get(source) == TensorProto.FLOAT:
            maker = makers.get(source, node)
            count = f"rounded_overflows{len(counters)}"
            counters[count] = maker.name or f"{maker.op_type} of {node.output[0]}"
            nodes += _counting_nodes(source, count)
    if counters:
        del graph.node[:]
        graph.node.extend(nodes)
        graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in _CONSTANTS.items())
        graph.output.extend(helper.make_tensor_value_info(name, TensorProto.INT64, []) for name in counters)
    return counters


def _counting_nodes(source: str, count: str) -> list[onnx.NodeProto]:
    """Count where anything can be counted: of a tensor whose squares sum up to little, no value is large."""
    energy, calm = f"{count}_energy", f"{count}_calm"
    nothing = helper.make_node("Identity", [_NOTHING], [f"{count}_none"], name=f"{count}_none")
    return [
        helper.make_node("ReduceSumSquare", [source], [energy], name=energy, keepdims=0),
        helper.make_node("Less", [energy, _CALM], [calm], name=calm),
        helper.make_node(
            "If",
            [calm],
            [count],
            name=count,
            then_branch=_branch(f"{count}_none", [nothing]),
            else_branch=_branch(f"{count}_sum", _nodes_that_count(source, count)),
        ),
    ]


def _nodes_that_count(source: str, count: str) -> list[onnx.NodeProto]:
    size, large, finite, both, each = (f"{count}_{word}" for word in ("size", "large", "finite", "both", "each"))
    return [
        helper.make_node("Abs", [source], [size], name=size),
        helper.make_node("Greater", [size, _LARGEST], [large], name=large),
        helper.make_node("Less", [size, _INFINITE], [finite], name=finite),
        helper.make_node("And", [large, finite], [both], name=both),
        helper.make_node("Cast", [both], [each], name=each, to=TensorProto.INT64),
        helper.make_node("ReduceSum", [each], [f"{count}_sum"], name=f"{count}_sum", keepdims=0),
    ]


def _branch(name: str, nodes: list[onnx.NodeProto]) -> onnx.GraphProto:
    """Return a graph that gives the integer `name`; it takes what it needs from the graph around it."""
    return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(name, TensorProto.INT64, [])])


def _is_left(node: onnx.NodeProto) -> bool:
    has_graph = any(attribute.HasField("g") for attribute in node.attribute)
    return node.op_type in _UNTOUCHED or node.op_type in _RANDOM or has_graph


def _is_half(node: onnx.NodeProto, types: Types) -> bool:
    return any(types.get(name) == TensorProto.FLOAT16 for name in (*node.input, *node.output))


def _cast(source: str, target: str, to: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [target], name=f"{target}_cast", to=to)
