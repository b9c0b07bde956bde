"""The inputs and outputs of a graph, and why some of them keep every backend from building it."""

from __future__ import annotations

import onnx

from modelreg.registry.contents import Signature, TensorSpec

# Written out, since older releases of onnx map the small floats to float32 or integers.
_NUMPY_NAMES = {
    "FLOAT": "float32",
    "DOUBLE": "float64",
    "FLOAT8E4M3FN": "float8_e4m3fn",
    "FLOAT8E4M3FNUZ": "float8_e4m3fnuz",
    "FLOAT8E5M2": "float8_e5m2",
    "FLOAT8E5M2FNUZ": "float8_e5m2fnuz",
    "FLOAT8E8M0": "float8_e8m0fnu",
    "FLOAT6E2M3": "float6_e2m3fn",
    "FLOAT6E3M2": "float6_e3m2fn",
    "FLOAT4E2M1": "float4_e2m1fn",
}
_KIND_TEXT = {
    "sequence": "a sequence",
    "optional": "optional",
    "map": "a map",
    "sparse": "a sparse tensor",
    "opaque": "of an opaque type",
}


def read_signature(graph: onnx.GraphProto) -> Signature:
    """Return the graph's real inputs and its outputs; initialisers listed as inputs are none."""
    weights = initializer_names(graph)
    return Signature(
        inputs=tuple(read_value(value) for value in graph.input if value.name not in weights),
        outputs=tuple(read_value(value) for value in graph.output),
    )


def initializer_names(graph: onnx.GraphProto) -> set[str]:
    """Return the names of all initialisers, sparse ones too."""
    dense = {tensor.name for tensor in graph.initializer}
    return dense | {sparse.values.name for sparse in graph.sparse_initializer}


def read_value(value: onnx.ValueInfoProto) -> TensorSpec:
    """Return one declared value; a type inside a sequence, optional or map gives dtype and shape."""
    declared = value.type
    kind = _kind(declared)
    while True:
        case = declared.WhichOneof("value")
        if case == "sequence_type":
            declared = declared.sequence_type.elem_type
        elif case == "optional_type":
            declared = declared.optional_type.elem_type
        elif case == "map_type":
            declared = declared.map_type.value_type
        else:
            break
    if case == "tensor_type":
        element = declared.tensor_type
        return TensorSpec(name=value.name, dtype=dtype_name(element.elem_type), shape=_shape(element), kind=kind)
    if case == "sparse_tensor_type":
        sparse = declared.sparse_tensor_type
        return TensorSpec(name=value.name, dtype=dtype_name(sparse.elem_type), shape=_shape(sparse), kind=kind)
    return TensorSpec(name=value.name, dtype="unknown", shape=None, kind=kind)


def dtype_name(data_type: int) -> str:
    """Return NumPy's (or ml_dtypes') name of an ONNX data type, `string`, or `unknown`."""
    if data_type not in onnx.TensorProto.DataType.values() or data_type == onnx.TensorProto.UNDEFINED:
        return "unknown"
    name: str = onnx.TensorProto.DataType.Name(data_type)
    return _NUMPY_NAMES.get(name, name.lower())


def unbuildable_reasons(signature: Signature) -> tuple[str, ...]:
    """Return why no backend can build the model, one reason a value; empty when nothing stands against it."""
    reasons = []
    for role, specs in (("input", signature.inputs), ("output", signature.outputs)):
        for spec in specs:
            reason = _reason(spec)
            if reason:
                reasons.append(f"{role} {spec.name!r} {reason}")
    if not signature.outputs:
        reasons.append("the graph has no output")
    return tuple(reasons)


def _reason(spec: TensorSpec) -> str:
    if spec.kind != "tensor":
        return f"is {_KIND_TEXT[spec.kind]}"
    if spec.dtype == "string":
        return "holds strings"
    if spec.dtype == "unknown":
        return "has no known element type"
    return ""


def _kind(declared: onnx.TypeProto) -> str:
    case = declared.WhichOneof("value") or "tensor_type"
    return "sparse" if case == "sparse_tensor_type" else case.removesuffix("_type")


def _shape(
    declared: onnx.TypeProto.Tensor | onnx.TypeProto.SparseTensor,
) -> tuple[int | str | None, ...] | None:
    if not declared.HasField("shape"):
        return None
    return tuple(_dimension(dim) for dim in declared.shape.dim)


def _dimension(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else None
    return dim.dim_param or None
