from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime  # noqa: TID253 - a dependency, and what these tests look at
import pytest
from onnx import TensorProto, helper

from modelreg.builders.realised import read_realised
from modelreg.builders.variant_settings import FP16_SETTINGS
from modelreg_testing.onnx_models import conv_net, make_model, mlp, save, value, weight


def int8_variant(**changes: Any) -> dict[str, Any]:
    return {"kind": "int8", "settings": {}, "excluded_nodes": [], "excluded_op_types": [], **changes}


def fp16_variant(**changes: Any) -> dict[str, Any]:
    return {"kind": "fp16", "settings": FP16_SETTINGS, "excluded_nodes": [], "excluded_op_types": [], **changes}


def optimise(model: Path, plan: Path, level: str = "ORT_ENABLE_EXTENDED") -> Path:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(plan)
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return plan


def test_fp32_is_counted_by_op(tmp_path: Path) -> None:
    source = save(conv_net(), tmp_path / "m.onnx")
    realised = read_realised(optimise(source, tmp_path / "p.onnx"), source, None)
    assert (realised["storage"], realised["compute"], realised["stayed"]) == ("fp32", "fp32", [])
    assert realised["ops"]["fp32"]["FusedConv"] == 2
    assert list(realised["initialiser_bytes"]) == ["float32"]


@pytest.mark.parametrize(
    ("dtype", "word"), [("float64", "fp64"), ("int32", "int32"), ("int64", "int64"), ("float32", "fp32")]
)
def test_what_is_not_converted_is_called_what_it_is(tmp_path: Path, dtype: str, word: str) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model = make_model(
        [helper.make_node("Add", ["x", "w"], ["a"]), helper.make_node("Mul", ["a", "x"], ["y"])],
        inputs=[value("x", ["N", 4], kind)],
        outputs=[value("y", ["N", 4], kind)],
        initializers=[weight("w", np.ones(4, dtype))],
    )
    source = save(model, tmp_path / "m.onnx")
    realised = read_realised(optimise(source, tmp_path / "p.onnx"), source, None)
    assert (realised["storage"], realised["compute"]) == (word, word)


def half_net(*, forgotten: bool = False) -> onnx.ModelProto:
    """Two dense FP16 layers between casts; with `forgotten`, the second one was left in FP32."""
    half = np.ones((4, 4), np.float16)
    nodes = [
        helper.make_node("Cast", ["x"], ["xh"], name="in", to=TensorProto.FLOAT16),
        helper.make_node("MatMul", ["xh", "w1"], ["h"], name="fc1"),
        helper.make_node("Cast", ["h"], ["hw"], name="out", to=TensorProto.FLOAT),
        helper.make_node("Softmax", ["hw"], ["s"], name="softmax"),
    ]
    if forgotten:
        nodes.append(helper.make_node("MatMul", ["s", "w2"], ["y"], name="fc2"))
    else:
        nodes.append(helper.make_node("Cast", ["s"], ["sh"], name="back", to=TensorProto.FLOAT16))
        nodes.append(helper.make_node("MatMul", ["sh", "w2"], ["yh"], name="fc2"))
        nodes.append(helper.make_node("Cast", ["yh"], ["y"], name="last", to=TensorProto.FLOAT))
    second = half.astype(np.float32) if forgotten else half
    return make_model(
        nodes,
        inputs=[value("x", ["N", 4])],
        outputs=[value("y", ["N", 4])],
        initializers=[weight("w1", half), weight("w2", second)],
    )


def test_fp16_on_the_cpu_is_stored_in_fp16_and_computed_in_fp32(tmp_path: Path) -> None:
    made = save(half_net(), tmp_path / "m.onnx")
    realised = read_realised(optimise(made, tmp_path / "p.onnx"), made, fp16_variant())
    assert (realised["storage"], realised["compute"]) == ("fp16", "fp32")
    assert (realised["converted"], realised["eligible"], realised["stayed"]) == (2, 2, [])
    assert realised["kept"] == ["softmax (Softmax)"]
    assert "rounded" in realised["note"]


def test_a_node_that_should_have_become_fp16_is_named(tmp_path: Path) -> None:
    made = save(half_net(forgotten=True), tmp_path / "m.onnx")
    plan = optimise(made, tmp_path / "p.onnx")
    assert read_realised(plan, made, fp16_variant())["stayed"] == ["fc2 (MatMul)"]
    excluded = read_realised(plan, made, fp16_variant(excluded_nodes=["fc2"]))
    assert (excluded["stayed"], excluded["kept"]) == ([], ["softmax (Softmax)", "fc2 (MatMul)"])


def test_weights_that_were_folded_back_are_stored_in_fp32(tmp_path: Path) -> None:
    made = save(half_net(), tmp_path / "m.onnx")
    folded = save(mlp(), tmp_path / "p.onnx")  # what onnxruntime 1.32 makes of it at level `all`
    realised = read_realised(folded, made, fp16_variant())
    assert realised["storage"] == "fp32"


@pytest.mark.parametrize(("cast", "compute"), [(False, "fp16"), (True, "mixed")])
def test_a_plan_with_fp16_kernels_computes_in_fp16(tmp_path: Path, cast: bool, compute: str) -> None:
    made = save(half_net(forgotten=cast), tmp_path / "m.onnx")  # as it is: what a CPU with FP16 kernels would save
    assert read_realised(made, made, fp16_variant())["compute"] == compute


def quantised_net(*, plain_second: bool = False) -> onnx.ModelProto:
    """conv1 and fc with Q/DQ around them; with `plain_second`, conv2 is left alone."""
    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    tensors = [weight("scale", np.float32(0.05)), weight("zero", np.uint8(128)), weight("zero8", np.int8(0))]

    def quantise(name: str) -> str:
        nodes.append(helper.make_node("QuantizeLinear", [name, "scale", "zero"], [f"{name}_q"], name=f"{name}_q"))
        nodes.append(
            helper.make_node("DequantizeLinear", [f"{name}_q", "scale", "zero"], [f"{name}_dq"], name=f"{name}_dq")
        )
        return f"{name}_dq"

    def weights(name: str) -> str:
        tensors.append(weight(f"{name}_int", rng.integers(-64, 64, size=(2, 2, 3, 3)).astype(np.int8)))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_int", "scale", "zero8"], [name], name=f"{name}_dq"))
        return name

    nodes.append(helper.make_node("Conv", [quantise("x"), weights("w1")], ["a"], name="conv1", pads=[1] * 4))
    if plain_second:
        tensors.append(weight("w2", rng.normal(size=(2, 2, 3, 3)).astype(np.float32)))
        nodes.append(helper.make_node("Conv", [quantise("a"), "w2"], ["b"], name="conv2", pads=[1] * 4))
    else:
        nodes.append(helper.make_node("Conv", [quantise("a"), weights("w2")], ["b"], name="conv2", pads=[1] * 4))
    nodes.append(helper.make_node("Relu", [quantise("b")], ["y"], name="relu"))
    ordered = make_model(
        nodes, inputs=[value("x", ["N", 2, 6, 6])], outputs=[value("y", ["N", 2, 6, 6])], initializers=tensors
    )
    onnx.checker.check_model(ordered)
    return ordered


def test_int8_is_read_from_the_kernels(tmp_path: Path) -> None:
    made = save(quantised_net(), tmp_path / "m.onnx")
    realised = read_realised(optimise(made, tmp_path / "p.onnx"), made, int8_variant())
    assert (realised["storage"], realised["compute"]) == ("int8", "int8")
    assert (realised["converted"], realised["eligible"], realised["stayed"]) == (2, 2, [])
    assert realised["ops"]["int8"]["QLinearConv"] == 2


def test_a_weighted_node_that_stayed_in_float_is_named(tmp_path: Path) -> None:
    made = save(quantised_net(plain_second=True), tmp_path / "m.onnx")
    realised = read_realised(optimise(made, tmp_path / "p.onnx", "ORT_ENABLE_BASIC"), made, int8_variant())
    assert realised["stayed"] == ["conv1 (Conv)", "conv2 (Conv)"]  # `basic` makes no integer kernels
    assert (realised["converted"], realised["eligible"], realised["compute"]) == (0, 2, "fp32")


@pytest.mark.parametrize("excluded", [{"excluded_nodes": ["conv1", "conv2"]}, {"excluded_op_types": ["Conv"]}])
def test_a_node_that_was_excluded_is_kept(tmp_path: Path, excluded: dict[str, Any]) -> None:
    made = save(quantised_net(plain_second=True), tmp_path / "m.onnx")
    realised = read_realised(optimise(made, tmp_path / "p.onnx", "ORT_ENABLE_BASIC"), made, int8_variant(**excluded))
    assert (realised["stayed"], realised["kept"]) == ([], ["conv1 (Conv)", "conv2 (Conv)"])


def test_an_excluded_node_that_was_quantised_all_the_same_is_unwanted(tmp_path: Path) -> None:
    made = save(quantised_net(), tmp_path / "m.onnx")
    realised = read_realised(optimise(made, tmp_path / "p.onnx"), made, int8_variant(excluded_nodes=["conv2"]))
    assert realised["unwanted"] == ["conv2 (QLinearConv)"]


def test_a_fused_kernel_is_known_by_its_weight(tmp_path: Path) -> None:
    source = save(mlp(), tmp_path / "m.onnx")
    plan = optimise(source, tmp_path / "p.onnx")
    assert "FusedGemm" in {node.op_type for node in onnx.load(plan).graph.node}
    realised = read_realised(plan, source, int8_variant(excluded_nodes=["fc1"]))
    assert len(realised["kept"]) == 1
    assert realised["stayed"] == ["fc2 (Gemm)"]


def test_products_of_activations_have_no_weights_to_quantise(tmp_path: Path) -> None:
    node = helper.make_node("MatMul", ["x", "x"], ["y"], name="square")
    source = save(make_model([node], inputs=[value("x", [4, 4])], outputs=[value("y", [4, 4])]), tmp_path / "m.onnx")
    realised = read_realised(optimise(source, tmp_path / "p.onnx"), source, int8_variant())
    assert (realised["eligible"], realised["converted"]) == (0, 0)
    assert "constant weights" in realised["note"]


def test_integer_ops_count_as_other(tmp_path: Path) -> None:
    node = helper.make_node("Neg", ["x"], ["y"], name="neg")
    ids = [value(name, [4], TensorProto.INT64) for name in ("x", "y")]
    source = save(make_model([node], inputs=ids[:1], outputs=ids[1:]), tmp_path / "m.onnx")
    assert read_realised(optimise(source, tmp_path / "p.onnx"), source, None)["ops"] == {"other": {"Neg": 1}}
