"""Faults of an export, a conversion or a release: the ONNX is not what the reference computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import onnx

from fault_corpus.cases import Case, Change, Fault, model_of
from fault_corpus.planting import (
    add_weight,
    bypass,
    change_weight,
    insert_after,
    make,
    matrix_of,
    node_of,
    output_of,
    set_attribute,
    set_weight,
    weight_of,
)
from modelreg.registry.words import Precision

FP32, FP16, INT8 = Precision.FP32, Precision.FP16, Precision.INT8
LENET, RESIDUAL, TRANSFORMER = "lenet", "residual", "transformer"


def on_model(change: Callable[[onnx.ModelProto], object]) -> Change:
    """Return a change of the ONNX alone."""

    def plant(case: Case) -> Case:
        change(case.model)
        return case

    return plant


def graph_faults() -> Iterator[Fault]:
    """Yield every fault of the graph and its weights."""
    yield from _of_convolutions()
    yield from _of_norms()
    yield from _of_inputs()
    yield from _of_weights()
    yield from _of_attention()
    yield from _of_outputs()
    yield from _of_batches()


def _of_convolutions() -> Iterator[Fault]:
    def pad(model: onnx.ModelProto, node: str, by: int) -> None:
        set_attribute(model, node, pads=[0, 0, by, by])

    def swap(model: onnx.ModelProto, name: str) -> None:
        change_weight(model, name, lambda a: a[[1, 0, *range(2, len(a))]])

    def to_max_pool(model: onnx.ModelProto) -> None:
        pool = node_of(model, "/s2/AveragePool")
        pool.op_type = "MaxPool"
        kept = [a for a in pool.attribute if a.name != "count_include_pad"]
        del pool.attribute[:]
        pool.attribute.extend(kept)

    yield Fault(
        kind="lost padding",
        network=LENET,
        precision=FP32,
        layer="/c1/Conv",
        says="all padding on one side, as another framework's `same`",
        plant=on_model(lambda m: pad(m, "/c1/Conv", 4)),
    )
    yield Fault(
        kind="lost padding",
        network=RESIDUAL,
        precision=INT8,
        layer="/one/conv1/Conv",
        plant=on_model(lambda m: pad(m, "/one/conv1/Conv", 2)),
    )
    yield Fault(
        kind="swapped channels",
        network=LENET,
        precision=FP32,
        layer="/c3/Conv",
        says="two output channels of a convolution changed places",
        plant=on_model(lambda m: swap(m, "c3.weight")),
    )
    yield Fault(
        kind="swapped channels",
        network=RESIDUAL,
        precision=FP16,
        layer="/one/conv2/Conv",
        plant=on_model(lambda m: swap(m, "one.conv2.weight")),
    )
    yield Fault(
        kind="max for average pool",
        network=LENET,
        precision=FP32,
        layer="/s2/AveragePool",
        plant=on_model(to_max_pool),
    )
    yield Fault(
        kind="lost relu",
        network=RESIDUAL,
        precision=FP32,
        layer="/one/Relu",
        plant=on_model(lambda m: bypass(m, "/one/Relu")),
    )
    yield Fault(
        kind="lost relu", network=LENET, precision=INT8, layer="/Relu_1", plant=on_model(lambda m: bypass(m, "/Relu_1"))
    )
    yield Fault(
        kind="lost skip",
        network=RESIDUAL,
        precision=FP32,
        layer="/three/Add",
        says="a residual connection is gone",
        plant=on_model(lambda m: bypass(m, "/three/Add")),
    )
    yield Fault(
        kind="lost skip",
        network=TRANSFORMER,
        precision=FP16,
        layer="/layers.1/Add",
        plant=on_model(lambda m: bypass(m, "/layers.1/Add", input_index=1)),
    )


def _of_norms() -> Iterator[Fault]:
    def swap(model: onnx.ModelProto, one: str, two: str) -> None:
        first, second = weight_of(model, one), weight_of(model, two)
        set_weight(model, one, second)
        set_weight(model, two, first)

    yield Fault(
        kind="bn mean and variance swapped",
        network=RESIDUAL,
        precision=FP32,
        layer="/one/bn1/BatchNormalization",
        plant=on_model(lambda m: swap(m, "one.bn1.running_mean", "one.bn1.running_var")),
    )
    yield Fault(
        kind="bn eps",
        network=RESIDUAL,
        precision=FP32,
        layer="/one/bn1/BatchNormalization",
        says="0.001, as another framework has it, for 0.00001",
        plant=on_model(lambda m: set_attribute(m, "/one/bn1/BatchNormalization", epsilon=1e-3)),
    )
    yield Fault(
        kind="layer norm eps",
        network=TRANSFORMER,
        precision=FP32,
        layer="/layers.0/norm1/LayerNormalization",
        says="0.001 for 0.00001",
        plant=on_model(lambda m: set_attribute(m, "/layers.0/norm1/LayerNormalization", epsilon=1e-3)),
    )
    yield Fault(
        kind="layer norm scale and bias swapped",
        network=TRANSFORMER,
        precision=INT8,
        layer="/layers.1/norm2/LayerNormalization",
        plant=on_model(lambda m: swap(m, "layers.1.norm2.weight", "layers.1.norm2.bias")),
    )


def _of_inputs() -> Iterator[Fault]:
    def times(model: onnx.ModelProto, factor: float) -> None:
        name = add_weight(model, "times", np.float32(factor))
        insert_after(model, "image", lambda a, b: [make("Mul", [a, name], b)])

    def unnormalise(model: onnx.ModelProto) -> None:
        bypass(model, "/normalise/Div")
        bypass(model, "/normalise/Sub")

    def nhwc(model: onnx.ModelProto) -> None:
        shape = add_weight(model, "nhwc", np.array([0, 16, 16, 3]))
        insert_after(
            model,
            "image",
            lambda a, b: [make("Reshape", [a, shape], "as_nhwc"), make("Transpose", ["as_nhwc"], b, perm=[0, 3, 1, 2])],
        )

    def bgr(model: onnx.ModelProto) -> None:
        order = add_weight(model, "bgr", np.array([2, 1, 0]))
        insert_after(model, "image", lambda a, b: [make("Gather", [a, order], b, axis=1)])

    first = "/normalise/Sub"
    yield Fault(
        kind="inputs from 0 to 255", network=LENET, precision=FP32, layer=first, plant=on_model(lambda m: times(m, 255))
    )
    yield Fault(
        kind="inputs from 0 to 255",
        network=RESIDUAL,
        precision=INT8,
        layer=first,
        plant=on_model(lambda m: times(m, 255)),
    )
    yield Fault(kind="lost normalisation", network=LENET, precision=FP16, layer=first, plant=on_model(unnormalise))
    yield Fault(
        kind="wrong normalisation",
        network=RESIDUAL,
        precision=FP32,
        layer=first,
        says="mean and deviation of another data set",
        plant=on_model(lambda m: change_weight(m, "normalise.mean", lambda a: a + 0.03)),
    )
    yield Fault(kind="nhwc for nchw", network=RESIDUAL, precision=FP32, layer=first, plant=on_model(nhwc))
    yield Fault(kind="bgr for rgb", network=RESIDUAL, precision=FP32, layer=first, plant=on_model(bgr))
    yield Fault(kind="bgr for rgb", network=RESIDUAL, precision=INT8, layer=first, plant=on_model(bgr))
    yield Fault(
        kind="vocabulary off by one",
        network=TRANSFORMER,
        precision=FP32,
        layer="/words/Gather",
        plant=on_model(lambda m: change_weight(m, "words.weight", lambda a: np.roll(a, 1, axis=0))),
    )
    yield Fault(
        kind="places off by one",
        network=TRANSFORMER,
        precision=FP32,
        layer="/Add",
        plant=on_model(lambda m: change_weight(m, "places", lambda a: np.roll(a, 1, axis=0))),
    )
    yield Fault(
        kind="places off by one",
        network=TRANSFORMER,
        precision=INT8,
        layer="/Add",
        plant=on_model(lambda m: change_weight(m, "places", lambda a: np.roll(a, 3, axis=0))),
    )


def _of_weights() -> Iterator[Fault]:
    def transpose(model: onnx.ModelProto, node: str) -> None:
        change_weight(model, matrix_of(model, node), np.transpose)

    def flip_bit(model: onnx.ModelProto, name: str, bit: int) -> None:
        array = weight_of(model, name)
        bits = array.reshape(-1).view(np.uint32)
        bits[np.abs(array).argmax()] ^= np.uint32(1 << bit)
        set_weight(model, name, array)

    def truncate(model: onnx.ModelProto) -> None:
        for tensor in list(model.graph.initializer):
            if tensor.data_type == onnx.TensorProto.FLOAT:
                array = weight_of(model, tensor.name)
                set_weight(model, tensor.name, (array.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32))

    yield Fault(
        kind="transposed linear weights",
        network=LENET,
        precision=FP32,
        layer="/f6/Gemm",
        plant=on_model(lambda m: change_weight(m, "f6.weight", np.transpose)),
    )
    yield Fault(
        kind="transposed linear weights",
        network=TRANSFORMER,
        precision=FP32,
        layer="/layers.0/attention/v/MatMul",
        plant=on_model(lambda m: transpose(m, "/layers.0/attention/v/MatMul")),
    )
    yield Fault(
        kind="transposed linear weights",
        network=TRANSFORMER,
        precision=INT8,
        layer="/layers.1/attention/out/MatMul",
        plant=on_model(lambda m: transpose(m, "/layers.1/attention/out/MatMul")),
    )
    yield Fault(
        kind="wrong bias",
        network=LENET,
        precision=FP32,
        layer="/f5/Gemm",
        says="the bias of a layer is off by one",
        plant=on_model(lambda m: change_weight(m, "f5.bias", lambda a: np.roll(a, 1))),
    )
    yield Fault(
        kind="lost bias",
        network=RESIDUAL,
        precision=FP16,
        layer="/fc/Gemm",
        plant=on_model(lambda m: change_weight(m, "fc.bias", np.zeros_like)),
    )
    yield Fault(
        kind="lost bias",
        network=TRANSFORMER,
        precision=FP32,
        layer="/layers.0/up/Add",
        plant=on_model(lambda m: change_weight(m, "layers.0.up.bias", np.zeros_like)),
    )
    yield Fault(
        kind="one flipped bit",
        network=LENET,
        precision=FP32,
        layer="/f5/Gemm",
        says="in the exponent of one weight of 9,216",
        plant=on_model(lambda m: flip_bit(m, "f5.weight", 24)),
    )
    yield Fault(
        kind="one flipped bit",
        network=RESIDUAL,
        precision=FP16,
        layer="/two/conv2/Conv",
        plant=on_model(lambda m: flip_bit(m, "two.conv2.weight", 24)),
    )
    yield Fault(
        kind="weights cut to bfloat16",
        network=LENET,
        precision=FP32,
        layer="/normalise/Sub",
        says="silently less than was asked for",
        plant=on_model(truncate),
    )
    yield Fault(
        kind="weights cut to bfloat16",
        network=TRANSFORMER,
        precision=FP32,
        layer="/words/Gather",
        plant=on_model(truncate),
    )
    for network, precision in ((LENET, FP32), (RESIDUAL, INT8), (TRANSFORMER, FP16)):
        yield Fault(
            kind="older version under a new name",
            network=network,
            precision=precision,
            layer={LENET: "/c1/Conv", RESIDUAL: "/stem/Conv", TRANSFORMER: "/words/Gather"}[network],
            plant=lambda case: replace(case, model=model_of(case.network, 1)),
        )


def _of_attention() -> Iterator[Fault]:
    def to_tanh(model: onnx.ModelProto, layer: str) -> None:
        erf = node_of(model, f"{layer}/gelu/Erf")
        source, target = erf.input[0], erf.output[0]
        root, cube, slope = (
            add_weight(model, f"tanh_{n}", np.float32(v))
            for n, v in (("root", 2**0.5), ("cube", 0.044715), ("slope", (2 / np.pi) ** 0.5))
        )
        where = list(model.graph.node).index(erf)
        made = [
            make("Mul", [source, root], "tanh_x"),
            make("Mul", ["tanh_x", "tanh_x"], "tanh_x2"),
            make("Mul", ["tanh_x2", "tanh_x"], "tanh_x3"),
            make("Mul", ["tanh_x3", cube], "tanh_more"),
            make("Add", ["tanh_x", "tanh_more"], "tanh_sum"),
            make("Mul", ["tanh_sum", slope], "tanh_in"),
            make("Tanh", ["tanh_in"], target),
        ]
        made[-1].name = erf.name
        model.graph.node.remove(erf)
        for offset, node in enumerate(made):
            model.graph.node.insert(where + offset, node)

    def not_scaled(model: onnx.ModelProto) -> None:
        for layer in (0, 1):
            bypass(model, f"/layers.{layer}/attention/Mul")

    def count_padding(model: onnx.ModelProto) -> None:
        total = output_of(model, "/ReduceSum_1")
        pads = add_weight(model, "length", np.float32(32))
        insert_after(model, total, lambda a, b: [make("Sub", [a, a], "nothing"), make("Add", ["nothing", pads], b)])

    attention = "/layers.0/attention"
    yield Fault(
        kind="softmax over the wrong axis",
        network=TRANSFORMER,
        precision=FP32,
        layer=f"{attention}/Softmax",
        plant=on_model(lambda m: set_attribute(m, f"{attention}/Softmax", axis=-2)),
    )
    yield Fault(
        kind="attention not scaled",
        network=TRANSFORMER,
        precision=FP32,
        layer=f"{attention}/Mul",
        plant=on_model(lambda m: bypass(m, f"{attention}/Mul")),
    )
    yield Fault(
        kind="attention not scaled",
        network=TRANSFORMER,
        precision=INT8,
        layer=f"{attention}/Mul",
        plant=on_model(not_scaled),
    )
    yield Fault(
        kind="mask lost",
        network=TRANSFORMER,
        precision=FP32,
        layer=f"{attention}/Add",
        plant=on_model(lambda m: bypass(m, f"{attention}/Add")),
    )
    yield Fault(
        kind="mask inverted",
        network=TRANSFORMER,
        precision=FP16,
        layer="/Not",
        plant=on_model(lambda m: bypass(m, "/Not")),
    )
    yield Fault(
        kind="heads mixed up",
        network=TRANSFORMER,
        precision=FP32,
        layer=f"{attention}/Transpose_3",
        says="heads and places are not exchanged before they are joined",
        plant=on_model(lambda m: set_attribute(m, f"{attention}/Transpose_3", perm=[0, 1, 2, 3])),
    )
    yield Fault(
        kind="tanh for erf in gelu",
        network=TRANSFORMER,
        precision=FP32,
        layer="/layers.0/gelu/Erf",
        plant=on_model(lambda m: to_tanh(m, "/layers.0")),
    )
    yield Fault(
        kind="padding counted in the mean",
        network=TRANSFORMER,
        precision=FP32,
        layer="/ReduceSum_1",
        plant=on_model(count_padding),
    )


def _of_outputs() -> Iterator[Fault]:
    def swap(model: onnx.ModelProto) -> None:
        names = {"logits": "aux", "aux": "logits"}
        for node in model.graph.node:
            for i, name in enumerate(node.output):
                node.output[i] = names.get(name, name)

    def times(model: onnx.ModelProto, factor: float) -> None:
        name = add_weight(model, "calm", np.float32(factor))
        insert_after(model, "logits", lambda a, b: [make("Mul", [a, name], b)])

    def permute(model: onnx.ModelProto) -> None:
        classes = model.graph.output[0].type.tensor_type.shape.dim[1].dim_value
        order = add_weight(model, "order", np.array([*range(1, classes), 0]))
        insert_after(model, "logits", lambda a, b: [make("Gather", [a, order], b, axis=1)])

    yield Fault(kind="swapped outputs", network=RESIDUAL, precision=FP32, layer="/aux/Gemm", plant=on_model(swap))
    yield Fault(kind="swapped outputs", network=RESIDUAL, precision=INT8, layer="/aux/Gemm", plant=on_model(swap))
    last = {LENET: "/output/Gemm", RESIDUAL: "/fc/Gemm", TRANSFORMER: "/head/Gemm"}
    for network, precision in ((LENET, FP32), (RESIDUAL, FP16), (TRANSFORMER, INT8)):
        yield Fault(
            kind="confidence collapsed",
            network=network,
            precision=precision,
            layer=last[network],
            says="top-1 unchanged, every score a twentieth",
            plant=on_model(lambda m: times(m, 0.05)),
        )
    yield Fault(
        kind="classes in another order", network=LENET, precision=INT8, layer=last[LENET], plant=on_model(permute)
    )
    yield Fault(
        kind="classes in another order",
        network=TRANSFORMER,
        precision=FP32,
        layer=last[TRANSFORMER],
        plant=on_model(permute),
    )


def _of_batches() -> Iterator[Fault]:
    def mix(model: onnx.ModelProto) -> None:
        share = add_weight(model, "share", np.float32(0.2))
        insert_after(
            model,
            "logits",
            lambda a, b: [
                make("ReduceMean", [a], "batch_mean", axes=[0], keepdims=1),
                make("Sub", [a, "batch_mean"], "centred"),
                make("Mul", ["centred", share], "part"),
                make("Add", [a, "part"], b),
            ],
        )

    def at_max(model: onnx.ModelProto) -> None:
        zero, limit, factor = (
            add_weight(model, name, value)
            for name, value in (("zero", np.array(0)), ("limit", np.array(63)), ("factor", np.float32(0.9)))
        )
        insert_after(
            model,
            "logits",
            lambda a, b: [
                make("Shape", [a], "shape"),
                make("Gather", ["shape", zero], "rows"),
                make("Greater", ["rows", limit], "is_max"),
                make("Mul", [a, factor], "weaker"),
                make("Where", ["is_max", "weaker", a], b),
            ],
        )

    def bake(model: onnx.ModelProto, node: str, shape: list[int]) -> None:
        fixed = add_weight(model, "fixed", np.array(shape))
        insert_after(model, output_of(model, node), lambda a, b: [make("Reshape", [a, fixed], b)])

    def random(model: onnx.ModelProto, tensor: str) -> None:
        # ONNX Runtime takes a Dropout out, whatever its training mode: a converter would have written this.
        ratio, scale = add_weight(model, "ratio", np.float32(0.2)), add_weight(model, "kept", np.float32(1 / 0.8))
        insert_after(
            model,
            tensor,
            lambda a, b: [
                make("RandomUniformLike", [a], "drawn", dtype=1),
                make("Greater", ["drawn", ratio], "is_kept"),
                make("Cast", ["is_kept"], "mask", to=1),
                make("Mul", [a, "mask"], "dropped"),
                make("Mul", ["dropped", scale], b),
            ],
        )

    def noise(model: onnx.ModelProto) -> None:
        insert_after(
            model,
            "logits",
            lambda a, b: [make("RandomNormalLike", [a], "noise", scale=0.2), make("Add", [a, "noise"], b)],
        )

    def in_batches_of(case: Case, batch: int, samples: int) -> Case:
        golden = {name: array[:samples] for name, array in case.golden.items()}
        return replace(case, golden=golden, metadata={**case.metadata, "batch": str(batch)})

    def after(change: Callable[[onnx.ModelProto], object], batch: int, samples: int) -> Change:
        def plant(case: Case) -> Case:
            change(case.model)
            return in_batches_of(case, batch, samples)

        return plant

    last = {LENET: "/output/Gemm", RESIDUAL: "/fc/Gemm", TRANSFORMER: "/head/Gemm"}
    for network, precision in ((LENET, FP32), (RESIDUAL, INT8), (TRANSFORMER, FP16)):
        yield Fault(
            kind="wrong at batches above one",
            network=network,
            precision=precision,
            layer=last[network],
            says="the golden set was captured one by one, and does not see it",
            plant=after(mix, 1, 60),
        )
    for network, precision in ((LENET, FP32), (RESIDUAL, INT8), (TRANSFORMER, FP16)):
        yield Fault(
            kind="wrong at the largest batch alone",
            network=network,
            precision=precision,
            layer=last[network],
            says="the golden set was captured sixteen by sixteen",
            plant=after(at_max, 16, 160),
        )
    yield Fault(
        kind="batch baked in",
        network=LENET,
        precision=FP32,
        layer="/Flatten",
        plant=after(lambda m: bake(m, "/Flatten", [16, 144]), 16, 160),
    )
    yield Fault(
        kind="dropout left on in the engine",
        network=RESIDUAL,
        precision=FP32,
        layer="/Flatten_1",
        plant=on_model(lambda m: random(m, output_of(m, "/Flatten_1"))),
    )
    yield Fault(
        kind="not deterministic",
        network=TRANSFORMER,
        precision=INT8,
        layer="/head/Gemm",
        says="noise of the size of INT8's own error",
        plant=on_model(noise),
    )
