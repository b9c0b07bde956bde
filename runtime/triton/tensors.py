"""What a model takes and gives in Triton's words, and what Triton would not take. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from modelreg.registry.contents import Signature, TensorSpec
from modelreg.registry.errors import UsageError
from modelreg.registry.words import Backend

_TYPES = {
    "bool": "TYPE_BOOL",
    "uint8": "TYPE_UINT8",
    "uint16": "TYPE_UINT16",
    "uint32": "TYPE_UINT32",
    "uint64": "TYPE_UINT64",
    "int8": "TYPE_INT8",
    "int16": "TYPE_INT16",
    "int32": "TYPE_INT32",
    "int64": "TYPE_INT64",
    "float16": "TYPE_FP16",
    "float32": "TYPE_FP32",
    "float64": "TYPE_FP64",
    "bfloat16": "TYPE_BF16",
    "string": "TYPE_STRING",
}
_TENSORRT = frozenset({"bool", "uint8", "int8", "int32", "int64", "float16", "float32", "bfloat16"})
_TENSORRT_FROM_10 = frozenset({"int64", "bfloat16"})
_NOT_IN_ONNXRUNTIME = frozenset({"bfloat16"})

ANY = -1
"""How Triton writes a free dimension."""


class TritonRefusalError(UsageError):
    """A Triton server would refuse the model; nothing was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonTensor:
    """
    One input or output.

    Attributes:
        name: As the plan has it.
        data_type: Triton's name.
        dims: Without the batch where Triton batches; `ANY` for a free dimension.
        reshape: What the backend gets in the place of `dims`; None where that is the same.
    """

    name: str
    data_type: str
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTypes:
    """
    What decides the types that a plan takes and gives, beside the source's.

    Attributes:
        backend: What loads it.
        version: Its version.
        halves_io: Whether FP32 inputs and outputs became FP16 (`--no-keep-io-types`).
    """

    backend: Backend
    version: str
    halves_io: bool = False


def triton_type(dtype: str) -> str | None:
    """Return Triton's name of a type of the signature, None where it has none."""
    return _TYPES.get(dtype)


def is_batched(signature: Signature) -> bool:
    """Return whether the first axis of every input and output is free, and the same: what Triton calls a batch."""
    specs = (*signature.inputs, *signature.outputs)
    if not signature.inputs or not all(spec.shape for spec in specs):
        return False
    first = [spec.shape[0] for spec in specs if spec.shape]
    symbols = {axis for axis in first if axis is not None}
    return not any(isinstance(axis, int) for axis in first) and len(symbols) <= 1


def describe_tensors(specs: Sequence[TensorSpec], *, types: PlanTypes, batched: bool) -> tuple[TritonTensor, ...]:
    """
    Return inputs or outputs in Triton's words.

    Raises:
        TritonRefusalError: Triton, or its backend, has no such type or shape.
    """
    names = [spec.name for spec in specs]
    for name in names:
        if not name or names.count(name) > 1:
            raise TritonRefusalError(f"Triton needs a name of its own for every input and output, not {name!r}")
    return tuple(_describe(spec, types=types, batched=batched) for spec in specs)


def _describe(spec: TensorSpec, *, types: PlanTypes, batched: bool) -> TritonTensor:
    if spec.kind != "tensor":
        raise TritonRefusalError(f"{spec.name!r} is a {spec.kind}, and Triton takes and gives tensors alone")
    if spec.shape is None:
        raise TritonRefusalError(
            f"{spec.name!r} has no declared rank, and Triton needs its dims", hint="Export the ONNX with shapes."
        )
    data_type = _data_type(spec, types)
    dims = tuple(length if isinstance(length, int) else ANY for length in spec.shape[1 if batched else 0 :])
    if 0 in dims:
        raise TritonRefusalError(f"{spec.name!r} has a dimension of length 0, which Triton refuses")
    if dims:
        return TritonTensor(name=spec.name, data_type=data_type, dims=dims)
    if not batched:
        raise TritonRefusalError(
            f"{spec.name!r} is a scalar of a model that Triton cannot batch, and Triton needs at least one dimension",
            hint="Export the ONNX with shape [1] there.",
        )
    return TritonTensor(name=spec.name, data_type=data_type, dims=(1,), reshape=())  # one number for each row


def _data_type(spec: TensorSpec, types: PlanTypes) -> str:
    dtype = "float16" if types.halves_io and spec.dtype == "float32" else spec.dtype
    if types.backend is Backend.TENSORRT:
        is_old = _major(types.version) < 10
        if dtype == "int64" and is_old:
            dtype = "int32"  # TensorRT before 10 has no INT64: its plans take and give INT32 there
        is_known = dtype in _TENSORRT and not (is_old and dtype in _TENSORRT_FROM_10)
        where = f"Triton's TensorRT backend with TensorRT {types.version}"
    else:
        is_known = dtype in _TYPES and dtype not in _NOT_IN_ONNXRUNTIME
        where = "Triton's ONNX Runtime backend"
    if not is_known:
        raise TritonRefusalError(
            f"{spec.name!r} is {dtype}, which {where} does not take",
            hint="Cast it inside the model, or export another engine with --target or --precision.",
        )
    return _TYPES[dtype]


def _major(version: str) -> int:
    first = version.partition(".")[0]
    return int(first) if first.isdigit() else 0
