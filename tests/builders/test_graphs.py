from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from modelreg.builders.graphs import (
    VariantError,
    first_line,
    initialiser_bytes,
    load_normalised,
    name_nodes,
    raise_opset,
)
from modelreg.builders.subgraphs import graphs_of
from modelreg_testing.onnx_models import conv_net, initializers_as_inputs, make_model, mlp, save, value, weight


def test_nodes_without_a_name_get_one_that_no_other_has(tmp_path: Path) -> None:
    model = mlp()
    model.graph.node[0].name = "Relu_1"
    model.graph.node[1].name = ""
    loaded = load_normalised(save(model, tmp_path / "m.onnx"))
    names = [node.name for node in loaded.graph.node]
    assert len(set(names)) == 3
    assert names[0] == "Relu_1"
    assert all(names)


def test_nodes_inside_a_branch_get_names_too() -> None:
    branch = helper.make_graph([helper.make_node("Neg", ["x"], ["b"])], "branch", [], [value("b", ["N"])])
    node = helper.make_node("If", ["flag"], ["y"], then_branch=branch, else_branch=branch)
    model = make_model(
        [node], inputs=[value("flag", [], TensorProto.BOOL), value("x", ["N"])], outputs=[value("y", ["N"])]
    )
    name_nodes(model.graph)
    names = [node.name for graph in graphs_of(model.graph) for node in graph.node]
    assert len(names) == 3
    assert len(set(names)) == 3


def test_initialisers_are_no_inputs(tmp_path: Path) -> None:
    loaded = load_normalised(save(initializers_as_inputs(), tmp_path / "m.onnx"))
    assert [each.name for each in loaded.graph.input] == ["x"]
    assert loaded.ir_version >= 4


def test_functions_are_inlined(tmp_path: Path) -> None:
    opset = [helper.make_opsetid("", 17)]
    function = helper.make_function("mine", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], opset)
    node = helper.make_node("Twice", ["x"], ["y"], domain="mine")
    model = make_model([node], inputs=[value("x", ["N"])], outputs=[value("y", ["N"])], opsets=[("", 17), ("mine", 1)])
    model.functions.append(function)
    assert [node.op_type for node in load_normalised(save(model, tmp_path / "m.onnx")).graph.node] == ["Add"]


def test_string_constants_are_left_alone(tmp_path: Path) -> None:
    model = make_model(
        [helper.make_node("Constant", [], ["y"], value_string=b"a")],
        inputs=[],
        outputs=[value("y", [], TensorProto.STRING)],
    )
    assert [node.op_type for node in load_normalised(save(model, tmp_path / "m.onnx")).graph.node] == ["Constant"]


@pytest.mark.parametrize("make", [mlp, initializers_as_inputs])
def test_old_opsets_are_raised_and_foreign_imports_dropped(tmp_path: Path, make: object) -> None:
    model = make()  # type: ignore[operator]
    model.opset_import[0].version = 9
    model.opset_import.append(helper.make_opsetid("unused.domain", 1))
    raised = raise_opset(load_normalised(save(model, tmp_path / "m.onnx")), at_least=13, to=17)
    assert [(each.domain, each.version) for each in raised.opset_import] == [("", 17)]
    onnx.checker.check_model(raised)


def test_a_new_opset_stays() -> None:
    model = conv_net()
    assert raise_opset(model, at_least=13, to=17) is model
    assert model.opset_import[0].version == 17


def test_an_opset_that_cannot_be_raised_says_what_to_do() -> None:
    upsample = helper.make_node("Upsample", ["x", "s"], ["y"], mode="linear")
    model = make_model(
        [upsample],
        inputs=[value("x", [1, 1, 2, 2]), value("s", [4])],
        outputs=[value("y", [1, 1, 4, 4])],
        opsets=[("", 8)],
    )
    with pytest.raises(VariantError, match="the opset cannot be raised from 8 to 17") as caught:
        raise_opset(model, at_least=13, to=17)
    assert "opset 13" in caught.value.details["hint"]


def test_initialisers_are_counted_by_dtype() -> None:
    model = mlp()
    model.graph.initializer.append(weight("ids", np.arange(3)))
    words = TensorProto(name="words", data_type=TensorProto.STRING, dims=[1], string_data=[b"a"])
    model.graph.initializer.append(words)
    assert initialiser_bytes(model.graph) == {"float32": 4 * (16 * 32 + 32 + 320 + 10), "int64": 24, "object": 0}


def test_an_error_without_words_has_its_class() -> None:
    assert first_line(ValueError("\n  \n")) == "ValueError"
    assert first_line(ValueError("\n  a\nb")) == "a"


def test_a_raise_that_loses_the_graph_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp()
    model.opset_import[0].version = 9
    monkeypatch.setattr(onnx.version_converter, "convert_version", lambda *_: onnx.ModelProto())
    with pytest.raises(VariantError, match="lost the graph"):
        raise_opset(model, at_least=13, to=17)


@pytest.mark.parametrize(
    ("elem_type", "name", "size"),
    [(TensorProto.BFLOAT16, "bfloat16", 2), (TensorProto.FLOAT8E4M3FN, "float8_e4m3fn", 1)],
)
def test_types_that_numpy_lacks_have_names_and_sizes(elem_type: int, name: str, size: int) -> None:
    tensor = TensorProto(name="w", data_type=elem_type, dims=[3, 5], raw_data=bytes(15 * size))
    graph = make_model([], inputs=[], outputs=[], initializers=[tensor]).graph
    assert initialiser_bytes(graph) == {name: 15 * size}


def test_initialisers_state_their_type_alone(tmp_path: Path) -> None:
    model = mlp()
    model.graph.value_info.extend([value("fc1.weight", [32, 16]), value("relu1.out", ["N", 32])])
    loaded = load_normalised(save(model, tmp_path / "m.onnx"))
    assert [each.name for each in loaded.graph.value_info] == ["relu1.out"]
