from __future__ import annotations

import pytest

from modelreg.registry.contents import Signature, TensorSpec
from modelreg.registry.words import Backend
from modelreg.runtime.triton.tensors import PlanTypes, TritonRefusalError, describe_tensors, is_batched

ORT = PlanTypes(backend=Backend.ONNXRUNTIME, version="1.32.0")
TRT10 = PlanTypes(backend=Backend.TENSORRT, version="10.3.0.26")
TRT8 = PlanTypes(backend=Backend.TENSORRT, version="8.6.1.6")


def spec(name: str = "x", dtype: str = "float32", shape: tuple[int | str | None, ...] | None = ("N", 3)) -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=shape)


def signature(*shapes: tuple[int | str | None, ...] | None) -> Signature:
    *inputs, output = (spec(f"t{index}", shape=shape) for index, shape in enumerate(shapes))
    return Signature(inputs=tuple(inputs), outputs=(output,))


@pytest.mark.parametrize(
    ("shapes", "batched"),
    [
        ((("N", 3), ("N", 10)), True),
        ((("N", 3), (None, 10)), True),
        (((None, 3), (None,)), True),
        ((("N", 3), ("M", 4), ("N", 10)), False),
        (((1, 3), (1, 10)), False),
        ((("N", 3), (1, 10)), False),
        ((("N", 3), ()), False),
        ((("N", 3), None), False),
    ],
)
def test_a_batch_is_one_free_first_axis_of_everything(
    shapes: tuple[tuple[int | str | None, ...] | None, ...], batched: bool
) -> None:
    assert is_batched(signature(*shapes)) is batched


def test_a_model_without_inputs_has_no_batch() -> None:
    assert not is_batched(Signature(inputs=(), outputs=(spec(),)))


@pytest.mark.parametrize(
    ("dtype", "types", "expected"),
    [
        ("float32", ORT, "TYPE_FP32"),
        ("string", ORT, "TYPE_STRING"),
        ("float64", ORT, "TYPE_FP64"),
        ("int64", TRT10, "TYPE_INT64"),
        ("int64", TRT8, "TYPE_INT32"),
        ("bfloat16", TRT10, "TYPE_BF16"),
        ("bool", TRT8, "TYPE_BOOL"),
    ],
)
def test_types_have_the_names_that_the_backend_knows(dtype: str, types: PlanTypes, expected: str) -> None:
    (found,) = describe_tensors([spec(dtype=dtype)], types=types, batched=True)
    assert found.data_type == expected


def test_an_engine_that_halves_its_inputs_takes_fp16_and_leaves_integers_alone() -> None:
    types = PlanTypes(backend=Backend.TENSORRT, version="10.3.0.26", halves_io=True)
    found = describe_tensors([spec("a"), spec("b", "int32")], types=types, batched=True)
    assert [each.data_type for each in found] == ["TYPE_FP16", "TYPE_INT32"]


@pytest.mark.parametrize(
    ("dtype", "types", "says"),
    [
        ("bfloat16", ORT, "bfloat16, which Triton's ONNX Runtime backend"),
        ("bfloat16", TRT8, "TensorRT 8.6"),
        ("float64", TRT10, "float64, which Triton's TensorRT backend"),
        ("string", TRT10, "string"),
        ("float8e4m3fn", ORT, "float8e4m3fn"),
        ("unknown", ORT, "unknown"),
    ],
)
def test_types_that_a_backend_does_not_take_are_refused(dtype: str, types: PlanTypes, says: str) -> None:
    with pytest.raises(TritonRefusalError, match=says):
        describe_tensors([spec(dtype=dtype)], types=types, batched=True)


@pytest.mark.parametrize(
    ("given", "batched", "says"),
    [
        (TensorSpec(name="s", dtype="float32", shape=("N",), kind="sequence"), True, "is a sequence"),
        (spec(shape=None), False, "no declared rank"),
        (spec(shape=(2, 0)), False, "length 0"),
        (spec(shape=()), False, "a scalar"),
        (spec(name=""), True, "a name of its own"),
    ],
)
def test_shapes_and_names_that_triton_does_not_take_are_refused(given: TensorSpec, batched: bool, says: str) -> None:
    with pytest.raises(TritonRefusalError, match=says):
        describe_tensors([given], types=ORT, batched=batched)


def test_two_inputs_of_one_name_are_refused() -> None:
    with pytest.raises(TritonRefusalError, match="a name of its own"):
        describe_tensors([spec("x"), spec("x")], types=ORT, batched=True)


def test_one_number_for_each_row_is_a_dimension_of_one_that_is_taken_away_again() -> None:
    (found,) = describe_tensors([spec(shape=("N",))], types=ORT, batched=True)
    assert (found.dims, found.reshape) == ((1,), ())


def test_without_a_batch_every_dimension_is_written_and_free_ones_are_free() -> None:
    (found,) = describe_tensors([spec(shape=(1, "H", None))], types=ORT, batched=False)
    assert (found.dims, found.reshape) == ((1, -1, -1), None)
