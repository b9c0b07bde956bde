"""Faults of lower precision: of calibration, of converters, and of networks that a precision cannot hold."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

from fault_corpus.cases import Case, Change, Fault, VariantRequest, model_of
from fault_corpus.graph_faults import FP16, INT8, LENET, RESIDUAL, TRANSFORMER, on_model
from fault_corpus.planting import (
    Array,
    change_weight,
    matrix_of,
    node_of,
    scale_through,
    set_weight,
    weight_of,
)

Variant = Callable[[onnx.ModelProto], object]


def precision_faults() -> Iterator[Fault]:
    """Yield every one; what is wrong is the precision, not the network."""
    for fault in (*_of_calibration(), *_of_int8_converters(), *_of_fp16_converters(), *_of_ranges()):
        yield replace(fault, is_network_right=True)


def calibrated(change: Callable[[Array], Array]) -> Change:
    """Return a change of the calibration set alone."""
    return lambda case: replace(case, calibration=change(case.calibration))


def converted(change: Variant) -> Change:
    """Return a fault of the converter: the variant is changed after it was made."""

    def change_file(request: VariantRequest) -> None:
        model = onnx.load(request.target)
        change(model)
        onnx.save(model, request.target)

    return lambda case: replace(case, change_variant=change_file)


def set_up(**settings: Any) -> Change:
    """Return a converter that is set up otherwise than the recipe says."""

    def change(variant: dict[str, Any]) -> dict[str, Any]:
        return {**variant, "settings": {**variant["settings"], **settings}}

    return lambda case: replace(case, change_settings=change)


def _of_calibration() -> Iterator[Fault]:
    for network in (LENET, RESIDUAL):
        yield Fault(
            kind="calibration on unnormalised data",
            network=network,
            precision=INT8,
            says="0 to 255 for 0 to 1",
            plant=calibrated(lambda a: a * 255),
        )
        yield Fault(
            kind="calibration on constant data",
            network=network,
            precision=INT8,
            plant=calibrated(lambda a: np.full_like(a, 0.5)),
        )
        yield Fault(
            kind="calibration on too little data",
            network=network,
            precision=INT8,
            says="one sample, the faintest",
            plant=calibrated(lambda a: a[[int(a.reshape(len(a), -1).std(axis=1).argmin())]]),
        )
    yield Fault(
        kind="calibration on constant data",
        network=TRANSFORMER,
        precision=INT8,
        plant=calibrated(lambda a: np.full_like(a, 5)),
    )
    yield Fault(
        kind="calibration on other data",
        network=RESIDUAL,
        precision=INT8,
        says="images of a third of the contrast",
        plant=calibrated(lambda a: ((a - a.mean()) * np.float32(0.33) + a.mean()).astype(a.dtype)),
    )
    for network in (LENET, RESIDUAL, TRANSFORMER):
        yield Fault(
            kind="stale calibration cache",
            network=network,
            precision=INT8,
            says="ranges of the version before",
            plant=lambda case: replace(case, change_variant=_stale_ranges(case)),
        )


def _stale_ranges(case: Case) -> Callable[[VariantRequest], None]:
    """Give the variant the activations' ranges that the version before was calibrated to."""
    older = model_of(case.network, 1)
    quieten(older, case.network)

    def change(request: VariantRequest) -> None:
        place = request.target.with_name("older")
        place.mkdir()
        onnx.save(older, place / "source.onnx")
        request.make_again(place / "source.onnx", place / "model.onnx")
        ranges = _ranges(onnx.load(place / "model.onnx"))
        shutil.rmtree(place)
        model = onnx.load(request.target)
        for name, (scale, zero) in ranges.items():
            try:
                set_weight(model, f"{name}_scale", scale)
                set_weight(model, f"{name}_zero_point", zero)
            except StopIteration:
                continue
        onnx.save(model, request.target)

    return change


def quieten(model: onnx.ModelProto, network: str) -> None:
    """Make the values behind the first layers a third of what they are, and the next weights larger to make up."""
    if network == LENET:
        scale_through(model, "c1", "c3", np.full(6, 0.3, np.float32))
    elif network == RESIDUAL:
        for part in ("weight", "bias"):
            change_weight(model, f"one.bn1.{part}", lambda a: a * np.float32(0.3))
        change_weight(model, "one.conv2.weight", lambda a: a / np.float32(0.3))
    else:
        for part in ("weight", "bias"):
            change_weight(model, f"layers.0.norm2.{part}", lambda a: a * np.float32(0.3))
        change_weight(model, matrix_of(model, "/layers.0/up/MatMul"), lambda a: a / np.float32(0.3))


def _ranges(model: onnx.ModelProto) -> dict[str, tuple[Array, Array]]:
    constants = {tensor.name for tensor in model.graph.initializer}
    found = {}
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear" and node.input[0] not in constants:
            scale, zero = node.input[1:3]
            found[scale.removesuffix("_scale")] = weight_of(model, scale), weight_of(model, zero)
    return found


def _of_int8_converters() -> Iterator[Fault]:
    def drop_pair(model: onnx.ModelProto, node: str) -> None:
        """Feed a node with the values before they are quantised."""
        reader = node_of(model, node)
        producers = {name: each for each in model.graph.node for name in each.output}
        dequantise = producers[reader.input[0]]
        reader.input[0] = producers[dequantise.input[0]].input[0]

    def shift_zero(model: onnx.ModelProto, by: int) -> None:
        quantise = [n for n in model.graph.node if n.op_type == "QuantizeLinear"][2]
        readers = [n for n in model.graph.node if n.op_type == "DequantizeLinear" and n.input[0] == quantise.output[0]]
        zero = weight_of(model, quantise.input[2])
        other = onnx.numpy_helper.from_array(
            np.array(int(zero) + (by if zero < 128 else -by), zero.dtype), "other_zero"
        )
        model.graph.initializer.append(other)
        for node in readers:
            node.input[2] = "other_zero"

    def scale_channel(model: onnx.ModelProto) -> None:
        """Change the scale of the first two channels of the second layer's weights."""
        scales = {tensor.name for tensor in model.graph.initializer if list(tensor.dims)[1:] == [] and tensor.dims}
        weights = [
            node.input[1]
            for node in model.graph.node
            if node.op_type == "DequantizeLinear" and "weight" in node.input[0] and node.input[1] in scales
        ]
        change_weight(model, weights[1], lambda a: np.concatenate([a[:2] * 4, a[2:]]))

    yield Fault(
        kind="a missing q/dq pair",
        network=LENET,
        precision=INT8,
        layer="/c3/Conv",
        plant=converted(lambda m: drop_pair(m, "/c3/Conv")),
    )
    yield Fault(
        kind="a missing q/dq pair",
        network=RESIDUAL,
        precision=INT8,
        layer="/two/conv2/Conv",
        plant=converted(lambda m: drop_pair(m, "/two/conv2/Conv")),
    )
    for network in (LENET, RESIDUAL):
        yield Fault(
            kind="wrong zero point",
            network=network,
            precision=INT8,
            layer="",
            plant=converted(lambda m: shift_zero(m, 40)),
        )
        yield Fault(
            kind="wrong scale of two channels",
            network=network,
            precision=INT8,
            layer="",
            plant=converted(scale_channel),
        )
    for network, first, last in ((LENET, "/c1/Conv", "/output/Gemm"), (RESIDUAL, "/stem/Conv", "/fc/Gemm")):
        for word, node in (("first", first), ("last", last)):
            yield Fault(
                kind=f"quantised {word} layer",
                network=network,
                precision=INT8,
                layer=node,
                says="it was excluded, and the converter quantises it all the same",
                plant=lambda case, node=node: replace(  # type: ignore[misc]
                    case,
                    options=("--nodes-to-exclude", node),
                    change_settings=lambda variant: {**variant, "excluded_nodes": []},
                ),
            )
    yield Fault(
        kind="per tensor where per channel is needed",
        network=LENET,
        precision=INT8,
        layer="/f5/Gemm",
        says="a dead unit has large weights",
        plant=lambda case: set_up(per_channel=False)(on_model(lambda m: dead_unit(m, "f5"))(case)),
    )
    yield Fault(
        kind="per tensor where per channel is needed",
        network=RESIDUAL,
        precision=INT8,
        layer="/one/conv1/Conv",
        plant=lambda case: set_up(per_channel=False)(on_model(dead_channel)(case)),
    )
    for network in (LENET, RESIDUAL, TRANSFORMER):
        yield Fault(
            kind="silent fp32 instead of int8",
            network=network,
            precision=INT8,
            plant=lambda case: replace(case, change_variant=_give_source),
        )


def dead_unit(model: onnx.ModelProto, layer: str) -> None:
    """Give a unit that no input wakes weights two hundred times as large: the network is the same."""
    rng = np.random.default_rng(0)
    weight, bias = weight_of(model, f"{layer}.weight"), weight_of(model, f"{layer}.bias")
    weight[3] = rng.normal(size=weight.shape[1:]) * np.abs(weight).max() * 60
    reader = next(t.name for t in model.graph.initializer if t.name == "f6.weight")
    change_weight(model, reader, lambda a: np.where(np.arange(a.shape[1]) == 3, 0, a))
    bias[3] = -float(np.abs(weight[3]).sum()) * 4
    set_weight(model, f"{layer}.weight", weight)
    set_weight(model, f"{layer}.bias", bias)


def dead_channel(model: onnx.ModelProto) -> None:
    """The same for a channel of a convolution with its batch norm."""
    change_weight(
        model, "one.conv1.weight", lambda a: np.where(np.arange(len(a))[:, None, None, None] == 2, a * 300, a)
    )
    change_weight(model, "one.bn1.bias", lambda a: np.where(np.arange(len(a)) == 2, -1e5, a))
    change_weight(model, "one.conv2.weight", lambda a: np.where(np.arange(a.shape[1])[:, None, None] == 2, 0, a))


def dead_reference(case: Case) -> Case:
    """Return a case whose golden outputs are those of its own changed network, computed by ONNX's own evaluator."""
    from onnx.reference import ReferenceEvaluator

    names = [output.name for output in case.model.graph.output]
    found = ReferenceEvaluator(case.model).run(names, {case.input: case.inputs})
    return replace(case, golden={**case.golden, **{f"output.{n}": a for n, a in zip(names, found, strict=True)}})


def _give_source(request: VariantRequest) -> None:
    shutil.copyfile(request.source, request.target)


def _of_fp16_converters() -> Iterator[Fault]:
    def flush(model: onnx.ModelProto) -> None:
        for tensor in list(model.graph.initializer):
            if tensor.data_type == onnx.TensorProto.FLOAT16:
                array = weight_of(model, tensor.name)
                set_weight(model, tensor.name, np.where(np.abs(array) < 6.104e-5, 0, array))

    for network in (LENET, RESIDUAL, TRANSFORMER):
        yield Fault(
            kind="silent fp32 instead of fp16",
            network=network,
            precision=FP16,
            plant=lambda case: replace(case, change_variant=_give_source),
        )
        yield Fault(
            kind="stale variant",
            network=network,
            precision=FP16,
            says="the variant of the version before",
            plant=lambda case: replace(case, change_variant=_stale_variant(case)),
        )
    yield Fault(
        kind="denormals flushed",
        network=LENET,
        precision=FP16,
        layer="/c1/Conv",
        says="weights about 0.00001, right in FP16's denormals",
        plant=lambda case: converted(flush)(on_model(small_weights)(case)),
    )


def small_weights(model: onnx.ModelProto) -> None:
    """Make the first layer's weights small and the next one's large: the network is the same."""
    scale_through(model, "c1", "c3", np.full(6, 2.0**-13, np.float32))


def _stale_variant(case: Case) -> Callable[[VariantRequest], None]:
    older = model_of(case.network, 1)

    def change(request: VariantRequest) -> None:
        place = request.target.with_name("older")
        place.mkdir()
        onnx.save(older, place / "source.onnx")
        request.make_again(place / "source.onnx", place / "model.onnx")
        shutil.copyfile(place / "model.onnx", request.target)
        shutil.rmtree(place)

    return change


def _of_ranges() -> Iterator[Fault]:
    yield Fault(
        kind="quantised mask",
        network=TRANSFORMER,
        precision=INT8,
        layer="/layers.0/attention/Add",
        says="scores share their range with the mask's -10000",
        plant=lambda case: replace(case, options=()),
    )

    def loud_scores(model: onnx.ModelProto) -> None:
        for part in ("q", "k"):
            change_weight(model, matrix_of(model, f"/layers.0/attention/{part}/MatMul"), lambda a: a * 300)
            change_weight(model, f"layers.0.attention.{part}.bias", lambda a: a * 300)
        constant = node_of(model, "/layers.0/attention/Constant_3").attribute[0].t
        value = onnx.numpy_helper.to_array(constant) / np.float32(90_000)
        constant.CopyFrom(onnx.numpy_helper.from_array(value.astype(np.float32)))

    def loud_stream(model: onnx.ModelProto) -> None:
        """Everything that is added to the stream is larger; only layer norms read it."""
        factor = np.float32(30_000)
        for name in ("words.weight", "places"):
            change_weight(model, name, lambda a: a * factor)
        for layer in (0, 1):
            for node, bias in (("attention/out", "attention.out.bias"), ("down", "down.bias")):
                change_weight(model, matrix_of(model, f"/layers.{layer}/{node}/MatMul"), lambda a: a * factor)
                change_weight(model, f"layers.{layer}.{bias}", lambda a: a * factor)

    def loud_sum(model: onnx.ModelProto) -> None:
        for name in ("norm.weight", "norm.bias"):
            change_weight(model, name, lambda a: a * 6000)
        change_weight(model, "head.weight", lambda a: a / 6000)

    def loud_maps(model: onnx.ModelProto) -> None:
        for part in ("weight", "bias"):
            change_weight(model, f"one.bn1.{part}", lambda a: a * 100_000)
        change_weight(model, "one.conv2.weight", lambda a: a / 100_000)

    def outlier(model: onnx.ModelProto) -> None:
        scale_through(model, "c1", "c3", np.array([1, 1, 400, 1, 1, 1], np.float32))

    def outlier_maps(model: onnx.ModelProto) -> None:
        factors = np.ones(12, np.float32)
        factors[4] = 400
        for part in ("weight", "bias"):
            change_weight(model, f"one.bn1.{part}", lambda a: a * factors)
        change_weight(model, "one.conv2.weight", lambda a: a / factors[:, None, None])

    def outlier_features(model: onnx.ModelProto) -> None:
        factors = np.ones(32, np.float32)
        factors[7] = 400
        for part in ("weight", "bias"):
            change_weight(model, f"layers.0.norm2.{part}", lambda a: a * factors)
        change_weight(model, matrix_of(model, "/layers.0/up/MatMul"), lambda a: a / factors[:, None])

    yield Fault(
        kind="fp16 overflow in softmax",
        network=TRANSFORMER,
        precision=FP16,
        layer="/layers.0/attention/MatMul",
        says="scores beyond 65504 before they are scaled",
        plant=on_model(loud_scores),
    )
    yield Fault(
        kind="fp16 overflow in layer norm",
        network=TRANSFORMER,
        precision=FP16,
        layer="/words/Gather",
        says="the stream that it reads is beyond 65504, from the embeddings on",
        plant=on_model(loud_stream),
    )
    yield Fault(
        kind="fp16 overflow in a large sum",
        network=TRANSFORMER,
        precision=FP16,
        layer="/ReduceSum",
        says="the converter lets FP16 into a sum that it keeps in FP32 otherwise",
        plant=lambda case: set_up(blocked_ops=[])(on_model(loud_sum)(case)),
    )
    yield Fault(
        kind="fp16 overflow between layers",
        network=RESIDUAL,
        precision=FP16,
        layer="/one/bn1/BatchNormalization",
        plant=on_model(loud_maps),
    )
    for network, layer, change in (
        (LENET, "/c1/Conv", outlier),
        (RESIDUAL, "/one/bn1/BatchNormalization", outlier_maps),
        (TRANSFORMER, "/layers.0/norm2/LayerNormalization", outlier_features),
    ):
        yield Fault(
            kind="one outlier channel",
            network=network,
            precision=INT8,
            layer=layer,
            says="one channel is 400 times as loud: all others share what is left of eight bits",
            plant=on_model(change),
        )
