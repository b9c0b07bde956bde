from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime  # noqa: TID253 - a dependency, and what these tests look at
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from modelreg.runtime.rounding import write_rounded
from modelreg_testing.onnx_models import make_model, save, value, weight

Array = NDArray[Any]
HALF = TensorProto.FLOAT16


def half_net(factor: float) -> onnx.ModelProto:
    """FP16: dense, times `factor`, divided by it, dense; FP32 at the edges."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Cast", ["x"], ["xh"], name="in", to=HALF),
        helper.make_node("MatMul", ["xh", "w"], ["a"], name="fc1"),
        helper.make_node("Mul", ["a", "up"], ["b"], name="grow"),
        helper.make_node("Mul", ["b", "down"], ["c"], name="shrink"),
        helper.make_node("MatMul", ["c", "w2"], ["yh"], name="fc2"),
        helper.make_node("Cast", ["yh"], ["y"], name="out", to=TensorProto.FLOAT),
    ]
    return make_model(
        nodes,
        inputs=[value("x", ["N", 8])],
        outputs=[value("y", ["N", 4])],
        initializers=[
            weight("w", rng.normal(size=(8, 8)).astype(np.float16)),
            weight("up", np.array(factor, np.float16)),
            weight("down", np.array(1 / factor, np.float16)),
            weight("w2", rng.normal(size=(8, 4)).astype(np.float16)),
        ],
    )


def inputs(rows: int = 16) -> Array:
    return np.random.default_rng(1).normal(size=(rows, 8)).astype(np.float32)


def run(path: Path, feed: dict[str, Array], level: str = "ORT_ENABLE_ALL") -> Array:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    answer: Array = session.run(None, feed)[0]
    return answer


def reference(model: onnx.ModelProto, feed: dict[str, Array]) -> Array:
    answers = ReferenceEvaluator(model).run(None, feed)
    assert isinstance(answers, list)
    first: Array = answers[0]
    return first


def rounded(model: onnx.ModelProto, tmp_path: Path) -> Path:
    write_rounded(save(model, tmp_path / "model.onnx"), tmp_path / "rounded.onnx")
    return tmp_path / "rounded.onnx"


LEVELS = ["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
def test_an_overflow_is_seen_at_every_optimisation_level(tmp_path: Path, level: str) -> None:
    path = rounded(half_net(30_000.0), tmp_path)
    assert np.isfinite(run(tmp_path / "model.onnx", {"x": inputs()}, level)).all()  # what onnxruntime makes of it
    found = run(path, {"x": inputs()}, level)
    want = reference(half_net(30_000.0), {"x": inputs()})
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(want))
    assert not np.isfinite(found).all()


@pytest.mark.parametrize("level", LEVELS)
def test_every_value_is_rounded_as_in_true_fp16(tmp_path: Path, level: str) -> None:
    model = half_net(3.0)
    path = rounded(model, tmp_path)
    want = reference(model, {"x": inputs()})
    found = run(path, {"x": inputs()}, level)
    unrounded = run(tmp_path / "model.onnx", {"x": inputs()}, level)
    # An FP16 sum may end one step away, by the order of its terms; without rounding, most values differ.
    step = np.spacing(np.abs(want).astype(np.float16)).astype(np.float32)
    assert (np.abs(found - want) <= 4 * step).all()
    np.testing.assert_array_equal(found, found.astype(np.float16).astype(np.float32))
    assert (found == want).mean() > 0.5
    assert (unrounded != found).mean() > 0.5


def test_nodes_are_counted_and_casts_stay_alone(tmp_path: Path) -> None:
    assert write_rounded(save(half_net(2.0), tmp_path / "m.onnx"), tmp_path / "r.onnx").nodes == 4


def test_an_fp32_graph_is_left_as_it_is(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"], name="relu")
    model = make_model([node], inputs=[value("x", ["N", 4])], outputs=[value("y", ["N", 4])])
    written = write_rounded(save(model, tmp_path / "m.onnx"), tmp_path / "r.onnx")
    assert (written.nodes, written.counters) == (0, {})
    assert [each.op_type for each in onnx.load(tmp_path / "r.onnx").graph.node] == ["Relu"]


def test_outputs_of_other_types_are_not_cast(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Add", ["x", "x"], ["s"], name="add"),
        helper.make_node("ArgMax", ["s"], ["y"], name="argmax", axis=1),
    ]
    model = make_model(nodes, inputs=[value("x", ["N", 4], HALF)], outputs=[value("y", ["N", 1], TensorProto.INT64)])
    feed = np.array([[1, 3, 2, 0]], np.float16)
    assert run(rounded(model, tmp_path), {"x": feed}).tolist() == [[1]]


def test_values_inside_a_branch_are_rounded_too(tmp_path: Path) -> None:
    def branch(name: str, operator: str) -> onnx.GraphProto:
        nodes = [
            helper.make_node("Mul", ["xh", "up"], [f"{name}_m"], name=f"{name}_mul"),
            helper.make_node(operator, [f"{name}_m", "up"], [f"{name}_y"], name=f"{name}_op"),
        ]
        return helper.make_graph(nodes, name, [], [value(f"{name}_y", ["N"], HALF)])

    nodes = [
        helper.make_node("Cast", ["x"], ["xh"], name="in", to=HALF),
        helper.make_node(
            "If", ["flag"], ["yh"], name="if", then_branch=branch("a", "Div"), else_branch=branch("b", "Add")
        ),
        helper.make_node("Cast", ["yh"], ["y"], name="out", to=TensorProto.FLOAT),
    ]
    model = make_model(
        nodes,
        inputs=[value("x", ["N"]), value("flag", [], TensorProto.BOOL)],
        outputs=[value("y", ["N"])],
        initializers=[weight("up", np.array(30_000, np.float16))],
    )
    feed = {"x": np.array([1.0, 3.0], np.float32), "flag": np.array(True)}
    found = run(rounded(model, tmp_path), feed)
    assert found[0] == 1.0
    assert np.isinf(found[1])


def test_ops_of_onnx_runtime_alone_are_rounded(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Gelu", ["x"], ["g"], name="gelu", domain="com.microsoft"),
        helper.make_node("Mul", ["g", "g"], ["y"], name="square"),
    ]
    shape: list[int | str | None] = ["N", 4]
    model = make_model(
        nodes,
        inputs=[value("x", shape, HALF)],
        outputs=[value("y", shape, HALF)],
        opsets=[("", 17), ("com.microsoft", 1)],
    )
    path = rounded(model, tmp_path)
    casts = [
        node.input[0]
        for node in onnx.load(path).graph.node
        if node.op_type == "Cast" and node.attribute[0].i in (TensorProto.FLOAT, HALF)
    ]
    assert casts == ["x", "rounded0_g_exact", "g", "rounded0_y_exact"]
    assert np.isinf(run(path, {"x": np.full((1, 4), 300, np.float16)})).all()


def test_weights_outside_the_file_stay_where_they_are(tmp_path: Path) -> None:
    model = half_net(2.0)
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    write_rounded(tmp_path / "m.onnx", tmp_path / "r.onnx")
    written = {each.name: each for each in onnx.load(tmp_path / "r.onnx", load_external_data=False).graph.initializer}
    assert all(written[name].data_location == TensorProto.EXTERNAL for name in ("w", "up", "down", "w2"))
    want = run(rounded(half_net(2.0), tmp_path), {"x": inputs()})
    np.testing.assert_array_equal(run(tmp_path / "r.onnx", {"x": inputs()}), want)


# -- overflows ---------------------------------------------------------------------------------------------
def counted(model: onnx.ModelProto, feed: dict[str, Array], folder: Path) -> dict[str, int]:
    """Return how many values overflowed, by node."""
    counters = write_rounded(save(model, folder / "model.onnx"), folder / "rounded.onnx").counters
    session = onnxruntime.InferenceSession(str(folder / "rounded.onnx"), providers=["CPUExecutionProvider"])
    counts = session.run(list(counters), feed)
    return {node: int(count) for node, count in zip(counters.values(), counts, strict=True)}


def saturating(*, opset: int = 17) -> onnx.ModelProto:
    """FP16: times 30,000, then Tanh, which makes 1 of everything large, infinity included."""
    nodes = [
        helper.make_node("Cast", ["x"], ["xh"], name="in", to=HALF),
        helper.make_node("Mul", ["xh", "up"], ["large"], name="grow"),
        helper.make_node("Neg", ["large"], ["small"]),
        helper.make_node("Tanh", ["small"], ["yh"], name="squash"),
        helper.make_node("Cast", ["yh"], ["y"], name="out", to=TensorProto.FLOAT),
    ]
    return make_model(
        nodes,
        inputs=[value("x", ["N"])],
        outputs=[value("y", ["N"])],
        initializers=[weight("up", np.array(30_000, np.float16))],
        opsets=[("", opset)],
    )


@pytest.mark.parametrize("opset", [7, 12, 13, 17, 21])
def test_an_overflow_is_counted_where_it_is_born_though_the_output_is_right(tmp_path: Path, opset: int) -> None:
    x = np.array([1, 2, 3, -4, 0.5, np.inf, np.nan], np.float32)
    model = saturating(opset=opset)
    assert counted(model, {"x": x}, tmp_path) == {"in": 0, "grow": 2, "Neg of small": 0, "squash": 0}
    np.testing.assert_array_equal(run(tmp_path / "rounded.onnx", {"x": x}), np.tanh(-x * 30_000))


@pytest.mark.parametrize(("first", "count"), [(65_519.0, 0), (65_519.996, 0), (65_520.0, 1), (-70_000.0, 1)])
def test_a_value_overflows_where_fp16_rounds_it_to_infinity(tmp_path: Path, first: float, count: int) -> None:
    x = np.array([first, 0], np.float32)
    with np.errstate(over="ignore"):
        assert int(np.isinf(x.astype(np.float16)).sum()) == count
    assert counted(saturating(), {"x": x}, tmp_path)["in"] == count


def test_one_overflow_among_many_small_values_is_counted(tmp_path: Path) -> None:
    x = np.full(100_000, 1e-3, np.float32)
    x[77_777] = -65_520
    assert counted(saturating(), {"x": x}, tmp_path)["in"] == 1


def test_many_values_that_all_fit_are_no_overflow(tmp_path: Path) -> None:
    x = np.full(100_000, 1e4, np.float32)
    assert counted(saturating(), {"x": x}, tmp_path)["in"] == 0


def test_a_scalar_is_counted_too(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["xh"], name="in", to=HALF),
        helper.make_node("Mul", ["xh", "xh"], ["y"], name="square"),
    ]
    model = make_model(nodes, inputs=[value("x", [])], outputs=[value("y", [], HALF)])
    assert counted(model, {"x": np.array(300, np.float32)}, tmp_path) == {"in": 0, "square": 1}


def test_an_empty_tensor_has_no_overflow(tmp_path: Path) -> None:
    assert set(counted(saturating(), {"x": np.zeros(0, np.float32)}, tmp_path).values()) == {0}


def test_integers_that_become_fp16_are_not_counted(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["n"], ["nh"], name="in", to=HALF),
        helper.make_node("Relu", ["nh"], ["y"], name="relu"),
    ]
    model = make_model(nodes, inputs=[value("n", ["N"], TensorProto.INT64)], outputs=[value("y", ["N"], HALF)])
    assert counted(model, {"n": np.array([1, 10**6])}, tmp_path) == {"relu": 0}
