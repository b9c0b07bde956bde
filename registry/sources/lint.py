"""Our own checks of a stripped model: what onnx.checker lets through and runtimes refuse, or read differently."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import onnx
from onnx import defs

from modelreg.registry.errors import SourceError
from modelreg.registry.sources.signature import initializer_names
from modelreg.registry.sources.tensors import TensorFacts, is_hollow

_INT32 = range(-(2**31), 2**31)
_INT64_ENDS = (-(2**63), 2**63 - 1)  # exporters write them for "to the end"; every runtime clamps them
_PROTOBUF_LIMIT_BYTES = 2**31
_NAMES_SHOWN = 5


def read_opsets(model: onnx.ModelProto, *, name: str) -> dict[str, int]:
    """
    Return the opset of each domain, the default domain as an empty string.

    Raises:
        SourceError: The IR version or an opset is missing, newer than the installed onnx, or given twice.
    """
    if model.ir_version < 1:
        raise SourceError(f"{name} is not an ONNX model: it has no IR version")
    if model.ir_version > onnx.IR_VERSION:
        raise _too_new(name, f"IR version {model.ir_version}", int(onnx.IR_VERSION))
    if not model.opset_import and model.ir_version < 3:
        return {"": 1}  # before opsets were written down there was one
    if not model.opset_import:
        raise SourceError(f"{name} does not say which opset it uses")
    opsets: dict[str, int] = {}
    for entry in model.opset_import:
        domain = default_domain(entry.domain)
        if domain in opsets:
            raise SourceError(f"{name} imports the opset of domain {domain or 'ai.onnx'!r} twice")
        if entry.version < 1:
            raise SourceError(f"{name} uses opset {entry.version} of {domain or 'ai.onnx'}: opsets start at 1")
        opsets[domain] = entry.version
    for domain, newest in (("", defs.onnx_opset_version()), ("ai.onnx.ml", defs.onnx_ml_opset_version())):
        if opsets.get(domain, 0) > newest:
            raise _too_new(name, f"opset {opsets[domain]} of {domain or 'ai.onnx'}", newest)
    return opsets


def default_domain(domain: str) -> str:
    """Return the domain with the default one in its short spelling."""
    return "" if domain == "ai.onnx" else domain


def check_tensors(tensors: Iterable[TensorFacts], *, name: str) -> None:
    """
    Check that the numbers of every tensor are there and as many as its shape says.

    Raises:
        SourceError: Naming the first tensor at fault, and how many more there are.
    """
    faults = [f"{tensor.describe()} {fault}" for tensor in tensors if (fault := _tensor_fault(tensor))]
    _raise_first(faults, name)


def check_graph(graph: onnx.GraphProto, *, name: str) -> None:
    """
    Check that every name in the graph is given once.

    Raises:
        SourceError: An input, output, initialiser or value is there twice, or a dimension is below -1.
    """
    produced = [name for node in graph.node for name in node.output if name]
    given = {value.name for value in graph.input} | initializer_names(graph)
    weights = [t.name for t in graph.initializer] + [s.values.name for s in graph.sparse_initializer]
    faults = [
        *(f"output {each!r} is listed twice" for each in _repeated(v.name for v in graph.output)),
        *(f"input {each!r} is listed twice" for each in _repeated(v.name for v in graph.input)),
        *(f"initialiser {each!r} is there twice" for each in _repeated(weights)),
        *(f"value {each!r} is produced by two nodes" for each in _repeated(produced)),
        *(f"value {each!r} is an input or initialiser and produced by a node" for each in produced if each in given),
        *(f"{role} {each!r} has the dimension {size}" for role, each, size in _negative_dimensions(graph) if size < -1),
    ]
    _raise_first(faults, name)


def find_warnings(model: onnx.ModelProto, *, size_bytes: int) -> tuple[str, ...]:
    """Return what is odd about a valid model: it is registered, but something may trip over it."""
    return tuple(
        warning
        for warnings in (
            _duplicate_node_names(model),
            _overridable(model),
            _unknown_ranks(model.graph),
            _literal_dimensions(model.graph),
            _wide_integers(model),
            _foreign_domains(model),
            _extras(model, size_bytes),
        )
        for warning in warnings
    )


def count_nodes(model: onnx.ModelProto) -> dict[str, int]:
    """Return how often each operator occurs, with subgraphs and the bodies of local functions; most first."""
    counts = Counter(".".join(filter(None, (default_domain(node.domain), node.op_type))) for node in walk_nodes(model))
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def walk_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield every node: of the graph, of graphs inside attributes, of local functions."""
    for graph in walk_graphs(model.graph):
        yield from graph.node
    for function in model.functions:
        for node in function.node:
            yield node
            for graph in inner_graphs([node]):
                yield from graph.node


def walk_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield the graph and all graphs inside its nodes' attributes."""
    yield graph
    yield from inner_graphs(graph.node)


def inner_graphs(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.GraphProto]:
    """Yield all graphs inside the attributes of some nodes, however deep."""
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from walk_graphs(attribute.g)
            for graph in attribute.graphs:
                yield from walk_graphs(graph)


def _tensor_fault(tensor: TensorFacts) -> str:
    shape = list(tensor.dims)
    if tensor.type_name is None:
        return f"has data type {tensor.data_type}, which onnx {onnx.__version__} does not know"
    if any(dim < 0 for dim in tensor.dims):
        return f"has the shape {shape}"
    if tensor.external is not None:
        return "has numbers both in the file and in external data" if tensor.payloads else ""
    if not tensor.elements:
        return f"has the shape {shape} and yet some numbers" if tensor.payloads else ""
    if not tensor.payloads:
        return f"has the shape {shape} but no numbers"
    if len(tensor.payloads) > 1:
        return f"has its numbers twice, in {' and '.join(sorted(tensor.payloads))}"
    ((field, size),) = tensor.payloads.items()
    return _size_fault(tensor, field, size)


def _size_fault(tensor: TensorFacts, field: str, size: int) -> str:
    needed = tensor.size_bytes
    if field != tensor.home_field and (field != "raw_data" or needed is None):
        return f"has {tensor.type_name} numbers in {field}, where they cannot be"
    if needed is None:
        fits = size == tensor.elements
    elif field in ("raw_data", "float_data", "double_data"):
        fits = size == needed
    else:  # one to ten bytes for each number, or for each byte of packed ones
        numbers = min(tensor.elements, needed)
        fits = numbers <= size <= 10 * numbers if tensor.numbers is None else tensor.numbers == numbers
    shape = list(tensor.dims)
    return "" if fits else f"does not hold as many numbers as its shape {shape} needs: {field} is {size} long"


def _duplicate_node_names(model: onnx.ModelProto) -> Iterator[str]:
    for graph in walk_graphs(model.graph):
        names = _repeated(node.name for node in graph.node if node.name)
        if names:
            yield f"several nodes have the same name: {_listed(names)}; ONNX Runtime refuses that"


def _overridable(model: onnx.ModelProto) -> Iterator[str]:
    weights = initializer_names(model.graph)
    both = [value.name for value in model.graph.input if value.name in weights]
    if both and model.ir_version >= 4:
        yield f"initialisers that are inputs too count as constants, not as inputs: {_listed(both)}"


def _unknown_ranks(graph: onnx.GraphProto) -> Iterator[str]:
    for role, values in (("input", graph.input), ("output", graph.output)):
        for value in values:
            if value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape"):
                yield f"{role} {value.name!r} does not declare how many dimensions it has"


def _literal_dimensions(graph: onnx.GraphProto) -> Iterator[str]:
    for role, name, size in _negative_dimensions(graph):
        yield f"{role} {name!r} has the literal dimension {size}, which is taken as unknown"


def _negative_dimensions(graph: onnx.GraphProto) -> Iterator[tuple[str, str, int]]:
    for role, values in (("input", graph.input), ("output", graph.output)):
        for value in values:
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_value < 0:
                    yield role, value.name, dim.dim_value


def _wide_integers(model: onnx.ModelProto) -> Iterator[str]:
    tensors = [tensor for graph in walk_graphs(model.graph) for tensor in graph.initializer]
    tensors += [a.t for node in walk_nodes(model) if node.op_type == "Constant" for a in node.attribute]
    wide = [tensor.name for tensor in tensors if _is_wide(tensor)]
    if wide:
        yield f"int64 values that do not fit in int32 are cut by some TensorRT versions: {_listed(wide)}"


def _is_wide(tensor: onnx.TensorProto) -> bool:
    if tensor.data_type != onnx.TensorProto.INT64 or is_hollow(tensor):
        return False
    numbers = list(tensor.int64_data) + np.frombuffer(tensor.raw_data, "<i8").tolist()
    return any(number not in _INT32 and number not in _INT64_ENDS for number in numbers)


def _foreign_domains(model: onnx.ModelProto) -> Iterator[str]:
    local = {function.domain for function in model.functions}
    used = {default_domain(node.domain) for node in walk_nodes(model)}
    for domain in sorted(used - local - {""}):
        if not domain.startswith("ai.onnx"):
            yield f"operators of the domain {domain!r} need a runtime or plugin that has them"


def _extras(model: onnx.ModelProto, size_bytes: int) -> Iterator[str]:
    if model.training_info:
        yield "training information is kept in the file but not used"
    if size_bytes >= _PROTOBUF_LIMIT_BYTES:
        yield f"the ONNX file has {size_bytes} bytes, and runtimes read at most 2 GiB: use external data"


def _too_new(name: str, found: str, newest: int) -> SourceError:
    return SourceError(
        f"{name} uses {found}, but the newest that onnx {onnx.__version__} knows is {newest}",
        hint="Upgrade onnx, or export the model for an older version.",
    )


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, times in Counter(names).items() if times > 1]


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:_NAMES_SHOWN])
    more = len(names) - _NAMES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _raise_first(faults: Sequence[str], name: str) -> None:
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise SourceError(f"{name} is not a valid ONNX model: {faults[0]}{more}")
