"""Requests and responses as values: round trips over all types and shapes, and all that is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from numpy.typing import NDArray

from modelreg.registry.contents import Signature, TensorSpec
from modelreg.registry.words import Backend, Precision
from modelreg.runtime.serve.datatypes import BINARY_ONLY, DTYPES, datatype_of
from modelreg.runtime.serve.decoding import InferRequest, decode_request
from modelreg.runtime.serve.encoding import encode_answer
from modelreg.runtime.serve.problems import InvalidRequestError
from modelreg.runtime.serving import Answer, ServedEngine

Array = NDArray[Any]
SERVED = ServedEngine(
    model="m",
    channel="production",
    version=3,
    generation=7,
    release="r" * 64,
    target="cpu",
    backend=Backend.ONNXRUNTIME,
    precision=Precision.INT8,
    digest="d" * 64,
)
XY = Signature(
    inputs=(TensorSpec(name="x", dtype="float32", shape=("N", 3)),),
    outputs=(TensorSpec(name="y", dtype="float32", shape=("N", 3)),),
)


def echoing(dtype: str, shape: tuple[int, ...]) -> Signature:
    """Return the signature of a model that gives back what it takes."""
    return Signature(
        inputs=(TensorSpec(name="x", dtype=dtype, shape=shape),),
        outputs=(TensorSpec(name="x", dtype=dtype, shape=shape),),
    )


def send(array: Array, datatype: str, *, binary: bool, **more: Any) -> tuple[bytes, int | None]:
    """Return a body that has an array as `x`, written without the code under test."""
    tensor: dict[str, Any] = {"name": "x", "datatype": datatype, "shape": list(array.shape)}
    raw = array.astype(array.dtype.newbyteorder("<")).tobytes()
    if binary:
        tensor["parameters"] = {"binary_data_size": len(raw)}
    else:
        tensor["data"] = array.tolist() if array.ndim else [array.item()]
    header = json.dumps({"inputs": [tensor], **more}).encode()
    return (header + raw, len(header)) if binary else (header, None)


def receive(body: bytes, header_length: int | None, dtype: np.dtype[Any]) -> Array:
    """Return `x` of a response, read without the code under test."""
    (output,) = json.loads(body[:header_length])["outputs"]
    if "data" in output:
        listed: Array = np.array(output["data"], dtype).reshape(output["shape"])
        return listed
    assert header_length is not None
    raw = body[header_length:]
    assert len(raw) == output["parameters"]["binary_data_size"]
    found: Array = np.frombuffer(raw, dtype).reshape(output["shape"])
    return found


@st.composite
def tensors(draw: st.DrawFn) -> tuple[str, Array]:
    datatype = draw(st.sampled_from(sorted(DTYPES)))
    dtype = DTYPES[datatype]
    shape = draw(arrays_of.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    elements = arrays_of.from_dtype(dtype, allow_nan=False, allow_infinity=False)
    return datatype, draw(arrays_of.arrays(dtype, shape, elements=elements))


@settings(deadline=None)
@example(("UINT64", np.array([1 << 63, 0], np.uint64)), False, False, 0)
@example(("UINT64", np.array([], np.uint64)), False, False, 0)
@given(tensors(), st.booleans(), st.booleans(), st.integers(0, 40))
def test_what_is_sent_comes_back(tensor: tuple[str, Array], binary_in: bool, binary_out: bool, start: int) -> None:
    datatype, array = tensor
    if datatype in BINARY_ONLY:
        binary_in = binary_out = True
    signature = echoing(str(array.dtype.newbyteorder("=")), array.shape)
    body, length = send(array, datatype, binary=binary_in, id="7", parameters={"binary_data_output": binary_out})
    request = decode_request(
        bytes(start) + body if length else body, signature, header_length=length, start=start if length else 0
    )
    np.testing.assert_array_equal(request.inputs["x"], array)
    assert request.inputs["x"].shape == array.shape
    assert request.inputs["x"].flags.aligned
    encoded = encode_answer(Answer(request.inputs, SERVED), request, signature, model="m")
    np.testing.assert_array_equal(receive(encoded.body, encoded.header_length, array.dtype), array)
    document = json.loads(encoded.body[: encoded.header_length])
    assert (document["id"], document["model_name"], document["model_version"]) == ("7", "m", "3")
    assert document["parameters"] == {
        "channel": "production",
        "generation": 7,
        "release": "r" * 64,
        "precision": "int8",
        "target": "cpu",
        "digest": "d" * 64,
    }


def test_binary_tensors_are_not_copied_where_they_are_aligned() -> None:
    array = np.arange(12, dtype=np.float32).reshape(4, 3)
    body, length = send(array, "FP32", binary=True)
    assert length is not None
    padding = -length % 16
    padded = bytes(padding) + body
    found = decode_request(padded, XY, header_length=length, start=padding).inputs["x"]
    assert np.shares_memory(found, np.frombuffer(padded, np.uint8))


def test_nested_and_flat_lists_are_the_same() -> None:
    def read(data: Any) -> Array:
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 3], "data": data}]}
        return decode_request(json.dumps(body).encode(), XY).inputs["x"]

    np.testing.assert_array_equal(read([1, 2, 3, 4, 5, 6.5]), read([[1, 2, 3], [4, 5, 6.5]]))


def test_outputs_keep_the_types_of_the_model_whatever_the_engine_computes_in() -> None:
    body, _ = send(np.ones((1, 3), np.float32), "FP32", binary=False)
    half = Answer({"y": np.ones((1, 3), np.float16)}, SERVED)
    (output,) = json.loads(encode_answer(half, decode_request(body, XY), XY, model="m").body)["outputs"]
    assert output == {"name": "y", "datatype": "FP32", "shape": [1, 3], "data": [1.0, 1.0, 1.0]}


def document(**changes: Any) -> dict[str, Any]:
    """Return a request that is well, with the changes in its one input."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]} | changes
    return {"inputs": [{key: value for key, value in tensor.items() if value is not ...}]}


def binary(size: object, **changes: Any) -> dict[str, Any]:
    return document(data=..., parameters={"binary_data_size": size}, **changes)


def asking(**output: Any) -> dict[str, Any]:
    return {**document(), "outputs": [output]}


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b"\xff\xfe{}", "no JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[]", "must be a JSON object"),
        (b'{"inputs": 3}', "inputs must be a list of objects"),
        ({}, "inputs must be a list of objects"),
        ({"inputs": [3]}, "inputs must be a list of objects"),
        ({"inputs": []}, "the input 'x' is missing"),
        ({"inputs": [{}]}, "each of inputs must have a name"),
        (document(name="z"), "there is no input 'z'; the model takes 'x'"),
        ({"inputs": document()["inputs"] * 2}, "given twice"),
        (document(datatype="FP64"), "has the datatype 'FP64', the model takes FP32"),
        (document(datatype=...), "has the datatype None"),
        (document(shape=[3, 1]), "has the shape [3, 1], the model takes [-1, 3]"),
        (document(shape=[3]), "has the shape [3]"),
        (document(shape=[-1, 3]), "whole numbers of at least 0"),
        (document(shape=[True, 3]), "whole numbers of at least 0"),
        (document(shape="3"), "whole numbers of at least 0"),
        (document(shape=[10**30, 3]), "too large"),
        (document(data=[1, 2]), "has the shape [2], not [1, 3]"),
        (document(data=[[1], [2], [3]]), "has the shape [3, 1], not [1, 3]"),
        (document(data=[[1, 2], [3]]), "no regular list"),
        (document(data=["1", "2", "3"]), "must be numbers"),
        (document(data=[1, None, 3]), "must be numbers"),
        (document(data=[True, False, True]), "must be numbers"),
        (document(data=3), "has no data"),
        (document(data=...), "has no data"),
        (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,3],"data":[NaN,1,2]}]}', "NaN is no number of JSON"),
        (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,3],"data":[-Infinity,1,2]}]}', "-Infinity is no number"),
        (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,3],"data":[1e999,1,2]}]}', "too large for its datatype"),
        (document(data=[1e39, 1, 2]), "too large for its datatype"),
        (document(parameters=3), "parameters of the input 'x' must be an object"),
        (document(parameters={"shared_memory_region": "r"}), "shared memory"),
        (binary(12), "is said to have 12 bytes, 0 are left"),
        (binary(-1), "is said to have -1 bytes"),
        (binary("12"), "is said to have '12' bytes"),
        (binary(True), "is said to have True bytes"),
        ({"inputs": [{**document()["inputs"][0], "parameters": {"binary_data_size": 0}}]}, "exclude each other"),
        ({**document(), "id": 7}, "id must be a string"),
        ({**document(), "parameters": []}, "parameters of the request must be an object"),
        ({**document(), "parameters": {"timeout": "soon"}}, "timeout must be a number of microseconds"),
        ({**document(), "parameters": {"timeout": -1}}, "timeout must be a number of microseconds"),
        ({**document(), "parameters": {"sequence_id": 3}}, "sequences are not supported"),
        ({**document(), "parameters": {"binary_data_output": 1}}, "binary_data_output must be true or false"),
        (asking(name="z"), "there is no output 'z'; the model gives 'y'"),
        (asking(name="y", parameters={"binary_data": "yes"}), "binary_data must be true or false"),
        (asking(name="y", parameters={"classification": 3}), "classes"),
        (asking(name="y", parameters={"shared_memory_region": "r"}), "shared memory"),
        ({**document(), "outputs": [{"name": "y"}, {"name": "y"}]}, "asked for twice"),
        ({**document(), "outputs": "y"}, "outputs must be a list of objects"),
    ],
    ids=lambda value: None if isinstance(value, str) else "",
)
def test_what_is_refused_and_what_is_said(sent: Any, said: str) -> None:
    body = sent if isinstance(sent, bytes) else json.dumps(sent).encode()
    with pytest.raises(InvalidRequestError) as caught:
        decode_request(body, XY)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("rest", "size", "said"),
    [
        (b"\0" * 11, 11, "has 11 bytes, FP32 of [1, 3] has 12"),
        (b"\0" * 13, 12, "1 bytes of the body belong to no input"),
        (b"\0" * 11, 12, "is said to have 12 bytes, 11 are left"),
    ],
)
def test_numbers_of_bytes_that_do_not_match(rest: bytes, size: int, said: str) -> None:
    header = json.dumps(binary(size)).encode()
    with pytest.raises(InvalidRequestError) as caught:
        decode_request(header + rest, XY, header_length=len(header))
    assert said in str(caught.value)


def test_a_header_longer_than_the_body_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="said to have 999 bytes"):
        decode_request(json.dumps(document()).encode(), XY, header_length=999)


@pytest.mark.parametrize(
    ("dtype", "data", "said"),
    [
        ("int8", [128], "beyond -128 to 127"),
        ("int8", [-129], "beyond -128 to 127"),
        ("uint8", [-1], "beyond 0 to 255"),
        ("uint64", [2**64], "must be whole numbers"),
        ("uint64", [2**63, -1], "must be whole numbers"),
        ("uint64", [2**63, 0.5], "must be whole numbers"),
        ("int64", [2**63], "beyond"),
        ("int32", [1.0], "must be whole numbers"),
        ("int32", [True], "must be whole numbers"),
        ("bool", [1], "must be true and false"),
        ("float16", [1.0], "FP16, which is sent as binary data alone"),
        ("bfloat16", [1.0], "BF16 (tensor), which this server does not take"),
        ("string", ["a"], "BYTES (tensor), which this server does not take"),
        ("float8_e4m3fn", [1.0], "float8_e4m3fn (tensor)"),
    ],
)
def test_numbers_that_a_type_does_not_have(dtype: str, data: list[Any], said: str) -> None:
    tensor = {"name": "x", "datatype": datatype_of(dtype), "shape": [len(data)], "data": data}
    with pytest.raises(InvalidRequestError) as caught:
        decode_request(json.dumps({"inputs": [tensor]}).encode(), echoing(dtype, (len(data),)))
    assert said in str(caught.value)


def test_a_binary_bool_is_0_or_1() -> None:
    header = json.dumps(binary(1, datatype="BOOL", shape=[1])).encode()
    with pytest.raises(InvalidRequestError, match="neither 0 nor 1"):
        decode_request(header + b"\2", echoing("bool", (1,)), header_length=len(header))


def ask(*outputs: dict[str, Any]) -> InferRequest:
    return decode_request(json.dumps({**document(), "outputs": list(outputs)}).encode(), XY)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_nan_goes_out_as_bytes_and_not_as_json(number: float) -> None:
    answer = Answer({"y": np.full((1, 3), number, np.float32)}, SERVED)
    with pytest.raises(InvalidRequestError, match="NaN or Inf, which JSON cannot say") as caught:
        encode_answer(answer, ask({"name": "y"}), XY, model="m")
    assert "binary_data" in caught.value.text
    encoded = encode_answer(answer, ask({"name": "y", "parameters": {"binary_data": True}}), XY, model="m")
    assert encoded.body[encoded.header_length :] == answer["y"].tobytes()


@pytest.mark.parametrize("dtype", ["string", "bfloat16"])
def test_an_output_without_a_type_here_is_refused(dtype: str) -> None:
    signature = Signature(inputs=XY.inputs, outputs=(TensorSpec(name="y", dtype=dtype, shape=(1,)),))
    with pytest.raises(InvalidRequestError, match="which this server does not send"):
        encode_answer(Answer({"y": np.zeros(1)}, SERVED), ask({"name": "y"}), signature, model="m")


def test_the_timeout_is_microseconds_and_rows_are_the_first_axis() -> None:
    sent = {**document(shape=[4, 3], data=[0] * 12), "parameters": {"timeout": 2_500_000, "custom": "left alone"}}
    request = decode_request(json.dumps(sent).encode(), XY)
    assert (request.timeout_s, request.rows) == (2.5, 4)
    assert decode_request(json.dumps(document()).encode(), XY).timeout_s is None
    endless = {**document(), "parameters": {"timeout": 10**400}}
    assert decode_request(json.dumps(endless).encode(), XY).timeout_s == pytest.approx((1 << 63) / 1e6)
