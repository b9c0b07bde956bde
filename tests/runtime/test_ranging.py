from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

from modelreg.registry.words import Backend
from modelreg.runtime.ranging import write_ranged
from modelreg.runtime.runner import WorkerRunner
from modelreg_testing.onnx_models import make_model, save, value, weight

Array = NDArray[Any]


def quantised_net(zero: Any, *, scale: float = 0.1) -> onnx.ModelProto:
    """Two pairs of Q and DQ around a product: `x` of shape (N, 4), step `scale`, and its double with twice the step."""
    nodes = []
    for name, source in (("in", "x"), ("out", "doubled")):
        inputs = [f"{name}_scale", f"{name}_zero"]
        nodes.append(helper.make_node("QuantizeLinear", [source, *inputs], [f"{name}_q"], name=f"{name}_quantise"))
        target = "small" if name == "in" else "y"
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", *inputs], [target], name=f"{name}_restore"))
        if name == "in":
            nodes.append(helper.make_node("Mul", ["small", "two"], ["doubled"], name="grow"))
    weights = [weight("two", np.array(2, np.float32))]
    for name, factor in (("in", 1), ("out", 2)):
        weights += [
            weight(f"{name}_scale", np.array(scale * factor, np.float32)),
            weight(f"{name}_zero", np.array(zero)),
        ]
    return make_model(nodes, inputs=[value("x", ["N", 4])], outputs=[value("y", ["N", 4])], initializers=weights)


@pytest.fixture
def open_ranged(tmp_path: Path) -> Iterator[Any]:
    opened: list[WorkerRunner] = []

    def open_one(model: onnx.ModelProto, *, absorbs_clips: bool = False) -> WorkerRunner:
        path = save(model, tmp_path / f"{len(opened)}" / "model.onnx")
        opened.append(WorkerRunner(path, backend=Backend.ONNXRUNTIME, mode="ranged", absorbs_clips=absorbs_clips))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


def test_what_lies_far_beyond_a_range_is_counted_where_it_is_and_added_up_over_runs(open_ranged: Any) -> None:
    runner = open_ranged(quantised_net(np.uint8(128)))  # -12.8 to 12.7, and 2.56 more counts as beyond
    assert runner.output_names == ["y"]
    inside = np.array([[-15, 0, 1, 15]], np.float32)
    beyond = np.array([[-16, 0, 1, 400], [0, 0, 0, 0]], np.float32)
    assert list(runner.run({"x": inside})) == ["y"]
    assert [each["saturated"] for each in runner.ranges] == [0, 0]
    runner.run({"x": beyond})
    first, second = runner.ranges
    assert (first["node"], first["saturated"], first["values"]) == ("x", 2, 12)
    assert (second["node"], second["saturated"], second["values"]) == ("grow", 0, 12)
    assert first["use"] == pytest.approx(1.0)


def test_use_is_the_part_of_the_range_between_the_smallest_and_the_largest_value(open_ranged: Any) -> None:
    runner = open_ranged(quantised_net(np.uint8(0)))  # 0 to 25.5
    runner.run({"x": np.array([[0, 1, 2, 2.55]], np.float32)})
    assert runner.ranges[0]["use"] == pytest.approx(0.1, abs=0.005)
    runner.run({"x": np.array([[0, 1, 2, 12.75]], np.float32)})
    assert runner.ranges[0]["use"] == pytest.approx(0.5, abs=0.005)


def test_a_range_that_begins_at_zero_stands_for_a_relu_so_what_is_below_is_meant_to_go(open_ranged: Any) -> None:
    runner = open_ranged(quantised_net(np.uint8(0)))
    runner.run({"x": np.array([[-100, -50, 30, 10]], np.float32)})
    assert runner.ranges[0]["saturated"] == 1  # 30, of 25.5 and a tenth more
    signed = open_ranged(quantised_net(np.int8(-128)))
    signed.run({"x": np.array([[-100, -50, 30, 10]], np.float32)})
    assert signed.ranges[0]["saturated"] == 1


def test_an_upper_end_may_stand_for_a_clip_where_the_source_has_some(open_ranged: Any) -> None:
    runner = open_ranged(quantised_net(np.uint8(0)), absorbs_clips=True)
    runner.run({"x": np.array([[-100, -50, 30, 400]], np.float32)})
    assert [each["saturated"] for each in runner.ranges] == [0, 0]
    both = open_ranged(quantised_net(np.uint8(128)), absorbs_clips=True)
    both.run({"x": np.array([[-100, 0, 0, 0]], np.float32)})
    assert both.ranges[0]["saturated"] == 1


def test_a_value_that_is_not_finite_does_not_break_the_answer(open_ranged: Any) -> None:
    runner = open_ranged(quantised_net(np.uint8(128)))
    runner.run({"x": np.array([[np.nan, np.inf, 0, 1]], np.float32)})
    assert runner.ranges[0]["saturated"] == 1


def test_the_counters_change_no_output(tmp_path: Path, open_ranged: Any) -> None:
    model = quantised_net(np.uint8(100))
    x = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32) * 10
    with WorkerRunner(save(model, tmp_path / "plain.onnx"), backend=Backend.ONNXRUNTIME) as plain:
        assert plain.ranges is None
        expected = plain.run({"x": x})["y"]
    np.testing.assert_array_equal(open_ranged(model).run({"x": x})["y"], expected)


def test_nothing_is_watched_where_nothing_is_quantised(tmp_path: Path) -> None:
    model = make_model(
        [helper.make_node("Relu", ["x"], ["y"], name="relu")],
        inputs=[value("x", ["N", 4])],
        outputs=[value("y", ["N", 4])],
    )
    assert write_ranged(save(model, tmp_path / "model.onnx"), tmp_path / "ranged.onnx", absorbs_clips=False) == ()


def test_a_scale_per_channel_or_made_by_a_node_is_left_alone(tmp_path: Path) -> None:
    model = quantised_net(np.uint8(0))
    for tensor in model.graph.initializer:
        if tensor.name == "in_scale":
            tensor.CopyFrom(weight("in_scale", np.full(4, 0.1, np.float32)))
        if tensor.name == "in_zero":
            tensor.CopyFrom(weight("in_zero", np.zeros(4, np.uint8)))
    watched = write_ranged(save(model, tmp_path / "model.onnx"), tmp_path / "ranged.onnx", absorbs_clips=False)
    assert [each.node for each in watched] == ["grow"]


def test_a_plan_on_the_cpu_can_be_timed(tmp_path: Path) -> None:
    with WorkerRunner(save(quantised_net(np.uint8(0)), tmp_path / "plain.onnx"), backend=Backend.ONNXRUNTIME) as plain:
        assert plain.time_block({"x": np.zeros((2, 4), np.float32)}) > 0
