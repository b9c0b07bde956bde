"""An inference request of the protocol as values: JSON, and binary tensors behind it. Pure.

The protocol: https://github.com/kserve/open-inference-protocol; its binary tensors, and `timeout` in microseconds, are
extensions of Triton's (docs/protocol of its server repository).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from modelreg.registry.contents import Signature, TensorSpec
from modelreg.registry.words import Json
from modelreg.runtime.serve.arrays import array_of_bytes, array_of_json
from modelreg.runtime.serve.datatypes import DTYPES, datatype_of
from modelreg.runtime.serve.problems import InvalidRequestError
from modelreg.runtime.triton.tensors import is_batched

Array = NDArray[Any]
_LONGEST_ID = 1000
_LONGEST_TIMEOUT_US = 1 << 63


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedOutput:
    """An output that is asked for, as bytes behind the JSON or in it."""

    name: str
    is_binary: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class InferRequest:
    """
    A request that the model's signature takes.

    Attributes:
        id: What the client calls it; empty for nothing.
        inputs: Every input by name; a binary one shares the body's memory and cannot be written.
        outputs: What is asked for, in that order.
        rows: Samples: the length of the first axis, 1 for a model without a batch.
        timeout_s: How long the client waits; None where it does not say.
    """

    id: str
    inputs: dict[str, Array]
    outputs: tuple[WantedOutput, ...]
    rows: int
    timeout_s: float | None


def decode_request(
    body: bytes, signature: Signature, *, header_length: int | None = None, start: int = 0
) -> InferRequest:
    """
    Return what a body asks.

    Args:
        body: The JSON, and the binary tensors in the order of the inputs.
        signature: The model's.
        header_length: Bytes of the JSON; None where there is nothing else.
        start: Where the JSON begins.

    Raises:
        InvalidRequestError: It is not well-formed, or not what the model takes.
    """
    end = len(body) if header_length is None else start + header_length
    if end > len(body):
        raise InvalidRequestError(f"the JSON is said to have {header_length} bytes, the body has {len(body) - start}")
    document = _read_json(body[start:end])
    parameters = _read_parameters(document, "the request")
    if parameters.get("sequence_id"):
        raise InvalidRequestError("sequences are not supported: each request stands alone")
    inputs = _read_inputs(document, memoryview(body)[end:], signature)
    return InferRequest(
        id=_read_id(document.get("id", "")),
        inputs=inputs,
        outputs=_read_outputs(document, parameters, signature),
        rows=_count_rows(inputs, signature),
        timeout_s=_read_timeout(parameters.get("timeout", 0)),
    )


def _read_json(text: bytes) -> Json:
    try:
        document = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise InvalidRequestError("the JSON is nested too deeply") from None
    except ValueError as error:
        raise InvalidRequestError(f"the body is no JSON: {str(error)[:200]}") from None
    if not isinstance(document, dict):
        raise InvalidRequestError("the request must be a JSON object")
    return document


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no number of JSON; send it as binary data")


def _read_parameters(holder: Json, what: str) -> Json:
    parameters = holder.get("parameters", {})
    if not isinstance(parameters, dict):
        raise InvalidRequestError(f"the parameters of {what} must be an object")
    return parameters


def _read_id(value: object) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_ID:
        raise InvalidRequestError(f"id must be a string of at most {_LONGEST_ID} characters")
    return value


def _read_timeout(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidRequestError("timeout must be a number of microseconds, a whole one of at least 0")
    return min(value, _LONGEST_TIMEOUT_US) / 1e6 if value else None


# -- inputs ------------------------------------------------------------------------------------------------
def _read_inputs(document: Json, binary: memoryview, signature: Signature) -> dict[str, Array]:
    specs = {spec.name: spec for spec in signature.inputs}
    found: dict[str, Array] = {}
    for given in _read_objects(document, "inputs"):
        spec = specs.get(given["name"])
        if spec is None:
            raise InvalidRequestError(f"there is no input {_show(given['name'])}; the model takes {_list(specs)}")
        if spec.name in found:
            raise InvalidRequestError(f"the input {_show(spec.name)} is given twice")
        found[spec.name], binary = _read_input(given, spec, binary)
    missing = [name for name in specs if name not in found]
    if missing:
        raise InvalidRequestError(f"the input {_show(missing[0])} is missing")
    if binary.nbytes:
        raise InvalidRequestError(f"{binary.nbytes} bytes of the body belong to no input")
    return found


def _read_input(given: Json, spec: TensorSpec, binary: memoryview) -> tuple[Array, memoryview]:
    """Return one input, and the bytes that are left behind it."""
    where = f"the input {_show(spec.name)}"
    parameters = _read_parameters(given, where)
    if any(name.startswith("shared_memory_") for name in parameters):
        raise InvalidRequestError(f"{where} is in shared memory, which this server does not support")
    datatype = _check_datatype(given.get("datatype"), spec, where)
    shape = _check_shape(given.get("shape"), spec, where)
    size = parameters.get("binary_data_size")
    if size is None:
        return array_of_json(given.get("data"), datatype, shape, where=where), binary
    if "data" in given:
        raise InvalidRequestError(f"{where} has data and binary_data_size, which exclude each other")
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= binary.nbytes:
        raise InvalidRequestError(f"{where} is said to have {size!r:.40} bytes, {binary.nbytes} are left in the body")
    return array_of_bytes(binary[:size], datatype, shape, where=where), binary[size:]


def _check_datatype(given: object, spec: TensorSpec, where: str) -> str:
    wanted = datatype_of(spec.dtype) if spec.kind == "tensor" else None
    if wanted not in DTYPES:
        raise InvalidRequestError(f"{where} is {wanted or spec.dtype} ({spec.kind}), which this server does not take")
    if given != wanted:
        raise InvalidRequestError(f"{where} has the datatype {given!r:.40}, the model takes {wanted}")
    assert wanted is not None
    return wanted


def _check_shape(given: object, spec: TensorSpec, where: str) -> tuple[int, ...]:
    if not isinstance(given, list) or not all(
        isinstance(axis, int) and not isinstance(axis, bool) and axis >= 0 for axis in given
    ):
        raise InvalidRequestError(f"the shape of {where} must be a list of whole numbers of at least 0")
    declared = spec.shape
    fits = declared is None or (
        len(given) == len(declared)
        and all(not isinstance(axis, int) or axis == length for axis, length in zip(declared, given, strict=True))
    )
    if not fits:
        assert declared is not None
        takes = [axis if isinstance(axis, int) else -1 for axis in declared]
        raise InvalidRequestError(f"{where} has the shape {given!r:.80}, the model takes {takes}")
    if math.prod(given) > 1 << 40:
        raise InvalidRequestError(f"{where} has the shape {given!r:.80}, which is too large")
    return tuple(given)


def _count_rows(inputs: dict[str, Array], signature: Signature) -> int:
    if not is_batched(signature):
        return 1
    return len(inputs[signature.inputs[0].name])


# -- outputs -----------------------------------------------------------------------------------------------
def _read_outputs(document: Json, parameters: Json, signature: Signature) -> tuple[WantedOutput, ...]:
    names = [spec.name for spec in signature.outputs]
    is_binary = _read_flag(parameters.get("binary_data_output", False), "binary_data_output")
    if not document.get("outputs"):
        return tuple(WantedOutput(name=name, is_binary=is_binary) for name in names)
    found: dict[str, WantedOutput] = {}
    for given in _read_objects(document, "outputs"):
        name = given["name"]
        where = f"the output {_show(name)}"
        if name not in names:
            raise InvalidRequestError(f"there is no output {_show(name)}; the model gives {_list(names)}")
        if name in found:
            raise InvalidRequestError(f"{where} is asked for twice")
        asked = _read_parameters(given, where)
        if any(word.startswith("shared_memory_") for word in asked):
            raise InvalidRequestError(f"{where} is to go into shared memory, which this server does not support")
        if asked.get("classification"):
            raise InvalidRequestError(f"{where} is asked for as classes, which this server does not support")
        flag = asked.get("binary_data", is_binary)
        found[name] = WantedOutput(name=name, is_binary=_read_flag(flag, "binary_data"))
    return tuple(found.values())


def _read_flag(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequestError(f"{name} must be true or false")
    return value


def _read_objects(document: Json, key: str) -> list[Json]:
    """Return the list of named objects under a key."""
    given = document.get(key)
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise InvalidRequestError(f"{key} must be a list of objects")
    for each in given:
        if not isinstance(each.get("name"), str):
            raise InvalidRequestError(f"each of {key} must have a name")
    return given


def _show(name: str) -> str:
    return repr(name[:60])


def _list(names: Sequence[str] | dict[str, TensorSpec]) -> str:
    return ", ".join(repr(name[:60]) for name in list(names)[:20])
