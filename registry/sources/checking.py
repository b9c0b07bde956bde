"""onnx.checker and strict shape inference on a stripped model: milliseconds, whatever the weights weigh.

Tensors without their numbers would fail the check, so they become inputs of the graph: for types and shapes an
input is as good as a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import onnx
from onnx import checker, helper

from modelreg.registry.errors import SourceError
from modelreg.registry.sources.inference import find_contradiction, infer
from modelreg.registry.sources.lint import inner_graphs
from modelreg.registry.sources.tensors import is_hollow
from modelreg.registry.sources.wiring import check_wiring

_INFERENCE_LIMIT_BYTES = 32 * 1024 * 1024
_EXPANDED_LIMIT = 100_000
_CALL_DEPTH = 50
_MESSAGE_LENGTH = 300
_CHECK_HINT = "onnx.checker.check_model says the same: what exported or edited the model is at fault."
_RUN_HINT = "No backend builds it: export it again. onnx.checker.check_model(FILE, full_check=True) says the same."


def check_model(model: onnx.ModelProto, *, name: str) -> tuple[str, ...]:
    """
    Check a stripped model as onnx defines validity; return what shape inference finds odd.

    A declared shape that contradicts the graph is a warning, not an error: runtimes use the one they compute. What
    contradicts itself without any declaration runs nowhere, and is refused.

    Raises:
        SourceError: onnx.checker refuses the model, or inputs of a node cannot go together.
    """
    check_wiring(model, name=name)
    try:
        filled, is_exact = without_hollow_tensors(model)
        data = filled.SerializeToString()
        checker.check_model(data)
    except Exception as error:
        raise SourceError(f"{name} is not a valid ONNX model: {_one_line(error)}", hint=_CHECK_HINT) from error
    if not is_exact or len(data) > _INFERENCE_LIMIT_BYTES or _expanded_nodes(filled) > _EXPANDED_LIMIT:
        return ()
    disagreement = infer(filled)
    if not disagreement:
        return ()
    contradiction = find_contradiction(filled)
    if contradiction:
        raise SourceError(f"{name} runs nowhere: {_cut(contradiction)}", hint=_RUN_HINT)
    return (f"shape inference disagrees with what the model declares: {_cut(disagreement)}",)


def without_hollow_tensors(model: onnx.ModelProto) -> tuple[onnx.ModelProto, bool]:
    """
    Return a copy in which tensors without numbers are inputs, and whether types and shapes stayed exact.

    They do not where such a tensor sits in an attribute that must stay (a forest's thresholds, a constant in a
    local function): it is made empty there. Nor where an input or output declares no rank, which onnx.checker
    refuses and runtimes take: it gets one.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.training_info[:]
    hoist = _Hoist(copy.graph)
    hoist.fill_shapes()
    hoist.graph(copy.graph, is_main=True)
    for function in copy.functions:
        for node in function.node:
            hoist.attributes(node)
    return copy, hoist.is_exact


class _Hoist:
    """Moves tensors without numbers out of a graph and its subgraphs, to become inputs of the main graph."""

    def __init__(self, main: onnx.GraphProto) -> None:
        self.main = main
        self.is_exact = True
        self._declared = {value.name for value in main.input}

    def graph(self, graph: onnx.GraphProto, *, is_main: bool) -> None:
        """Move the hollow tensors of one graph, and of the graphs inside its nodes."""
        aliases = []
        for tensor in _taken(graph.initializer, is_hollow):
            aliases += self._declare(tensor.name, tensor.data_type, list(tensor.dims), is_input=is_main)
        for sparse in _taken(graph.sparse_initializer, _checked_sparse):
            values = sparse.values
            aliases += self._declare(values.name, values.data_type, list(sparse.dims), is_input=is_main)
        for node in _taken(graph.node, _is_hollow_constant):
            data_type, dims = _constant_type(node)
            aliases += self._declare(node.output[0], data_type, dims, is_input=False)
        if aliases:
            nodes = [*aliases, *graph.node]
            del graph.node[:]
            graph.node.extend(nodes)
        for node in graph.node:
            self.attributes(node)

    def fill_shapes(self) -> None:
        """Give a shape to the inputs and outputs that declare none."""
        for value in [*self.main.input, *self.main.output]:
            if value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape"):
                value.type.tensor_type.shape.SetInParent()
                self.is_exact = False

    def attributes(self, node: onnx.NodeProto) -> None:
        """Go into the graphs of a node, and make empty the tensors that have to stay."""
        for attribute in node.attribute:
            for graph in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                self.graph(graph, is_main=False)
            sparse = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else attribute.sparse_tensors
            tensors = [attribute.t] if attribute.HasField("t") else list(attribute.tensors)
            tensors += [part for each in sparse for part in (each.values, each.indices)]
            for tensor in filter(is_hollow, tensors):
                tensor.CopyFrom(onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=[0]))
                self.is_exact = False

    def _declare(self, name: str, data_type: int, dims: list[int], *, is_input: bool) -> list[onnx.NodeProto]:
        if is_input:
            if name not in self._declared:
                self.main.input.append(helper.make_tensor_value_info(name, data_type, dims))
                self._declared.add(name)
            return []
        # A branch has no inputs of its own, and what a node makes is no input: an Identity stands there.
        outer = f"modelreg.hoisted.{len(self.main.input)}"
        self.main.input.append(helper.make_tensor_value_info(outer, data_type, dims))
        return [helper.make_node("Identity", [outer], [name])]


def _taken(repeated: Any, is_taken: Callable[[Any], bool]) -> list[Any]:
    """Remove from a repeated field what `is_taken`, and return it."""
    taken = [each for each in repeated if is_taken(each)]
    if taken:
        kept = [each for each in repeated if not is_taken(each)]
        del repeated[:]
        repeated.extend(kept)
    return taken


def _checked_sparse(sparse: onnx.SparseTensorProto) -> bool:
    if not is_hollow(sparse.values) and not is_hollow(sparse.indices):
        checker.check_sparse_tensor(sparse)
    return True


def _is_hollow_constant(node: onnx.NodeProto) -> bool:
    return node.op_type == "Constant" and not node.domain and any(map(_is_hollow_attribute, node.attribute))


def _is_hollow_attribute(attribute: onnx.AttributeProto) -> bool:
    if attribute.HasField("sparse_tensor"):
        sparse = attribute.sparse_tensor
        return is_hollow(sparse.values) or is_hollow(sparse.indices)
    return attribute.HasField("t") and is_hollow(attribute.t)


def _constant_type(node: onnx.NodeProto) -> tuple[int, list[int]]:
    attribute = next(filter(_is_hollow_attribute, node.attribute))
    if attribute.HasField("sparse_tensor"):
        return attribute.sparse_tensor.values.data_type, list(attribute.sparse_tensor.dims)
    return attribute.t.data_type, list(attribute.t.dims)


def _expanded_nodes(model: onnx.ModelProto) -> int:
    """Return how many nodes there are with every local function written out, or more than the limit.

    Shape inference writes them out: thirty functions that call each other twice would never end.
    """
    bodies = {(function.domain, function.name): function.node for function in model.functions}
    costs: dict[tuple[str, str], int] = {}

    def cost(nodes: Iterable[onnx.NodeProto], depth: int) -> int:
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type)
            if key in bodies and key not in costs:
                costs[key] = cost(bodies[key], depth + 1) if depth < _CALL_DEPTH else _EXPANDED_LIMIT
            total += 1 + costs.get(key, 0)
            for graph in inner_graphs([node]):
                total += len(graph.node)
        return total

    return cost(model.graph.node, 0)


def _one_line(error: Exception) -> str:
    return _cut(" ".join(str(error).split()))


def _cut(text: str) -> str:
    return text if len(text) <= _MESSAGE_LENGTH else text[: _MESSAGE_LENGTH - 1] + "…"
