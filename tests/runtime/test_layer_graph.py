"""Graphs that are looked into and cut: what the child process does, without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort  # noqa: TID253 - the graphs are run here
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from modelreg.runtime.layer_graph import CUT, LayerGraph, saturated
from modelreg_testing.onnx_models import branches, make_model, save, value, weight

X = np.array([[1.0, -2.0, 3.0]], np.float32)


def run(path: Path, names: list[str], **inputs: NDArray[Any]) -> list[NDArray[Any]]:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found: list[NDArray[Any]] = session.run(names, {name.replace("__", "::"): each for name, each in inputs.items()})
    return found


def chain(path: Path) -> LayerGraph:
    """Double, quantise to steps of 0.5 from 0 to 127.5, add one."""
    model = make_model(
        [
            helper.make_node("Mul", ["x", "two"], ["a"], name="double"),
            helper.make_node("QuantizeLinear", ["a", "scale", "zero"], ["a_q"], name="quantise"),
            helper.make_node("DequantizeLinear", ["a_q", "scale", "zero"], ["a_d"], name="dequantise"),
            helper.make_node("Add", ["a_d", "one"], ["y"], name="add"),
        ],
        inputs=[value("x", ["batch", 3])],
        outputs=[value("y", ["batch", 3])],
        initializers=[
            weight("two", np.array(2.0, np.float32)),
            weight("one", np.array(1.0, np.float32)),
            weight("scale", np.array(0.5, np.float32)),
            weight("zero", np.array(0, np.uint8)),
        ],
    )
    return LayerGraph(save(model, path))


def test_what_depends_on_inputs_is_listed_in_order_with_what_it_reads(tmp_path: Path) -> None:
    made = chain(tmp_path / "m.onnx").tensors()
    assert [(each.name, each.op, each.inputs) for each in made] == [
        ("a", "Mul", ("x",)),
        ("a_d", "DequantizeLinear", ("a_q",)),
        ("y", "Add", ("a_d",)),
    ]


def test_a_quantised_tensor_is_seen_as_its_readers_get_it(tmp_path: Path) -> None:
    graph = chain(tmp_path / "m.onnx")
    seen = graph.see(["a", "y", "gone"])
    assert sorted(seen) == ["a", "y"]
    assert (seen["a"].carrier, seen["a"].made, seen["a"].low, seen["a"].high) == ("a_d", "a", 0.0, 127.5)
    assert seen["y"].carrier == seen["y"].made == "y"
    carried, made = run(graph.tap(["a_d", "a"]), ["a_d", "a"], x=X)
    np.testing.assert_array_equal(made, 2 * X)
    np.testing.assert_array_equal(carried, [[2.0, 0.0, 6.0]])
    ends: dict[str, float | None] = {"low": 0.0, "high": 127.5}
    assert saturated(np.array([-4.0, -0.1, 2.0, 200.0], np.float32), ends) == (1, 1)
    assert saturated(X, {"low": None, "high": None}) == (0, 0)


def test_a_cut_layer_quantises_what_it_is_given_and_nothing_before_it_runs(tmp_path: Path) -> None:
    graph = chain(tmp_path / "m.onnx")
    graph.see(["a", "y"])
    path, given = graph.cut(["y"], at=["a", "y"])
    assert given == ["a"]
    cut = onnx.load(path)
    assert [each.name for each in cut.graph.input] == [CUT + "a"]
    assert "double" not in [node.name for node in cut.graph.node]
    (found,) = ort.InferenceSession(str(path)).run(["y"], {CUT + "a": np.array([[0.7, -3.0, 500.0]], np.float32)})
    np.testing.assert_allclose(found, [[1.5, 1.0, 128.5]])


def test_half_values_are_given_unrounded_since_their_maker_answers_for_that(tmp_path: Path) -> None:
    model = make_model(
        [
            helper.make_node("Cast", ["x"], ["h"], name="narrow", to=TensorProto.FLOAT16),
            helper.make_node("Mul", ["h", "big"], ["a"], name="grow"),
            helper.make_node("Cast", ["a"], ["a_wide"], name="widen", to=TensorProto.FLOAT),
            helper.make_node("Mul", ["a_wide", "small"], ["y"], name="shrink"),
        ],
        inputs=[value("x", [1, 3])],
        outputs=[value("y", [1, 3])],
        initializers=[weight("big", np.array(6e4, np.float16)), weight("small", np.array(1e-5, np.float32))],
    )
    graph = LayerGraph(save(model, tmp_path / "m.onnx"))
    graph.see(["a", "y"])
    path, given = graph.cut(["a", "y"], at=["a", "y"])
    assert given == ["a"]
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    a, y = session.run(["a", "y"], {"x": X, CUT + "a": X * 1e6})
    assert np.isinf(a).any()  # its own overflow
    np.testing.assert_allclose(y, X * 10, rtol=1e-6)  # and not that of who reads it


def test_bodies_keep_what_they_take_from_around_them(tmp_path: Path) -> None:
    graph = LayerGraph(save(branches(), tmp_path / "m.onnx"))
    assert [each.name for each in graph.tensors()] == ["y"]
    (found,) = run(graph.tap(["y"]), ["y"], flag=np.array(False))
    np.testing.assert_array_equal(found, np.ones(8, np.float32))


@pytest.mark.parametrize("names", [["a"], ["y"]])
def test_only_the_part_that_makes_the_values_is_run(tmp_path: Path, names: list[str]) -> None:
    path = chain(tmp_path / "m.onnx").tap(names)
    ops = [node.op_type for node in onnx.load(path).graph.node]
    assert ("Add" in ops) is (names == ["y"])
