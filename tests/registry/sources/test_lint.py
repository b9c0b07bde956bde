"""Tests of our own checks of a stripped model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from modelreg.registry.errors import SourceError
from modelreg.registry.sources.lint import check_graph, check_tensors, count_nodes, find_warnings, read_opsets
from modelreg.registry.sources.tensors import TensorFacts
from modelreg_testing import onnx_faults, onnx_models


def warnings(model: onnx.ModelProto, size_bytes: int = 1) -> tuple[str, ...]:
    return find_warnings(model, size_bytes=size_bytes)


# -- versions ------------------------------------------------------------------------------------------------
def test_opsets_are_read_for_each_domain() -> None:
    assert read_opsets(onnx_models.map_input(), name="m") == {"": 17, "ai.onnx.ml": 3}


def test_the_long_spelling_of_the_default_domain_is_the_short_one() -> None:
    model = onnx_models.mlp()
    model.opset_import[0].domain = "ai.onnx"
    assert read_opsets(model, name="m") == {"": 17}


def test_a_model_older_than_opsets_has_opset_1() -> None:
    model = onnx_faults.no_opset()
    model.ir_version = 2
    assert read_opsets(model, name="m") == {"": 1}


@pytest.mark.parametrize(
    ("model", "fact"),
    [
        (onnx_faults.future_opset(99), r"uses opset 99 of ai\.onnx, but the newest that onnx .* knows is \d+"),
        (onnx_faults.future_ir_version(99), r"uses IR version 99, but the newest that onnx .* knows is \d+"),
        (onnx_faults.future_opset(0), r"uses opset 0 of ai\.onnx: opsets start at 1"),
        (onnx_faults.future_opset(-3), "uses opset -3"),
        (onnx_faults.future_ir_version(0), "is not an ONNX model: it has no IR version"),
        (onnx_faults.no_opset(), "does not say which opset it uses"),
        (onnx_faults.duplicate_opset_domain(), r"imports the opset of domain 'ai\.onnx' twice"),
    ],
)
def test_versions_that_are_missing_unknown_or_doubled_are_refused_with_the_numbers(
    model: onnx.ModelProto, fact: str
) -> None:
    with pytest.raises(SourceError, match=fact):
        read_opsets(model, name="m")


def test_a_future_opset_of_the_ml_domain_is_refused_and_of_a_custom_domain_is_not() -> None:
    model = onnx_models.map_input()
    model.opset_import[1].version = 99
    with pytest.raises(SourceError, match=r"opset 99 of ai\.onnx\.ml") as caught:
        read_opsets(model, name="m")
    assert "Upgrade onnx" in caught.value.hint()
    custom = onnx_models.custom_operator()
    custom.opset_import[1].version = 99
    assert read_opsets(custom, name="m")["com.example"] == 99


# -- tensors -------------------------------------------------------------------------------------------------
def facts(
    dims: tuple[int, ...] = (10,),
    data_type: int = TensorProto.FLOAT,
    external: tuple[tuple[str, str], ...] | None = None,
    numbers: int | None = None,
    **payloads: int,
) -> TensorFacts:
    return TensorFacts(
        name="w",
        data_type=data_type,
        dims=dims,
        role="initializer",
        payloads=payloads,
        external=external,
        numbers=numbers,
    )


@pytest.mark.parametrize(
    "tensor",
    [
        facts(raw_data=40),
        facts(float_data=40),
        facts((), raw_data=4),
        facts((0, 7)),
        facts(data_type=TensorProto.STRING, string_data=10),
        facts(data_type=TensorProto.INT4, raw_data=5),
        facts((11,), TensorProto.INT4, raw_data=6),
        facts((11,), TensorProto.INT4, int32_data=6),
        facts(data_type=TensorProto.BOOL, int32_data=10),
        facts(data_type=TensorProto.INT64, int64_data=100),
        facts(data_type=TensorProto.FLOAT16, int32_data=30),
        facts(data_type=TensorProto.COMPLEX64, float_data=80),
        facts(external=(("location", "w"),)),
    ],
)
def test_numbers_that_fit_the_shape_pass(tensor: TensorFacts) -> None:
    check_tensors([tensor], name="m")


@pytest.mark.parametrize(
    ("tensor", "fault"),
    [
        (facts(raw_data=39), r"as many numbers as its shape \[10\] needs: raw_data is 39 long"),
        (facts(raw_data=44), "raw_data is 44 long"),
        (facts(float_data=36), "float_data is 36 long"),
        (facts(), r"has the shape \[10\] but no numbers"),
        (facts((0, 7), raw_data=4), "and yet some numbers"),
        (facts(raw_data=40, float_data=40), "has its numbers twice, in float_data and raw_data"),
        (facts((-1, 4), raw_data=16), r"has the shape \[-1, 4\]"),
        (facts(data_type=77, raw_data=40), "has data type 77"),
        (facts(data_type=0, raw_data=40), "has data type 0"),
        (facts(data_type=TensorProto.STRING, raw_data=10), "has STRING numbers in raw_data"),
        (facts(data_type=TensorProto.STRING, string_data=9), "string_data is 9 long"),
        (facts(string_data=10), "has FLOAT numbers in string_data"),
        (facts(data_type=TensorProto.INT64, int64_data=9), "int64_data is 9 long"),
        (facts(data_type=TensorProto.INT64, int64_data=101), "int64_data is 101 long"),
        (facts(external=(("location", "w"),), raw_data=40), "both in the file and in external data"),
        (facts(data_type=TensorProto.INT64, int64_data=20, numbers=9), "int64_data is 20 long"),
        (facts(int64_data=40), "has FLOAT numbers in int64_data"),
        (facts((2**40, 2**40), raw_data=40), "raw_data is 40 long"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(tensor: TensorFacts, fault: str) -> None:
    with pytest.raises(SourceError, match=f"m is not a valid ONNX model: tensor 'w' .*{fault}"):
        check_tensors([tensor], name="m")


def test_several_faults_are_counted_behind_the_first() -> None:
    with pytest.raises(SourceError, match=r"\(and 2 more\)"):
        check_tensors([facts(), facts(), facts()], name="m")


# -- names ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("model", "fault"),
    [
        (onnx_faults.duplicate_output(), "output 'y' is listed twice"),
        (onnx_faults.duplicate_input(), "input 'x' is listed twice"),
        (onnx_faults.duplicate_initializer(), r"initialiser 'fc1\.bias' is there twice"),
        (onnx_faults.duplicate_value(), "value 'y' is produced by two nodes"),
        (onnx_models.identity(output_name="x"), "value 'x' is an input or initialiser and produced by a node"),
        (onnx_faults.negative_dimension(-7), "input 'x' has the dimension -7"),
    ],
)
def test_names_given_twice_are_refused(model: onnx.ModelProto, fault: str) -> None:
    with pytest.raises(SourceError, match=fault):
        check_graph(model.graph, name="m")


def test_a_sparse_twin_of_an_initialiser_is_refused() -> None:
    model = onnx_models.sparse_initializer()
    model.graph.initializer.append(onnx_models.weight("w", np.zeros((4, 8), dtype=np.float32)))
    with pytest.raises(SourceError, match="initialiser 'w' is there twice"):
        check_graph(model.graph, name="m")


@pytest.mark.parametrize(
    "model",
    [
        onnx_models.conv_net(),
        onnx_models.initializers_as_inputs(),
        onnx_faults.output_is_input(),
        onnx_faults.duplicate_node_names(),
    ],
)
def test_names_given_once_pass(model: onnx.ModelProto) -> None:
    check_graph(model.graph, name="m")


# -- warnings ------------------------------------------------------------------------------------------------
def test_an_ordinary_model_has_no_warning() -> None:
    assert warnings(onnx_models.conv_net()) == ()
    assert warnings(onnx_models.local_function()) == ()
    assert warnings(onnx_models.map_input()) == ()


def test_duplicate_node_names_are_a_warning_in_subgraphs_too() -> None:
    assert warnings(onnx_faults.duplicate_node_names()) == (
        "several nodes have the same name: 'same'; ONNX Runtime refuses that",
    )
    model = onnx_models.branches()
    branch = model.graph.node[0].attribute[0].g
    branch.node.append(branch.node[0])
    assert "'zeros'" in warnings(model)[0] or "'pass'" in warnings(model)[0]


def test_overridable_initialisers_are_a_warning_from_ir_4_on() -> None:
    (warning,) = warnings(onnx_models.initializers_as_inputs(ir_version=4))
    assert "'fc1.weight', 'fc1.bias', 'fc2.weight', 'fc2.bias'" in warning
    assert warnings(onnx_models.initializers_as_inputs(ir_version=3)) == ()


def test_long_lists_of_names_are_cut() -> None:
    model = onnx_models.mlp()
    for position in range(9):
        weight = onnx_models.weight(f"w{position}", np.zeros(1, dtype=np.float32))
        model.graph.initializer.append(weight)
        model.graph.input.append(onnx_models.value(f"w{position}", [1]))
    assert warnings(model)[0].endswith("'w0', 'w1', 'w2', 'w3', 'w4' and 4 more")


def test_a_literal_minus_one_is_a_warning() -> None:
    assert "input 'x' has the literal dimension -1" in warnings(onnx_faults.negative_dimension())[0]


@pytest.mark.parametrize(
    ("number", "is_wide"), [(2**31, True), (-(2**31) - 1, True), (2**31 - 1, False), (2**63 - 1, False)]
)
def test_int64_values_beyond_int32_are_a_warning(number: int, is_wide: bool) -> None:
    assert bool(warnings(onnx_models.wide_int64_weight(number))) == is_wide


def test_wide_integers_in_their_own_field_are_a_warning_too() -> None:
    model = onnx_models.wide_int64_weight()
    model.graph.initializer[0].CopyFrom(helper.make_tensor("w", TensorProto.INT64, [2], [1, 2**40]))
    assert "int64 values" in warnings(model)[0]


def test_wide_integers_in_a_constant_are_a_warning_too() -> None:
    model = onnx_models.constant_only()
    wide = onnx_models.weight("", np.array([2**40]))
    model.graph.node.append(helper.make_node("Constant", [], ["z"], value=wide))
    assert "int64 values" in warnings(model)[0]


def test_operators_of_other_domains_are_a_warning() -> None:
    assert warnings(onnx_models.custom_operator()) == (
        "operators of the domain 'com.example' need a runtime or plugin that has them",
    )


def test_training_information_and_files_over_two_gigabytes_are_warnings() -> None:
    model = onnx_models.mlp()
    model.training_info.add()
    training, size = warnings(model, size_bytes=2**31)
    assert "training information" in training
    assert "2147483648 bytes" in size


# -- counts --------------------------------------------------------------------------------------------------
def test_nodes_are_counted_with_subgraphs_and_functions() -> None:
    assert count_nodes(onnx_models.conv_net())["Conv"] == 2
    assert count_nodes(onnx_models.branches()) == {"Constant": 1, "Identity": 1, "If": 1}
    assert count_nodes(onnx_models.local_function()) == {"Add": 1, "Constant": 1, "local.Shift": 1}


def test_a_graph_inside_a_function_and_lists_of_graphs_are_counted() -> None:
    model = onnx_models.local_function()
    inner = onnx_models.branches().graph.node[0]
    inner.attribute.append(helper.make_attribute("more", [helper.make_graph([inner], "g", [], [])]))
    model.functions[0].node.append(inner)
    assert count_nodes(model)["If"] == 2
