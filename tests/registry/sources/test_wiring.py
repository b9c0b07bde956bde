"""Tests of what nodes read: it must be there before them, and what is missing is named."""

from __future__ import annotations

import onnx
import pytest
from onnx import helper

from modelreg.registry.errors import SourceError
from modelreg.registry.sources.wiring import check_wiring
from modelreg_testing import onnx_models


def chain(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    return onnx_models.make_model(
        list(nodes), inputs=[onnx_models.value("x", [4])], outputs=[onnx_models.value("y", [4])]
    )


FIRST, SECOND = helper.make_node("Relu", ["x"], ["m"], name="r1"), helper.make_node("Relu", ["m"], ["y"], name="r2")
LOOSE = helper.make_node("Relu", ["zz"], ["y"])


@pytest.mark.parametrize(
    "model",
    [
        chain(FIRST, SECOND),
        onnx_models.mlp(),
        onnx_models.branches(20),
        onnx_models.local_function(20),
        onnx_models.sparse_initializer(),
        onnx_models.initializers_as_inputs(),
    ],
)
def test_what_is_there_is_found(model: onnx.ModelProto) -> None:
    check_wiring(model, name="m")


@pytest.mark.parametrize(
    ("model", "fact", "hint"),
    [
        (
            chain(LOOSE),
            "the Relu that makes 'y' reads 'zz', which is no input, no initialiser and no output of another node",
            "name the tensor that is meant",
        ),
        (
            chain(SECOND, FIRST),
            "node 'r2' (Relu) reads 'm', which only a later node makes: node 'r1' (Relu)",
            "order in which they can run",
        ),
    ],
)
def test_what_is_missing_is_named_with_its_node(model: onnx.ModelProto, fact: str, hint: str) -> None:
    with pytest.raises(SourceError) as caught:
        check_wiring(model, name="m")
    assert str(caught.value) == f"m is not a valid ONNX model: {fact}"
    assert hint in caught.value.hint()


def test_a_branch_reads_what_is_around_it_and_nothing_else() -> None:
    model = onnx_models.branches(20)
    branch = model.graph.node[0].attribute[0].g
    branch.node[0].input[0] = "zz"
    with pytest.raises(SourceError, match="reads 'zz', which is no input"):
        check_wiring(model, name="m")
