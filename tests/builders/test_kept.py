from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from modelreg.builders.fp16 import make_fp16
from modelreg.builders.graphs import normalise
from modelreg.builders.kept import kept_nodes
from modelreg.builders.precision import translate
from modelreg.builders.subgraphs import graphs_of
from modelreg.builders.variant_settings import FP16_SETTINGS
from modelreg.registry.words import Backend, Precision
from modelreg_testing.control_flow import branching_net, looping_net
from modelreg_testing.networks import encoder, norm_by_parts, residual_net
from modelreg_testing.onnx_models import make_model, save, value

BF16_SETTINGS = translate(Precision.BF16, Backend.TENSORRT_RTX, "1.7").settings


def variant(settings: dict[str, Any] = FP16_SETTINGS, **changes: Any) -> dict[str, Any]:
    base = {"kind": "fp16", "settings": settings, "excluded_nodes": [], "excluded_op_types": [], "keep_io_types": True}
    return {**base, **changes}


def test_a_variance_stays_in_fp32_to_its_root_and_its_quotient_does_not() -> None:
    kept = kept_nodes(norm_by_parts().graph, variant())
    assert kept == {"mean", "square", "variance", "stable", "root"}


def test_a_product_with_itself_is_a_square_when_only_kept_nodes_read_it() -> None:
    model = norm_by_parts(square="Mul")
    assert "square" in kept_nodes(model.graph, variant())
    model.graph.node.append(helper.make_node("Relu", ["square.out"], ["other"], name="reader"))
    assert "square" not in kept_nodes(model.graph, variant())


def test_a_square_that_nothing_reads_is_not_kept() -> None:
    square = helper.make_node("Mul", ["x", "x"], ["y"], name="square")
    model = make_model([square], inputs=[value("x", [4])], outputs=[value("y", [4])])
    assert kept_nodes(model.graph, variant()) == set()


def test_bf16_has_the_range_and_nothing_follows() -> None:
    for square in ("Pow", "Mul"):
        assert kept_nodes(norm_by_parts(square=square).graph, variant(BF16_SETTINGS)) == set()


def test_excluded_nodes_stay_alone_with_what_is_inside_them() -> None:
    assert kept_nodes(residual_net().graph, variant(excluded_nodes=["0.0.conv2"])) == {"0.0.conv2"}
    assert kept_nodes(residual_net().graph, variant(excluded_op_types=["Gemm"])) == {"fc"}
    inside = kept_nodes(branching_net().graph, variant(BF16_SETTINGS, excluded_nodes=["inner"]))
    assert inside == {"inner", "inner_softmax", "inner_neg"}


@pytest.mark.parametrize(
    "make",
    [norm_by_parts, lambda: norm_by_parts(square="Mul"), encoder, residual_net, branching_net, looping_net],
    ids=["norm", "norm by product", "encoder", "resnet", "branches", "loop"],
)
def test_the_answer_is_the_same_for_the_variant(tmp_path: Path, make: Any) -> None:
    model = normalise(make())
    wanted = kept_nodes(model.graph, variant())
    make_fp16(save(model, tmp_path / "source.onnx"), tmp_path / "out.onnx", variant())
    made = onnx.load(tmp_path / "out.onnx")
    known = {node.name for graph in graphs_of(model.graph) for node in graph.node}
    assert kept_nodes(made.graph, variant()) & known == wanted


def test_a_cast_of_the_model_is_looked_through() -> None:
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], name="mean"),
        helper.make_node("Cast", ["m"], ["c"], name="cast", to=TensorProto.FLOAT),
        helper.make_node("Sqrt", ["c"], ["y"], name="root"),
    ]
    model = make_model(nodes, inputs=[value("x", [4])], outputs=[value("y", [1])])
    assert kept_nodes(model.graph, variant()) == {"mean", "root"}


def test_nothing_follows_what_was_quantised() -> None:
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "scale"], ["d"], name="dequantise"),
        helper.make_node("Neg", ["d"], ["y"], name="negate"),
    ]
    inputs = [value("q", [4], TensorProto.INT8), value("scale", [])]
    model = make_model(nodes, inputs=inputs, outputs=[value("y", [4])])
    assert kept_nodes(model.graph, variant()) == {"dequantise"}
