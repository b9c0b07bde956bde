"""ONNX graphs on their way to a variant: loaded, brought to one form, saved. Runs in the child process."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from pathlib import Path

import onnx
import onnx.inliner
import onnx.version_converter
from onnx import helper, numpy_helper

from modelreg.builders.graph_sizes import EXTERNAL_BYTES
from modelreg.builders.subgraphs import graphs_of, made_names, separate_names

_MODERN_IR = 8
_SHORT_FLOATS: dict[int, tuple[str, int]] = {
    onnx.TensorProto.BFLOAT16: ("bfloat16", 2),
    onnx.TensorProto.FLOAT8E4M3FN: ("float8_e4m3fn", 1),
}
"""Names and bytes of types that NumPy lacks; before onnx 1.19 they are taken for FP32."""


class VariantError(Exception):
    """A variant cannot be made; `details` carries the hint for the user."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.details = {"hint": hint} if hint else {}


class NothingToConvertError(VariantError):
    """No node of the model can become the precision that was asked for."""


def load_normalised(path: Path) -> onnx.ModelProto:
    """Load a model in the one form that the converters understand."""
    return normalise(onnx.load(path))


def normalise(model: onnx.ModelProto) -> onnx.ModelProto:
    """
    Return a model in that form; the one given is changed.

    Functions are inlined, constants are initialisers, initialisers are no inputs and state their type alone, every
    node has a name, and no tensor in a branch or loop has the name of another: the converters skip, mistype or refuse
    what is not so.
    """
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    for graph in graphs_of(model.graph):
        _constants_to_initialisers(graph)
    _drop_initialiser_inputs(model)
    for graph in graphs_of(model.graph):
        _drop_initialiser_values(graph)
    separate_names(model.graph)
    name_nodes(model.graph)
    return model


def save_model(model: onnx.ModelProto, path: Path) -> list[Path]:
    """Save a model, its weights beside it when they are too many; return the files, the model first."""
    if weight_bytes(model.graph) <= EXTERNAL_BYTES:
        onnx.save(model, path)
        return [path]
    data = path.with_name(path.name + ".data")
    onnx.save(model, path, save_as_external_data=True, all_tensors_to_one_file=True, location=data.name)
    return [path, data]


def weight_bytes(graph: onnx.GraphProto) -> int:
    """Return the bytes of the initialisers as stored in memory, those of branches and loops too."""
    return sum(_tensor_bytes(tensor) for each in graphs_of(graph) for tensor in each.initializer)


def initialiser_bytes(graph: onnx.GraphProto) -> dict[str, int]:
    """Return the bytes of the initialisers by NumPy dtype name, those of branches and loops too."""
    counted: dict[str, int] = {}
    for tensor in (tensor for each in graphs_of(graph) for tensor in each.initializer):
        name = type_name(tensor.data_type)
        counted[name] = counted.get(name, 0) + _tensor_bytes(tensor)
    return dict(sorted(counted.items()))


def type_name(elem_type: int) -> str:
    """Return `float32` for `TensorProto.FLOAT` and so on."""
    if elem_type in _SHORT_FLOATS:
        return _SHORT_FLOATS[elem_type][0]
    return str(helper.tensor_dtype_to_np_dtype(elem_type).name) if elem_type else "unknown"


def element_types(model: onnx.ModelProto) -> dict[str, int]:
    """Return the element type of each tensor that inference knows; where names clash, the outer graph counts."""
    return declared_types(onnx.shape_inference.infer_shapes(model).graph)


def declared_types(graph: onnx.GraphProto) -> dict[str, int]:
    """Return the element types that a graph and those inside it state; where names clash, the outer graph counts."""
    types: dict[str, int] = {}
    for each in graphs_of(graph):
        found = {tensor.name: tensor.data_type for tensor in each.initializer}
        for value in (*each.input, *each.output, *each.value_info):
            if value.type.tensor_type.elem_type:
                found[value.name] = value.type.tensor_type.elem_type
        types = found | types
    return types


def name_nodes(graph: onnx.GraphProto) -> None:
    """Give every node without a name one that no other has."""
    taken = {node.name for each in graphs_of(graph) for node in each.node}
    for each in graphs_of(graph):
        for index, node in enumerate(each.node):
            if not node.name:
                name = f"{node.op_type}_{index}"
                while name in taken:
                    name += "_"
                node.name = name
                taken.add(name)


def require_nodes(graph: onnx.GraphProto, names: Iterable[str]) -> None:
    """
    Refuse names of nodes that the model does not have.

    Raises:
        VariantError: Names the first, and names like it.
    """
    known = [node.name for each in graphs_of(graph) for node in each.node]
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=3)
            hint = f"Close names: {', '.join(close)}." if close else "Nodes are named as in the ONNX file."
            raise VariantError(f"the model has no node {name!r} to exclude", hint=hint)


def raise_opset(model: onnx.ModelProto, *, at_least: int, to: int) -> onnx.ModelProto:
    """
    Return the model at opset `to` where its own is below `at_least`.

    Raises:
        VariantError: The converter cannot raise it.
    """
    used = {node.domain for each in graphs_of(model.graph) for node in each.node}
    foreign = [each for each in model.opset_import if each.domain not in ("", "ai.onnx") and each.domain not in used]
    for each in foreign:
        model.opset_import.remove(each)
    current = next((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), 0)
    if current >= at_least:
        return model
    model.ir_version = max(model.ir_version, _MODERN_IR)
    before = len(model.graph.node)
    try:
        raised = onnx.version_converter.convert_version(model, to)
    except Exception as error:
        raise VariantError(
            f"the opset cannot be raised from {current} to {to}: {first_line(error)}",
            hint=f"Export the model with opset {at_least} or newer.",
        ) from error
    if before and not raised.graph.node:
        raise VariantError(f"raising the opset from {current} to {to} lost the graph")
    name_nodes(raised.graph)
    return raised


def first_line(error: BaseException) -> str:
    """Return the first line of an error that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _tensor_bytes(tensor: onnx.TensorProto) -> int:
    if tensor.data_type in (0, onnx.TensorProto.STRING):
        return 0
    if tensor.data_type in _SHORT_FLOATS:
        return int(math.prod(tensor.dims)) * _SHORT_FLOATS[tensor.data_type][1]
    return int(math.prod(tensor.dims)) * int(helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)


def _constants_to_initialisers(graph: onnx.GraphProto) -> None:
    kept = []
    for node in graph.node:
        tensor = _constant(node) if node.op_type == "Constant" and node.domain in ("", "ai.onnx") else None
        if tensor is None:
            kept.append(node)
        else:
            tensor.name = node.output[0]
            graph.initializer.append(tensor)
    del graph.node[:]
    graph.node.extend(kept)
    _pass_on_outputs(graph)


def _pass_on_outputs(graph: onnx.GraphProto) -> None:
    """Put an Identity behind every initialiser that is an output: converters change what nodes make."""
    outputs = {value.name for value in graph.output} - {value.name for value in graph.input}
    taken = made_names(graph)
    for tensor in graph.initializer:
        if tensor.name in outputs:
            name, tensor.name = tensor.name, f"{tensor.name}_constant"
            while tensor.name in taken:
                tensor.name += "_"
            graph.node.insert(0, helper.make_node("Identity", [tensor.name], [name]))


def _constant(node: onnx.NodeProto) -> onnx.TensorProto | None:
    attribute = node.attribute[0]
    value = helper.get_attribute_value(attribute)
    if attribute.name == "value":
        tensor = onnx.TensorProto()
        tensor.CopyFrom(value)
        return tensor
    dtypes = {"value_float": "float32", "value_floats": "float32", "value_int": "int64", "value_ints": "int64"}
    if attribute.name not in dtypes:
        return None
    import numpy as np  # noqa: PLC0415 - rarely needed

    return numpy_helper.from_array(np.array(value, dtype=dtypes[attribute.name]))


def _drop_initialiser_inputs(model: onnx.ModelProto) -> None:
    initialised = {tensor.name for tensor in model.graph.initializer}
    real = [value for value in model.graph.input if value.name not in initialised]
    if len(real) != len(model.graph.input):
        del model.graph.input[:]
        model.graph.input.extend(real)
        model.ir_version = max(model.ir_version, _MODERN_IR)


def _drop_initialiser_values(graph: onnx.GraphProto) -> None:
    """Forget what a graph declares about its initialisers: converters change the one and not always the other."""
    initialised = {tensor.name for tensor in graph.initializer}
    values = [value for value in graph.value_info if value.name not in initialised]
    if len(values) != len(graph.value_info):
        del graph.value_info[:]
        graph.value_info.extend(values)
