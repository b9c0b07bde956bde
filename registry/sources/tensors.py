"""What is known of a tensor without its numbers."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import onnx

_BITS = {
    "FLOAT": 32,
    "UINT8": 8,
    "INT8": 8,
    "UINT16": 16,
    "INT16": 16,
    "INT32": 32,
    "INT64": 64,
    "BOOL": 8,
    "FLOAT16": 16,
    "DOUBLE": 64,
    "UINT32": 32,
    "UINT64": 64,
    "COMPLEX64": 64,
    "COMPLEX128": 128,
    "BFLOAT16": 16,
    "FLOAT8E4M3FN": 8,
    "FLOAT8E4M3FNUZ": 8,
    "FLOAT8E5M2": 8,
    "FLOAT8E5M2FNUZ": 8,
    "FLOAT8E8M0": 8,
    "UINT4": 4,
    "INT4": 4,
    "FLOAT4E2M1": 4,
    "UINT2": 2,
    "INT2": 2,
    "FLOAT6E2M3": 6,
    "FLOAT6E3M2": 6,
}
_HOME_FIELDS = {
    "FLOAT": "float_data",
    "COMPLEX64": "float_data",
    "DOUBLE": "double_data",
    "COMPLEX128": "double_data",
    "INT64": "int64_data",
    "UINT32": "uint64_data",
    "UINT64": "uint64_data",
    "STRING": "string_data",
}
_TYPE_NAMES = {number: name for name, number in onnx.TensorProto.DataType.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFacts:
    """
    One tensor of a model: an initialiser, a part of a sparse one, or a tensor inside an attribute.

    `role` is the protobuf field it was found in (`initializer`, `values`, `indices`, `t`, `tensors`).
    `payloads` maps the field that holds the numbers to its bytes on the wire; strings count one each.
    `numbers` counts those written with a length of their own, where the tensor is small; None elsewhere.
    `external` are the external data entries in file order, None when the numbers are in the file itself.
    """

    name: str
    data_type: int
    dims: tuple[int, ...]
    role: str
    payloads: dict[str, int]
    external: tuple[tuple[str, str], ...] | None
    numbers: int | None = None

    @property
    def elements(self) -> int:
        """Return how many numbers the shape promises; 0 for a shape with a negative dimension."""
        return 0 if any(dim < 0 for dim in self.dims) else prod(self.dims)

    @property
    def type_name(self) -> str | None:
        """Return ONNX's name of the data type, or None for one it does not know."""
        return _TYPE_NAMES.get(self.data_type) if self.data_type else None

    @property
    def size_bytes(self) -> int | None:
        """Return the bytes the numbers take in raw form, or None for strings and unknown data types."""
        bits = _BITS.get(self.type_name or "")
        return None if bits is None else -(-self.elements * bits // 8)

    @property
    def home_field(self) -> str:
        """Return the field for the numbers of this type, where they are not in `raw_data`."""
        return _HOME_FIELDS.get(self.type_name or "", "int32_data")

    def describe(self) -> str:
        """Return how an error message calls the tensor."""
        return f"tensor {self.name!r}" if self.name else f"an unnamed {self.type_name or 'tensor'} tensor"


def is_hollow(tensor: onnx.TensorProto) -> bool:
    """Return whether a tensor of a stripped model has lost its numbers, or keeps them in another file."""
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return True
    if any(getattr(tensor, name) for name in _PAYLOAD_NAMES):
        return False
    return 0 not in tensor.dims


_PAYLOAD_NAMES = (
    "raw_data",
    "float_data",
    "int32_data",
    "int64_data",
    "string_data",
    "double_data",
    "uint64_data",
)
