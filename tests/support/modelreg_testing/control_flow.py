"""Models whose branches and loops use the graph around them; tensors in two branches share names."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from modelreg_testing.onnx_models import make_model, value, weight


def _weight(name: str, seed: int) -> onnx.TensorProto:
    return weight(name, np.random.default_rng(seed).normal(size=(4, 4)).astype(np.float32))


def branching_net() -> onnx.ModelProto:
    """`choice` between two branches that take `x` and `hidden`, one with a further If inside; output `y` (N, 4)."""
    half = helper.make_node("Constant", [], ["half"], name="half", value_float=0.5)
    inner = [
        helper.make_graph([helper.make_node(op, ["hidden"], ["r"], name=name)], name, [], [value("r", ["N", 4])])
        for op, name in (("Softmax", "inner_softmax"), ("Neg", "inner_neg"))
    ]
    then = helper.make_graph(
        [
            half,
            helper.make_node("MatMul", ["hidden", "w2"], ["t"], name="then_matmul"),
            helper.make_node("Softmax", ["t"], ["s"], name="then_softmax"),
            helper.make_node("Exp", ["s"], ["e"], name="then_exp"),
            helper.make_node("Mul", ["e", "half"], ["m"], name="then_mul"),
            helper.make_node("If", ["flag"], ["r"], name="inner", then_branch=inner[0], else_branch=inner[1]),
            helper.make_node("Sum", ["m", "x", "r"], ["y"], name="then_sum"),
        ],
        "then",
        [],
        [value("y", ["N", 4])],
        [_weight("w2", 1)],
    )
    constant = helper.make_node("Constant", [], ["y"], name="ones", value=weight("", np.ones((1, 4), np.float32)))
    otherwise = helper.make_graph([constant], "else", [], [value("y", [1, 4])], [_weight("w2", 2)])
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["hidden"], name="matmul"),
        helper.make_node("If", ["flag"], ["y"], name="choice", then_branch=then, else_branch=otherwise),
    ]
    return make_model(
        nodes,
        inputs=[value("x", ["N", 4]), value("flag", [], TensorProto.BOOL)],
        outputs=[value("y", [None, 4])],
        initializers=[_weight("w", 0)],
    )


def looping_net(*, turns: int = 3) -> onnx.ModelProto:
    """A Loop that takes `x` and a weight from around it at every turn; output `y` (N, 4)."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["state", "w"], ["product"], name="step_matmul"),
            helper.make_node("Softmax", ["product"], ["shares"], name="step_softmax"),
            helper.make_node("Tanh", ["shares"], ["bent"], name="step_tanh"),
            helper.make_node("Add", ["bent", "x"], ["state_out"], name="step_add"),
            helper.make_node("Identity", ["go_on"], ["go_on_out"], name="step_go_on"),
        ],
        "body",
        [value("turn", [], TensorProto.INT64), value("go_on", [], TensorProto.BOOL), value("state", ["N", 4])],
        [value("go_on_out", [], TensorProto.BOOL), value("state_out", ["N", 4])],
    )
    nodes = [
        helper.make_node("Relu", ["x"], ["start"], name="relu"),
        helper.make_node("Loop", ["turns", "true", "start"], ["y"], name="loop", body=body),
    ]
    return make_model(
        nodes,
        inputs=[value("x", ["N", 4])],
        outputs=[value("y", ["N", 4])],
        initializers=[
            _weight("w", 0),
            numpy_helper.from_array(np.array(turns), "turns"),
            numpy_helper.from_array(np.array(True), "true"),
        ],
    )
