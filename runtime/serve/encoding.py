"""An answer of an engine as an inference response of the protocol. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelreg.registry.contents import Signature
from modelreg.registry.words import Json
from modelreg.runtime.serve.arrays import bytes_of_array, json_of_array
from modelreg.runtime.serve.datatypes import DTYPES, datatype_of
from modelreg.runtime.serve.decoding import InferRequest
from modelreg.runtime.serve.problems import InvalidRequestError
from modelreg.runtime.serving import Answer, ServedEngine

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """A response's body: JSON alone, or `header_length` bytes of it and binary tensors."""

    body: bytes
    header_length: int | None = None


def encode_answer(answer: Answer, request: InferRequest, signature: Signature, *, model: str) -> Encoded:
    """
    Return the response to a request.

    Outputs have the types of the signature, whatever the engine computes in: clients see no change of precision.

    Raises:
        InvalidRequestError: An output cannot be sent as it was asked for.
    """
    dtypes = {spec.name: spec.dtype for spec in signature.outputs}
    outputs: list[Json] = []
    binary: list[memoryview] = []
    for wanted in request.outputs:
        where = f"the output {wanted.name[:60]!r}"
        datatype = _require_datatype(dtypes[wanted.name], where)
        array = np.asarray(answer[wanted.name]).astype(DTYPES[datatype], copy=False)
        output: Json = {"name": wanted.name, "datatype": datatype, "shape": list(array.shape)}
        if wanted.is_binary:
            data = bytes_of_array(array, datatype)
            binary.append(data)
            output["parameters"] = {"binary_data_size": data.nbytes}
        else:
            output["data"] = json_of_array(array, datatype, where=where)
        outputs.append(output)
    document = describe_answer(answer.served, model=model)
    if request.id:
        document["id"] = request.id
    document["outputs"] = outputs
    header = json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
    if not binary:
        return Encoded(body=header)
    return Encoded(body=b"".join([header, *binary]), header_length=len(header))


def describe_answer(served: ServedEngine, *, model: str) -> Json:
    """Return what every response says of who answered."""
    return {
        "model_name": model,
        "model_version": str(served.version),
        "parameters": {
            "channel": served.channel,
            "generation": served.generation,
            "release": served.release,
            "precision": str(served.precision),
            "target": served.target,
            "digest": served.digest,
        },
    }


def name_headers(served: ServedEngine) -> Mapping[str, str]:
    """Return the same as headers, for proxies and logs that read no bodies."""
    return {
        "modelreg-generation": str(served.generation),
        "modelreg-release": served.release,
        "modelreg-precision": str(served.precision),
        "modelreg-digest": served.digest,
    }


def _require_datatype(dtype: str, where: str) -> str:
    datatype = datatype_of(dtype)
    if datatype is None or datatype not in DTYPES:
        raise InvalidRequestError(f"{where} is {datatype or dtype}, which this server does not send")
    return datatype
