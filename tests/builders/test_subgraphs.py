from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from modelreg.builders.subgraphs import (
    captured_names,
    graphs_of,
    inner_node_names,
    made_names,
    separate_names,
    settle_nodes,
    sort_nodes,
)
from modelreg_testing.control_flow import branching_net, looping_net
from modelreg_testing.onnx_models import make_model, value


def node_called(graph: onnx.GraphProto, name: str) -> onnx.NodeProto:
    found: onnx.NodeProto = next(node for each in graphs_of(graph) for node in each.node if node.name == name)
    return found


def test_what_bodies_take_from_around_them_is_counted_at_every_depth() -> None:
    graph = branching_net().graph
    assert captured_names(node_called(graph, "choice")) == {"hidden", "flag", "x"}
    assert captured_names(node_called(graph, "inner")) == {"hidden"}
    assert captured_names(node_called(looping_net().graph, "loop")) == {"w", "x"}
    assert captured_names(node_called(graph, "matmul")) == set()


@pytest.mark.parametrize("make", [branching_net, looping_net])
def test_sorting_puts_a_node_behind_what_its_bodies_use(make: object) -> None:
    model = make()  # type: ignore[operator]
    wanted = [[node.name for node in each.node] for each in graphs_of(model.graph)]
    for each in list(graphs_of(model.graph)):
        nodes = list(each.node)[::-1]
        del each.node[:]
        each.node.extend(nodes)
    sort_nodes(model.graph)
    onnx.checker.check_model(model)
    assert sorted(map(sorted, wanted)) == sorted(
        sorted(node.name for node in each.node) for each in graphs_of(model.graph)
    )


def test_sorting_leaves_a_sorted_graph_as_it_is() -> None:
    model = branching_net()
    before = model.SerializeToString()
    sort_nodes(model.graph)
    assert model.SerializeToString() == before


def test_a_cycle_is_an_error() -> None:
    nodes = [helper.make_node("Neg", ["b"], ["a"]), helper.make_node("Neg", ["a"], ["b"])]
    graph = make_model(nodes, inputs=[], outputs=[value("b", [1])]).graph
    with pytest.raises(ValueError, match="cycle"):
        sort_nodes(graph)


def test_no_name_stands_for_two_tensors_once_they_are_separate() -> None:
    model = branching_net()
    separate_names(model.graph)
    onnx.checker.check_model(model, full_check=True)
    names = [name for each in graphs_of(model.graph) for name in made_names(each)]
    assert len(names) == len(set(names))
    assert captured_names(node_called(model.graph, "choice")) == {"hidden", "flag", "x"}


def test_nodes_go_to_the_body_whose_tensors_they_use_with_those_behind_them() -> None:
    model = looping_net()
    first = helper.make_node("Cast", ["shares"], ["shares_half"], name="first", to=TensorProto.FLOAT16)
    second = helper.make_node("Cast", ["shares_half"], ["shares_again"], name="second", to=TensorProto.FLOAT)
    model.graph.node.extend([second, first])
    model.graph.value_info.append(value("shares_again", ["N", 4]))
    settle_nodes(model.graph)
    assert {"first", "second"} <= inner_node_names(node_called(model.graph, "loop"))
    assert [node.name for node in model.graph.node] == ["relu", "loop"]
    assert list(model.graph.value_info) == []
