from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime  # noqa: TID253 - a dependency, and what these tests look at
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from modelreg.builders import graphs, qdq
from modelreg.builders.graphs import VariantError
from modelreg.builders.precision import translate
from modelreg.builders.qdq import make_int8
from modelreg.registry.words import Backend, Precision
from modelreg_testing.networks import residual_net
from modelreg_testing.onnx_models import conv_net, make_model, mlp, save, value, weight
from modelreg_testing.quantising import calibrated, snr_db

Array = NDArray[Any]
TENSORRT = translate(Precision.INT8, Backend.TENSORRT_RTX, "1.7.1.116").settings


def quantise(
    model: onnx.ModelProto,
    tmp_path: Path,
    *,
    data: Array,
    name: str = "out.onnx",
    settings: dict[str, Any] | None = None,
    batch: int | None = None,
    **changes: Any,
) -> onnx.ModelProto:
    how = {key: changes.pop(key) for key in ("method", "percentile", "samples") if key in changes}
    part, request = calibrated(model, data, tmp_path, **how)
    variant = {
        "kind": "int8",
        "settings": {**translate(Precision.INT8, Backend.ONNXRUNTIME, "1.32.0").settings, **(settings or {})},
        "excluded_nodes": [],
        "excluded_op_types": [],
        "calibration": part,
        **changes,
    }
    request["batch"] = batch or request["batch"]
    make_int8(save(model, tmp_path / "source.onnx"), tmp_path / name, variant, request, lambda *_: None)
    return onnx.load(tmp_path / name)


def images(count: int = 64, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(count, 1, 12, 12)).astype(np.float32)


def outputs(model: onnx.ModelProto, inputs: Array, options: onnxruntime.SessionOptions | None = None) -> Array:
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    answer: Array = session.run(None, {session.get_inputs()[0].name: inputs})[0]
    return answer


def outputs_as_written(model: onnx.ModelProto, inputs: Array) -> Array:
    """Compute what the Q/DQ nodes say, as TensorRT would: fused kernels for S8 saturate on processors without VNNI."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return outputs(model, inputs, options)


def scales(model: onnx.ModelProto) -> dict[str, Array]:
    return {each.name: numpy_helper.to_array(each) for each in model.graph.initializer if each.name.endswith("_scale")}


@pytest.mark.parametrize("method", ["entropy", "minmax", "percentile"])
def test_the_variant_computes_what_the_source_does_nearly(tmp_path: Path, method: str) -> None:
    made = quantise(conv_net(), tmp_path, data=images(), method=method)
    inputs = images(32, seed=1)
    assert snr_db(outputs(made, inputs), outputs(conv_net(), inputs)) > 20


def test_the_method_decides_the_ranges(tmp_path: Path) -> None:
    data = images()
    data[0, 0, 0, 0] = 50.0  # one wild value: only minmax keeps all of it
    bound = {
        method: float(scales(quantise(conv_net(), tmp_path, data=data, method=method, percentile=99.0))["image_scale"])
        for method in ("entropy", "minmax", "percentile")
    }
    assert bound["percentile"] < bound["minmax"] / 5
    assert bound["entropy"] < bound["minmax"] / 2


@pytest.mark.parametrize("method", ["entropy", "minmax", "percentile"])
@pytest.mark.slow
def test_the_batch_size_changes_no_range(tmp_path: Path, method: str) -> None:
    data = images() * np.linspace(0.1, 30, 64, dtype=np.float32)[:, None, None, None]
    one, other = (
        scales(quantise(conv_net(), tmp_path, data=data, method=method, batch=batch, name=f"{batch}.onnx"))
        for batch in (3, 64)
    )
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_allclose(array, other[name], rtol=1e-5)


def test_weights_are_symmetric_per_channel_in_seven_bits(tmp_path: Path) -> None:
    made = quantise(conv_net(), tmp_path, data=images())
    tensors = {each.name: numpy_helper.to_array(each) for each in made.graph.initializer}
    weights = tensors["conv2.weight_quantized"]
    assert weights.dtype == np.int8
    assert -64 <= weights.min() <= weights.max() <= 64
    assert tensors["conv2.weight_scale"].shape == (8,)
    assert not tensors["conv2.weight_zero_point"].any()


def test_activations_are_unsigned_on_the_cpu_and_signed_for_tensorrt(tmp_path: Path) -> None:
    cpu = quantise(conv_net(), tmp_path, data=images(), name="cpu.onnx")
    trt = quantise(conv_net(), tmp_path, data=images(), name="trt.onnx", settings=TENSORRT)
    zero = {
        name: next(numpy_helper.to_array(each) for each in model.graph.initializer if each.name == "image_zero_point")
        for name, model in (("cpu", cpu), ("trt", trt))
    }
    assert zero["cpu"].dtype == np.uint8
    assert zero["trt"].dtype == np.int8
    assert zero["trt"] == 0


def test_tensorrt_gets_float_biases_and_no_quantised_outputs(tmp_path: Path) -> None:
    made = quantise(conv_net(), tmp_path, data=images(), settings=TENSORRT)
    assert {each.name for each in made.graph.initializer if "bias" in each.name} == {
        "conv1.bias",
        "conv2.bias",
        "fc.bias",
    }
    readers = [node.op_type for node in made.graph.node if "c1" in node.input]
    assert readers == ["Relu"]


def test_excluded_nodes_and_op_types_have_no_quantised_weights(tmp_path: Path) -> None:
    made = quantise(conv_net(), tmp_path, data=images(), excluded_nodes=["conv1"], excluded_op_types=["Gemm"])
    quantised = {each.name for each in made.graph.initializer if each.name.endswith("weight_quantized")}
    assert quantised == {"conv2.weight_quantized"}


@pytest.mark.parametrize("method", ["entropy", "minmax"])
def test_a_model_without_a_node_to_quantise_is_refused_in_words(tmp_path: Path, method: str) -> None:
    every_type = sorted({node.op_type for node in conv_net().graph.node})
    with pytest.raises(VariantError, match="no node of this model can become INT8"):
        quantise(conv_net(), tmp_path, data=images(), excluded_op_types=every_type, method=method)


def chain() -> onnx.ModelProto:
    """Three convolutions with nothing between them."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", [source, f"w{i}"], [target], name=f"conv{i}", pads=[1] * 4)
        for i, (source, target) in enumerate([("x", "a"), ("a", "b"), ("b", "y")])
    ]
    weights = [weight(f"w{i}", rng.normal(size=(2, 2, 3, 3)).astype(np.float32)) for i in range(3)]
    shape: list[int | str | None] = ["N", 2, 6, 6]
    return make_model(nodes, inputs=[value("x", shape)], outputs=[value("y", shape)], initializers=weights)


def test_onnx_runtime_cannot_quantise_an_excluded_node_itself(tmp_path: Path) -> None:
    data = np.random.default_rng(1).normal(size=(32, 2, 6, 6)).astype(np.float32)
    quantise(chain(), tmp_path, data=data, excluded_nodes=["conv1"])
    kernels = {}
    plan = tmp_path / "out.onnx"
    for level in ("EXTENDED", "ALL"):  # as built, and as loaded
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
        options.log_severity_level = 3
        options.optimized_model_filepath = str(tmp_path / f"{level}.onnx")
        onnxruntime.InferenceSession(str(plan), options, providers=["CPUExecutionProvider"])
        plan = tmp_path / f"{level}.onnx"
        nodes = onnx.load(plan).graph.node
        kernels[level] = sum("QLinear" in node.op_type for node in nodes)
    assert kernels == {"EXTENDED": 2, "ALL": 2}  # without the guard, onnxruntime 1.32 makes it 3 and 3


def batch_norm_net() -> onnx.ModelProto:
    ones = np.ones(4, np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="matmul"),
        helper.make_node("Add", ["m", "b"], ["a"], name="add"),
        helper.make_node("MatMul", ["a", "v"], ["y"], name="other"),
    ]
    return make_model(
        nodes,
        inputs=[value("x", ["N", 8])],
        outputs=[value("y", ["N", 4])],
        initializers=[
            weight("w", np.ones((8, 4), np.float32)),
            weight("b", ones),
            weight("v", np.ones((4, 4), np.float32)),
        ],
    )


def test_an_excluded_node_is_found_again_after_it_was_fused(tmp_path: Path) -> None:
    data = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
    made = quantise(batch_norm_net(), tmp_path, data=data, excluded_nodes=["matmul"])
    assert not [each.name for each in made.graph.initializer if each.name.startswith("w_")]


def test_an_excluded_node_that_was_folded_away_is_refused(tmp_path: Path) -> None:
    model = batch_norm_net()
    model.graph.node.insert(0, helper.make_node("Neg", ["w"], ["negated"], name="folded"))
    model.graph.node[1].input[1] = "negated"
    with pytest.raises(VariantError, match="'folded' is fused or folded away"):
        quantise(model, tmp_path, data=np.ones((16, 8), np.float32), excluded_nodes=["folded"])


@pytest.mark.filterwarnings("ignore:All-NaN")
def test_an_activation_that_overflows_is_named(tmp_path: Path) -> None:
    with pytest.raises(VariantError, match="not finite on the calibration set"):
        quantise(mlp(), tmp_path, data=np.full((16, 16), 3e38, np.float32))


def test_constant_activations_of_zero_do_no_harm(tmp_path: Path) -> None:
    made = quantise(mlp(), tmp_path, data=np.zeros((16, 16), np.float32))
    assert np.isfinite(outputs(made, np.zeros((2, 16), np.float32))).all()


@pytest.mark.parametrize("method", ["entropy", "minmax", "percentile"])
def test_activations_next_to_zero_do_no_harm(tmp_path: Path, method: str) -> None:
    model = mlp()
    for tensor in model.graph.initializer:
        if tensor.name.endswith("bias"):
            tensor.CopyFrom(weight(tensor.name, np.zeros(tensor.dims, np.float32)))
    made = quantise(model, tmp_path, data=np.full((16, 16), 1e-42, np.float32), method=method)
    assert np.isfinite(outputs(made, np.ones((2, 16), np.float32))).all()


def test_a_tensor_that_a_branch_uses_is_made_before_it_and_not_fused_away(tmp_path: Path) -> None:
    branch = [
        helper.make_graph([helper.make_node(op, ["h"], [op], name=op)], op, [], [value(op, ["N", 4])])
        for op in ("Neg", "Abs")
    ]
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("Flatten", ["c"], ["h"], name="flatten"),
        helper.make_node("Relu", ["h"], ["r"], name="relu"),
        helper.make_node("MatMul", ["r", "v"], ["m"], name="matmul"),
        helper.make_node("ReduceMax", ["m"], ["top"], name="top", keepdims=0),
        helper.make_node("Greater", ["top", "zero"], ["positive"], name="greater"),
        helper.make_node("If", ["positive"], ["b"], name="if", then_branch=branch[0], else_branch=branch[1]),
        helper.make_node("Add", ["m", "b"], ["y"], name="add"),
    ]
    model = make_model(
        nodes,
        inputs=[value("x", ["N", 2, 2, 2])],
        outputs=[value("y", ["N", 4])],
        initializers=[
            weight("w", rng.normal(size=(4, 2, 2, 2)).astype(np.float32)),
            weight("v", rng.normal(size=(4, 4)).astype(np.float32)),
            numpy_helper.from_array(np.array(0, np.float32), "zero"),
        ],
    )
    data = rng.normal(size=(64, 2, 2, 2)).astype(np.float32)
    made = quantise(model, tmp_path, data=data, method="minmax")
    assert snr_db(outputs(made, data), outputs(model, data)) > 20


def test_old_opsets_are_raised_for_per_channel_weights(tmp_path: Path) -> None:
    model = mlp()
    model.opset_import[0].version = 9
    made = quantise(model, tmp_path, data=np.random.default_rng(0).normal(size=(32, 16)).astype(np.float32))
    assert next(each.version for each in made.opset_import if each.domain == "") >= 13


def test_a_model_too_big_for_one_file_keeps_its_weights_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (graphs, qdq):
        monkeypatch.setattr(module, "EXTERNAL_BYTES", 100)
    made = quantise(conv_net(), tmp_path, data=images())
    inputs = images(8, seed=1)
    assert (tmp_path / "out.onnx.data").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "out.onnx",
        "out.onnx.data",
        "set.safetensors",
        "source.onnx",
    ]
    assert snr_db(outputs(made, inputs), outputs(conv_net(), inputs)) > 20


def test_the_same_recipe_gives_the_same_ranges(tmp_path: Path) -> None:
    one, two = (quantise(conv_net(), tmp_path, data=images(), name=name) for name in ("1.onnx", "2.onnx"))
    assert {each.name: each.raw_data for each in one.graph.initializer} == {
        each.name: each.raw_data for each in two.graph.initializer
    }


def test_a_model_without_inputs_has_nothing_left_to_quantise(tmp_path: Path) -> None:
    node = helper.make_node("Neg", ["w"], ["y"], name="neg")
    model = make_model(
        [node],
        inputs=[value("x", ["N", 4])],
        outputs=[value("y", [4])],
        initializers=[weight("w", np.ones(4, np.float32))],
    )
    with pytest.raises(VariantError, match="nothing is left of the graph"):
        quantise(model, tmp_path, data=np.ones((8, 4), np.float32))


def test_what_onnx_runtime_cannot_load_is_a_reason(tmp_path: Path) -> None:
    node = helper.make_node("Fly", ["x"], ["y"], name="fly", domain="birds")
    model = make_model(
        [node], inputs=[value("x", ["N", 4])], outputs=[value("y", ["N", 4])], opsets=[("", 17), ("birds", 1)]
    )
    with pytest.raises(VariantError, match=r"ONNX Runtime cannot load the model: .*Fly"):
        quantise(model, tmp_path, data=np.ones((8, 4), np.float32))


def placement(model: onnx.ModelProto) -> dict[str, list[str]]:
    """Return by node name what makes the inputs that are no constants, those of a constant's DQ node included."""
    makers = {name: node.op_type for node in model.graph.node for name in node.output}
    return {node.name: [makers[name] for name in node.input if name in makers] for node in model.graph.node}


def test_for_tensorrt_what_skips_a_convolution_is_quantised_and_the_convolution_is_not(tmp_path: Path) -> None:
    data = np.random.default_rng(0).normal(size=(32, 3, 16, 16)).astype(np.float32)
    made = quantise(residual_net(blocks=(2, 2)), tmp_path, data=data, settings=TENSORRT, method="minmax")
    found = placement(made)
    for block in ("0.0", "0.1", "1.0", "1.1"):  # 1.0 has a convolution on its skip
        assert found[f"{block}.add"] == ["Conv", "DequantizeLinear"]
        assert found[f"{block}.relu2"] == ["Add"]
    for name, makers in found.items():
        if "conv" in name or "down" in name or name in ("stem", "fc"):
            assert makers == ["DequantizeLinear", "DequantizeLinear"] or "Linear" in name
    down = next(node for node in made.graph.node if node.name == "1.0.down")
    assert [node.op_type for node in made.graph.node if down.output[0] in node.input] == ["QuantizeLinear"]


def test_quantised_skips_cost_no_accuracy(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data, inputs = (rng.normal(size=(count, 3, 16, 16)).astype(np.float32) for count in (64, 32))
    found = {}
    for how in ("by_op_types", "quantised"):
        settings = {**TENSORRT, "residual_skips": how}
        made = quantise(residual_net(blocks=(2, 2)), tmp_path, data=data, settings=settings, method="minmax")
        found[how] = snr_db(outputs(made, inputs), outputs(residual_net(blocks=(2, 2)), inputs))
    assert found["quantised"] > max(25, found["by_op_types"] - 1)


@pytest.mark.parametrize(
    ("excluded", "makers"),
    [
        ("0.0.add", ["Conv", "DequantizeLinear"]),  # its other input is what the next convolution reads
        ("1.0.add", ["Conv", "Conv"]),
        ("1.0.conv2", ["DequantizeLinear", "Conv"]),
    ],
)
def test_an_excluded_node_changes_what_is_quantised_around_it(tmp_path: Path, excluded: str, makers: list[str]) -> None:
    data = np.random.default_rng(0).normal(size=(16, 3, 16, 16)).astype(np.float32)
    made = quantise(residual_net(), tmp_path, data=data, settings=TENSORRT, method="minmax", excluded_nodes=[excluded])
    assert placement(made)[f"{excluded[:3]}.add"] == makers


@pytest.mark.parametrize(
    ("node", "shape", "data", "axis"),
    [
        (helper.make_node("Conv", ["x", "w"], ["y"], name="n", group=2), (6, 2, 3, 3), (16, 4, 6, 6), 0),
        (helper.make_node("Conv", ["x", "w"], ["y"], name="n"), (6, 4, 3), (16, 4, 6), 0),
        (helper.make_node("ConvTranspose", ["x", "w"], ["y"], name="n"), (4, 6, 2, 2), (16, 4, 6, 6), 1),
        (helper.make_node("Gemm", ["x", "w"], ["y"], name="n"), (4, 6), (16, 4), 1),
        (helper.make_node("Gemm", ["x", "w"], ["y"], name="n", transB=1), (6, 4), (16, 4), 0),
        (helper.make_node("MatMul", ["x", "w"], ["y"], name="n"), (4, 6), (16, 3, 4), 1),
        (helper.make_node("MatMul", ["x", "w"], ["y"], name="n"), (3, 4, 6), (16, 3, 2, 4), None),
        (helper.make_node("MatMul", ["w", "x"], ["y"], name="n"), (6, 4), (16, 4, 5), None),
    ],
    ids=["conv", "conv1d", "transposed conv", "gemm", "gemm transB", "matmul", "batched matmul", "matmul, left"],
)
def test_each_output_channel_has_a_range_and_what_is_summed_over_has_one(
    tmp_path: Path,
    node: onnx.NodeProto,
    shape: tuple[int, ...],
    data: tuple[int, ...],
    axis: int | None,
) -> None:
    rng = np.random.default_rng(0)
    model = make_model(
        [node],
        inputs=[value("x", ["N", *data[1:]])],
        outputs=[value("y", None)],
        initializers=[weight("w", rng.normal(size=shape).astype(np.float32))],
    )
    inputs = rng.normal(size=data).astype(np.float32)
    made = quantise(model, tmp_path, data=inputs, settings=TENSORRT, method="minmax")
    tensors = {each.name: numpy_helper.to_array(each) for each in made.graph.initializer}
    assert tensors["w_scale"].shape == (() if axis is None else (6,))
    assert not tensors["w_zero_point"].any()
    reader = next(each for each in made.graph.node if each.name.startswith("w_Dequantize"))
    assert [each.i for each in reader.attribute if each.name == "axis"] == ([] if axis is None else [axis])
    assert snr_db(outputs_as_written(made, inputs), outputs(model, inputs)) > 30


def test_weights_with_one_range_have_seven_bits_on_the_cpu_too(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="n")
    tensors = [weight("w", rng.normal(size=(3, 4, 6)).astype(np.float32))]
    model = make_model(
        [node], inputs=[value("x", ["N", 3, 2, 4])], outputs=[value("y", ["N", 3, 2, 6])], initializers=tensors
    )
    data = rng.normal(size=(16, 3, 2, 4)).astype(np.float32)
    made = quantise(model, tmp_path, data=data, method="minmax")
    stored = next(numpy_helper.to_array(each) for each in made.graph.initializer if each.name == "w_quantized")
    assert -64 <= stored.min() <= stored.max() <= 64
    assert snr_db(outputs(made, data), outputs(model, data)) > 25


def masked_attention(hidden: float) -> onnx.ModelProto:
    """Return one head; places (N, 4, 8) whose first feature is above one are hidden by a mask of this value."""
    rng = np.random.default_rng(3)
    one, other = ((rng.normal(size=(8, 8)) / 3).astype(np.float32) for _ in range(2))
    return make_model(
        [
            helper.make_node("Gather", ["x", "first"], ["marks"], name="marks", axis=2),
            helper.make_node("Greater", ["marks", "above"], ["is_hidden"], name="is_hidden"),
            helper.make_node("Cast", ["is_hidden"], ["ones"], name="ones", to=1),
            helper.make_node("Mul", ["ones", "hidden"], ["row"], name="row"),
            helper.make_node("Unsqueeze", ["row", "axis"], ["mask"], name="mask"),
            helper.make_node("MatMul", ["x", "wq"], ["q"], name="q"),
            helper.make_node("MatMul", ["x", "wk"], ["k"], name="k"),
            helper.make_node("Transpose", ["k"], ["kt"], name="kt", perm=[0, 2, 1]),
            helper.make_node("MatMul", ["q", "kt"], ["scores"], name="scores"),
            helper.make_node("Add", ["scores", "mask"], ["masked"], name="masked"),
            helper.make_node("Softmax", ["masked"], ["shares"], name="shares", axis=-1),
            helper.make_node("MatMul", ["shares", "x"], ["y"], name="y"),
        ],
        inputs=[value("x", ["N", 4, 8])],
        outputs=[value("y", ["N", 4, 8])],
        initializers=[
            weight("wq", one),
            weight("wk", other),
            weight("first", np.array(0)),
            weight("above", np.array(1, np.float32)),
            weight("hidden", np.array(hidden, np.float32)),
            weight("axis", np.array([1])),
        ],
    )


@pytest.mark.parametrize("method", ["entropy", "minmax", "percentile"])
def test_a_mask_destroys_no_range(tmp_path: Path, method: str) -> None:
    """Values of -3.4e38 have no range beside others: what adds the mask stays in FP32, and all around it is INT8."""
    net = masked_attention(float(np.finfo(np.float32).min))
    rng = np.random.default_rng(0)
    made = quantise(net, tmp_path, data=rng.normal(size=(64, 4, 8)).astype(np.float32), method=method)
    inputs = rng.normal(size=(32, 4, 8)).astype(np.float32)
    assert snr_db(outputs(made, inputs), outputs(net, inputs)) > 20
    readers = {node.name: node.input[0] for node in made.graph.node}
    makers = {name: node.op_type for node in made.graph.node for name in node.output}
    assert makers[readers["shares"]] == "Add"
    assert {makers[readers[name]] for name in ("q", "k", "scores", "y", "masked")} == {"DequantizeLinear"}
    assert all(float(scale.max()) < 1 for scale in scales(made).values())
