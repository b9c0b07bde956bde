"""Tests of onnx.checker on models without their weights."""

from __future__ import annotations

import io

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from modelreg.registry.errors import SourceError
from modelreg.registry.sources.checking import check_model, without_hollow_tensors
from modelreg.registry.sources.wire import strip_model
from modelreg_testing import onnx_faults, onnx_models


def stripped(model: onnx.ModelProto) -> onnx.ModelProto:
    data = model.SerializeToString()
    found = strip_model(io.BytesIO(data), size_bytes=len(data), name="m")
    assert len(found.data) < len(data)
    result: onnx.ModelProto = onnx.ModelProto.FromString(found.data)
    return result


def constant_attribute(size: int, domain: str = "com.example") -> onnx.ModelProto:
    table = onnx_models.weight("table", np.zeros(size, dtype=np.float32))
    node = helper.make_node("Lookup", ["x"], ["y"], domain=domain, table=table, tables=[table])
    return onnx_models.make_model(
        [node],
        inputs=[onnx_models.value("x", [1])],
        outputs=[onnx_models.value("y", [1])],
        opsets=[("", 17), (domain, 1)],
    )


def sparse(size: int) -> onnx.SparseTensorProto:
    values = onnx_models.weight("w", np.ones(size, dtype=np.float32))
    return helper.make_sparse_tensor(values, onnx_models.weight("", np.arange(size)), [size, 2])


def sparse_weight(size: int) -> onnx.ModelProto:
    model = onnx_models.sparse_initializer()
    model.graph.sparse_initializer[0].CopyFrom(sparse(size))
    model.graph.input[0].CopyFrom(onnx_models.value("x", [size, 2]))
    model.graph.output[0].CopyFrom(onnx_models.value("y", [size, 2]))
    return model


def sparse_constant(size: int) -> onnx.ModelProto:
    node = helper.make_node("Constant", [], ["y"], sparse_value=sparse(size))
    return onnx_models.make_model([node], inputs=[], outputs=[onnx_models.value("y", [size, 2])])


@pytest.mark.parametrize(
    "model",
    [
        onnx_models.mlp(features=64, hidden=64),
        onnx_models.initializers_as_inputs(),
        onnx_models.constant_only(2000),
        onnx_models.branches(2000),
        onnx_models.local_function(2000),
        sparse_weight(2000),
        sparse_constant(2000),
        constant_attribute(2000),
    ],
)
def test_a_valid_model_is_valid_without_its_weights_and_nothing_is_odd(model: onnx.ModelProto) -> None:
    assert check_model(stripped(model), name="m") == ()


def test_types_and_shapes_of_moved_weights_stay_exact() -> None:
    for model in (onnx_models.branches(2000), onnx_models.constant_only(2000), sparse_weight(2000)):
        wrong = stripped(model)
        wrong.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 1999
        (warning,) = check_model(wrong, name="m")
        assert "shape inference disagrees" in warning
        assert "1999" in warning


def test_weights_of_a_branch_are_read_from_outside_it() -> None:
    filled, is_exact = without_hollow_tensors(stripped(onnx_models.branches(2000)))
    assert is_exact
    assert [value.name for value in filled.graph.input] == ["flag", "modelreg.hoisted.1", "modelreg.hoisted.2"]
    branches = [attribute.g for attribute in filled.graph.node[0].attribute]
    assert {branch.node[0].op_type for branch in branches} == {"Identity"}


def test_tensors_that_must_stay_in_attributes_are_made_empty_and_said_to_be_inexact() -> None:
    filled, is_exact = without_hollow_tensors(stripped(constant_attribute(2000)))
    assert not is_exact
    table, tables = filled.graph.node[0].attribute
    assert list(table.t.dims) == list(tables.tensors[0].dims) == [0]


def test_sparse_lists_in_attributes_are_made_empty_too() -> None:
    model = constant_attribute(2000)
    attribute = model.graph.node[0].attribute.add(name="more", type=onnx.AttributeProto.SPARSE_TENSORS)
    attribute.sparse_tensors.append(sparse(2000))
    filled, _ = without_hollow_tensors(stripped(model))
    assert list(filled.graph.node[0].attribute[2].sparse_tensors[0].indices.dims) == [0]


def test_the_model_itself_is_left_alone() -> None:
    model = stripped(onnx_models.branches(2000))
    before = model.SerializeToString()
    check_model(model, name="m")
    assert model.SerializeToString() == before


def test_external_weights_need_not_be_there() -> None:
    model = onnx_models.mlp()
    for tensor in model.graph.initializer:
        onnx_models.refer_to_external_data(tensor, location="nowhere.bin")
    assert check_model(model, name="m") == ()


@pytest.mark.parametrize(
    ("model", "fact"),
    [
        (onnx_faults.unknown_operator(), "No Op registered for NoSuchOperator"),
        (onnx_faults.dangling_input(), "ghost"),
        (onnx.ModelProto(ir_version=8, opset_import=[helper.make_opsetid("", 17)]), "graph"),
    ],
)
def test_what_the_checker_refuses_is_refused_on_one_line(model: onnx.ModelProto, fact: str) -> None:
    with pytest.raises(SourceError, match=f"m is not a valid ONNX model: .*{fact}") as caught:
        check_model(model, name="m")
    assert "\n" not in str(caught.value)


def test_a_sparse_weight_with_indices_out_of_range_is_refused() -> None:
    model = onnx_models.sparse_initializer()
    model.graph.sparse_initializer[0].indices.raw_data = np.array([1, 5, 99], dtype=np.int64).tobytes()
    with pytest.raises(SourceError, match="not a valid ONNX model"):
        check_model(model, name="m")


def test_a_wrong_declared_shape_is_a_warning_since_runtimes_run_it() -> None:
    (warning,) = check_model(onnx_faults.wrong_declared_shape(), name="m")
    assert "(10) vs (11)" in warning


def one_node(op: str, *inputs: str, name: str = "node", domain: str = "") -> onnx.ModelProto:
    """Return a model of one node behind `x` of 4 columns, with weights of 4 and of 5 rows, and of another type."""
    return onnx_models.make_model(
        [helper.make_node(op, ["x", *inputs], ["y"], name=name, domain=domain)],
        inputs=[onnx_models.value("x", ["N", 4])],
        outputs=[onnx_models.value("y", ["N", 3])],
        initializers=[
            onnx_models.weight("w4", np.zeros((4, 3), np.float32)),
            onnx_models.weight("w5", np.zeros((5, 3), np.float32)),
            onnx_models.weight("double", np.zeros((4, 3), np.float64)),
        ],
        opsets=[("", 17), ("com.example", 1)],
    )


@pytest.mark.parametrize(
    ("model", "fact"),
    [
        (
            one_node("MatMul", "w5", name="fc1"),
            "node 'fc1' (MatMul) cannot take x float32[N, 4] with w5 float32[5, 3]: Incompatible dimensions for matrix"
            " multiplication",
        ),
        (one_node("Gemm", "w5", name=""), "the Gemm that makes 'y' cannot take x float32[N, 4] with w5 float32[5, 3]"),
        (
            one_node("MatMul", "double"),
            "node 'node' (MatMul) cannot take x float32[N, 4] with double float64[4, 3]: B has inconsistent type",
        ),
    ],
)
def test_inputs_that_cannot_go_together_run_nowhere_and_are_refused(model: onnx.ModelProto, fact: str) -> None:
    with pytest.raises(SourceError) as caught:
        check_model(model, name="m")
    assert str(caught.value).startswith(f"m runs nowhere: {fact}")
    assert "No backend builds it" in caught.value.hint()


def test_beside_an_operator_that_onnx_does_not_know_nothing_is_proved() -> None:
    model = one_node("MatMul", "w4")
    assert check_model(model, name="m") == ()
    model.graph.node.insert(0, helper.make_node("Odd", ["x"], ["odd"], domain="com.example"))
    model.graph.node[1].input[0] = "odd"
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 7
    assert check_model(model, name="m") == ()
    model.graph.value_info.append(onnx_models.value("odd", ["N", 5]))
    assert check_model(model, name="m") == ()


def test_a_long_complaint_is_cut() -> None:
    node = helper.make_node("N" * 1000, ["x"], ["y"])
    model = onnx_models.make_model([node], inputs=[onnx_models.value("x", [1])], outputs=[])
    with pytest.raises(SourceError) as caught:
        check_model(model, name="m")
    assert len(str(caught.value)) < 400


def doubling_functions(count: int) -> onnx.ModelProto:
    """Functions that each call the next one twice: 2^count nodes when written out."""
    model = onnx_models.make_model(
        [helper.make_node("F0", ["x"], ["y"], domain="local")],
        inputs=[onnx_models.value("x", [1])],
        outputs=[onnx_models.value("y", [1])],
        opsets=[("", 17), ("local", 1)],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    for level in range(count):
        following = f"F{level + 1}"
        nodes = [
            helper.make_node(following, ["a"], ["b"], domain="local"),
            helper.make_node(following, ["b"], ["c"], domain="local"),
        ]
        model.functions.append(helper.make_function("local", f"F{level}", ["a"], ["c"], nodes, opsets))
    last = [helper.make_node("Relu", ["a"], ["c"])]
    model.functions.append(helper.make_function("local", f"F{count}", ["a"], ["c"], last, opsets))
    return model


def test_functions_that_would_double_without_end_are_not_written_out() -> None:
    assert check_model(doubling_functions(60), name="m") == ()


def test_functions_of_ordinary_size_are_written_out() -> None:
    model = doubling_functions(3)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    assert "disagrees" in check_model(model, name="m")[0]


def test_functions_that_call_each_other_in_a_circle_do_not_hang() -> None:
    model = doubling_functions(2)
    model.functions[2].node[0].op_type = "F0"
    model.functions[2].node[0].domain = "local"
    try:
        check_model(model, name="m")
    except SourceError as error:
        assert "not a valid ONNX model" in str(error)  # noqa: PT017 - either answer is fine, hanging is not
