"""Tests of reading inputs and outputs."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from modelreg.registry.contents import Signature, TensorSpec
from modelreg.registry.sources.signature import dtype_name, read_signature, read_value, unbuildable_reasons
from modelreg_testing import onnx_faults, onnx_models


def test_names_dtypes_and_shapes_are_those_of_the_graph_with_symbols_kept() -> None:
    assert read_signature(onnx_models.conv_net().graph) == Signature(
        inputs=(TensorSpec(name="image", dtype="float32", shape=("batch", 1, 12, 12)),),
        outputs=(TensorSpec(name="logits", dtype="float32", shape=("batch", 10)),),
    )


@pytest.mark.parametrize(
    ("shape", "read"),
    [
        ((), ()),
        ((0, 3), (0, 3)),
        (("n", None, ""), ("n", None, None)),
        (None, None),
        ((-1, 2), (None, 2)),
        (("größe ✓",), ("größe ✓",)),
    ],
)
def test_odd_shapes_survive(shape: tuple[int | str | None, ...] | None, read: object) -> None:
    (spec,) = read_signature(onnx_models.identity(shape).graph).inputs
    assert spec.shape == read


def test_initialisers_listed_as_inputs_are_no_inputs() -> None:
    signature = read_signature(onnx_models.initializers_as_inputs().graph)
    assert [spec.name for spec in signature.inputs] == ["x"]


def test_a_sparse_initialiser_listed_as_an_input_is_none() -> None:
    model = onnx_models.sparse_initializer()
    model.graph.input.append(onnx_models.value("w", [4, 8]))
    assert [spec.name for spec in read_signature(model.graph).inputs] == ["x"]


def test_a_model_may_have_no_inputs() -> None:
    assert read_signature(onnx_models.constant_only().graph).inputs == ()


@pytest.mark.parametrize(
    ("model", "spec", "reason"),
    [
        (
            onnx_models.sequence_output(),
            TensorSpec(name="ys", dtype="float32", shape=("batch", 3), kind="sequence"),
            "output 'ys' is a sequence",
        ),
        (
            onnx_models.optional_input(),
            TensorSpec(name="x", dtype="float32", shape=(2,), kind="optional"),
            "input 'x' is optional",
        ),
        (
            onnx_models.map_input(),
            TensorSpec(name="x", dtype="float32", shape=None, kind="map"),
            "input 'x' is a map",
        ),
        (
            onnx_models.identity((2,), TensorProto.STRING),
            TensorSpec(name="x", dtype="string", shape=(2,)),
            "input 'x' holds strings",
        ),
        (
            onnx_faults.undefined_element_type(),
            TensorSpec(name="x", dtype="unknown", shape=(2,)),
            "input 'x' has no known element type",
        ),
    ],
)
def test_what_no_backend_can_build_is_read_and_has_a_reason(
    model: onnx.ModelProto, spec: TensorSpec, reason: str
) -> None:
    signature = read_signature(model.graph)
    assert spec in signature.inputs + signature.outputs
    assert reason in unbuildable_reasons(signature)


def test_sparse_and_opaque_values_are_read_too() -> None:
    sparse = onnx.ValueInfoProto(name="s")
    sparse.type.CopyFrom(helper.make_sparse_tensor_type_proto(TensorProto.DOUBLE, [4, "n"]))
    opaque = onnx.ValueInfoProto(name="o")
    opaque.type.opaque_type.name = "secret"
    specs = (read_value(sparse), read_value(opaque), read_value(onnx.ValueInfoProto(name="u")))
    assert specs == (
        TensorSpec(name="s", dtype="float64", shape=(4, "n"), kind="sparse"),
        TensorSpec(name="o", dtype="unknown", shape=None, kind="opaque"),
        TensorSpec(name="u", dtype="unknown", shape=None),
    )
    assert unbuildable_reasons(Signature(inputs=specs, outputs=())) == (
        "input 's' is a sparse tensor",
        "input 'o' is of an opaque type",
        "input 'u' has no known element type",
        "the graph has no output",
    )


def test_an_ordinary_model_has_nothing_against_it() -> None:
    assert unbuildable_reasons(read_signature(onnx_models.mlp().graph)) == ()


def test_dtypes_are_called_as_numpy_calls_them() -> None:
    names = {
        "FLOAT": "float32",
        "DOUBLE": "float64",
        "FLOAT16": "float16",
        "BFLOAT16": "bfloat16",
        "BOOL": "bool",
        "INT64": "int64",
        "UINT8": "uint8",
        "INT4": "int4",
        "STRING": "string",
        "FLOAT8E5M2": "float8_e5m2",
        "UNDEFINED": "unknown",
    }
    assert {name: dtype_name(TensorProto.DataType.Value(name)) for name in names} == names
    assert dtype_name(77) == "unknown"
