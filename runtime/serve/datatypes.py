"""The protocol's names of types, and NumPy's. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np

from modelreg.runtime.triton.tensors import triton_type

_NUMPY_NAMES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64"),
)


def datatype_of(dtype: str) -> str | None:
    """Return the protocol's name of a type of a signature (`FP32` for `float32`), None where it has none."""
    named = triton_type(dtype)
    if named is None:
        return None
    return "BYTES" if named == "TYPE_STRING" else named.removeprefix("TYPE_")


DTYPES: dict[str, np.dtype[Any]] = {
    datatype: np.dtype(name).newbyteorder("<") for name in _NUMPY_NAMES if (datatype := datatype_of(name)) is not None
}
"""What is sent as its bytes, little-endian, by the protocol's name; `BYTES` and `BF16` are no types of NumPy."""

BINARY_ONLY = frozenset({"FP16"})
"""What the protocol has no JSON for."""
