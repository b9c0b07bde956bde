"""An FP16 graph rewritten so that its rounding survives ONNX Runtime on the CPU. Runs in the child process.

Few CPU kernels compute in FP16, so ONNX Runtime puts casts around the others, and then removes each pair of them
between two nodes, at every optimisation level, `disabled` too: what should have been rounded to FP16 (or have
overflowed) stays FP32. Casts that are in the model are never removed, so they are put there: every node computes in
FP32, every value between two nodes is FP16.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx
from onnx import TensorProto, helper

Types = dict[str, int]

_UNTOUCHED = ("Cast", "CastLike", "Constant", "ConstantOfShape", "EyeLike", "BitCast")
_RANDOM = ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial")


def write_rounded(model: Path, target: Path) -> int:
    """
    Write the graph of `model` with explicit casts to `target`, which must lie in the same folder.

    Weights outside the ONNX file stay where they are.

    Returns:
        The number of nodes that got casts.
    """
    graph = onnx.load(model, load_external_data=False)
    counter = itertools.count()
    opsets = {each.domain: each.version for each in graph.opset_import}
    rounded = _round_graph(graph.graph, _declared(onnx.shape_inference.infer_shapes(graph).graph), opsets, counter)
    onnx.save(graph, target)
    onnx.checker.check_model(target)
    return rounded


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
                node.output[position] = exact
                nodes.append(_cast(exact, name, TensorProto.FLOAT16))
    del graph.node[:]
    graph.node.extend(nodes)
    del graph.value_info[:]
    return rounded


def _is_left(node: onnx.NodeProto) -> bool:
    has_graph = any(attribute.HasField("g") for attribute in node.attribute)
    return node.op_type in _UNTOUCHED or node.op_type in _RANDOM or has_graph


def _is_half(node: onnx.NodeProto, types: Types) -> bool:
    return any(types.get(name) == TensorProto.FLOAT16 for name in (*node.input, *node.output))


def _cast(source: str, target: str, to: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [target], name=f"{target}_cast", to=to)
