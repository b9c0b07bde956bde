"""The data of one tensor: from JSON or bytes to an array, and back. Pure."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelreg.runtime.serve.datatypes import BINARY_ONLY, DTYPES
from modelreg.runtime.serve.problems import InvalidRequestError

Array = NDArray[Any]
_WORDS = {"b": "true and false", "i": "whole numbers", "u": "whole numbers", "f": "numbers"}


def array_of_bytes(data: memoryview, datatype: str, shape: tuple[int, ...], *, where: str) -> Array:
    """
    Return an array on these bytes; a copy only where they are not aligned, which engines may rely on.

    Args:
        data: Little-endian, row-major.
        datatype: One of `DTYPES`.
        shape: What they are said to be.
        where: Names the tensor in errors.

    Raises:
        InvalidRequestError: It is another number of bytes.
    """
    dtype = DTYPES[datatype]
    wanted = math.prod(shape) * dtype.itemsize
    if data.nbytes != wanted:
        raise InvalidRequestError(f"{where} has {data.nbytes} bytes, {datatype} of {list(shape)} has {wanted}")
    if datatype == "BOOL" and (np.frombuffer(data, np.uint8) > 1).any():
        raise InvalidRequestError(f"{where} has a byte that is neither 0 nor 1")
    array = np.frombuffer(data, dtype=dtype).reshape(shape)
    return array if array.flags.aligned else array.copy()


def array_of_json(data: object, datatype: str, shape: tuple[int, ...], *, where: str) -> Array:
    """
    Return an array of the numbers in a list, which is flat or nested as the shape says.

    Raises:
        InvalidRequestError: They are not what the datatype or the shape says, or one is too large for it.
    """
    if datatype in BINARY_ONLY:
        raise InvalidRequestError(f"{where} is {datatype}, which is sent as binary data alone")
    if not isinstance(data, list):
        raise InvalidRequestError(f"{where} has no data")
    try:
        given = np.array(data)
    except (ValueError, OverflowError):
        raise InvalidRequestError(f"the data of {where} is no regular list of numbers") from None
    if datatype == "UINT64" and given.size and given.dtype.kind == "f":
        given = _as_exact(data, given)
    size = math.prod(shape)  # a list of nothing shows no shape
    if given.size != size or (size and given.ndim > 1 and given.shape != shape):
        raise InvalidRequestError(f"the data of {where} has the shape {list(given.shape)}, not {list(shape)}")
    return _cast(given, DTYPES[datatype], where=where).reshape(shape)


def _as_exact(data: list[Any], given: Array) -> Array:
    """Return whole numbers as they are: NumPy makes floats of a list that has small ones and some from 2**63 on."""
    exact = np.array(data, dtype=object)
    if not all(type(each) is int for each in exact.flat) or not 0 <= exact.min() <= exact.max() < 1 << 64:
        return given
    return exact.astype(np.uint64)


def _cast(given: Array, dtype: np.dtype[Any], *, where: str) -> Array:
    if not given.size:
        return np.zeros(given.shape, dtype)
    kinds = {"b": "b", "f": "fiu"}.get(dtype.kind, "iu")
    if given.dtype.kind not in kinds:
        raise InvalidRequestError(f"the data of {where} must be {_WORDS[dtype.kind]}")
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if int(given.min()) < limits.min or int(given.max()) > limits.max:
            raise InvalidRequestError(f"the data of {where} goes beyond {limits.min} to {limits.max}")
    with np.errstate(over="ignore"):
        cast = given.astype(dtype, copy=False)
    if dtype.kind == "f" and not np.isfinite(cast).all():
        raise InvalidRequestError(f"the data of {where} has a number that is too large for its datatype")
    return cast


def bytes_of_array(array: Array, datatype: str) -> memoryview:
    """Return the bytes of an array, little-endian and row-major; its own where it is so."""
    flat = np.ascontiguousarray(array, DTYPES[datatype]).reshape(-1)
    return flat.view(np.uint8).data


def json_of_array(array: Array, datatype: str, *, where: str) -> list[Any]:
    """
    Return the numbers of an array as a flat list.

    Raises:
        InvalidRequestError: JSON has no words for them.
    """
    if datatype in BINARY_ONLY:
        raise InvalidRequestError(f"{where} is {datatype}, which is sent as binary data alone", hint=_ASK_BINARY)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InvalidRequestError(f"{where} has NaN or Inf, which JSON cannot say", hint=_ASK_BINARY)
    flat: list[Any] = array.reshape(-1).tolist()
    return flat


_ASK_BINARY = "Ask for it with binary_data true."
