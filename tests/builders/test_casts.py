from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime  # noqa: TID253 - a dependency, and what these tests look at
import pytest
from onnx import TensorProto, helper

from modelreg.builders.casts import remove_round_trips
from modelreg.builders.fp16 import make_fp16
from modelreg.builders.variant_settings import FP16_SETTINGS
from modelreg.runtime.rounding import write_rounded
from modelreg_testing.networks import norm_by_parts
from modelreg_testing.onnx_models import make_model, save, value

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16


def cast(source: str, target: str, to: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [target], name=f"{target}_node", to=to)


def net(*nodes: onnx.NodeProto, outputs: tuple[str, ...] = ("y",)) -> onnx.ModelProto:
    return make_model(nodes, inputs=[value("x", [4])], outputs=[value(name, [4]) for name in outputs])


def names(model: onnx.ModelProto, own: tuple[str, ...] = ()) -> list[str]:
    remove_round_trips(model.graph, own=own)
    onnx.checker.check_model(model, full_check=True)
    return [node.name for node in model.graph.node]


def exp(source: str, target: str, name: str) -> onnx.NodeProto:
    return helper.make_node("Exp", [source], [target], name=name)


def test_a_value_that_both_sides_have_in_fp32_passes_as_it_is() -> None:
    model = net(exp("x", "a", "first"), cast("a", "h", HALF), cast("h", "b", FLOAT), exp("b", "y", "second"))
    assert names(model) == ["first", "second"]
    assert model.graph.node[1].input == ["a"]


def test_the_cast_stays_for_those_who_read_fp16() -> None:
    model = net(
        exp("x", "a", "first"),
        cast("a", "h", HALF),
        cast("h", "b", FLOAT),
        exp("b", "y", "second"),
        helper.make_node("Neg", ["h"], ["n"], name="half"),
        cast("n", "z", FLOAT),
        outputs=("y", "z"),
    )
    assert names(model) == ["first", "h_node", "second", "half", "z_node"]


def test_casts_of_the_model_and_of_outputs_stay() -> None:
    nodes = (cast("x", "h", HALF), cast("h", "b", FLOAT), exp("b", "y", "exp"))
    assert names(net(*nodes), own=("h_node",)) == ["h_node", "b_node", "exp"]
    assert names(net(*nodes), own=("b_node",)) == ["h_node", "b_node", "exp"]
    assert names(net(cast("x", "h", HALF), cast("h", "y", FLOAT))) == ["h_node", "y_node"]


def test_other_types_are_no_round_trip() -> None:
    wide = net(cast("x", "h", TensorProto.DOUBLE), cast("h", "b", FLOAT), exp("b", "y", "exp"))
    assert names(wide) == ["h_node", "b_node", "exp"]


@pytest.mark.parametrize("square", ["Pow", "Mul"])
def test_a_normalisation_of_big_numbers_survives_fp16(tmp_path: Path, square: str) -> None:
    source = save(norm_by_parts(square=square), tmp_path / "source.onnx")
    settings = {"settings": FP16_SETTINGS, "excluded_nodes": [], "excluded_op_types": [], "keep_io_types": True}
    make_fp16(source, tmp_path / "out.onnx", settings)
    write_rounded(tmp_path / "out.onnx", tmp_path / "rounded.onnx")
    x = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
    want, found = (
        onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        for path in (source, tmp_path / "rounded.onnx")
    )
    np.testing.assert_allclose(found, want, atol=0.02)  # it was 0 everywhere: the root was infinite
