"""The realised precision of TensorRT plans, from what the inspector of 8.6.0 told on an H200 (recorded there)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from modelreg.builders.asked_precision import require_precision
from modelreg.builders.inspected import read_inspected
from modelreg.registry.errors import PrecisionError
from modelreg.registry.words import Precision
from modelreg_testing.onnx_models import make_model, save, value, weight

RECORDED = Path(__file__).parent / "recorded"
LENET = Path(__file__).parents[2] / "examples" / "lenet" / "lenet-v1.onnx"


def recipe(precision: str, **more: Any) -> dict[str, Any]:
    return {"precision": precision, "backend": "tensorrt", "typing": "weak", "variant": None, **more}


def read(
    name: str, precision: str, *, model: Path = LENET, pinned: tuple[str, ...] = (), **more: Any
) -> dict[str, Any]:
    return read_inspected(RECORDED / f"{name}.json", model, recipe(precision, **more), pinned)


def resnet(folder: Path) -> Path:
    """Return a graph with the convolutions and the matrix product that the recorded ResNet-18 had."""
    layers = json.loads((RECORDED / "resnet18-implicit-int8.json").read_text())["inspected"]["Layers"]
    named = [part for each in layers for part in each["Metadata"].split("\x1e") if part]
    names = [part[len("[ONNX Layer: ") : -1] for part in named]
    weighted = list(dict.fromkeys(name for name in names if name.endswith(("Conv", "Gemm"))))
    assert len(weighted) == 21
    nodes = [helper.make_node("Conv", ["x", "w"], [f"y{index}"], name=name) for index, name in enumerate(weighted)]
    model = make_model(
        nodes,
        inputs=[value("x", [1, 1, 1, 1])],
        outputs=[value("y0", None)],
        initializers=[weight("w", np.ones((1, 1, 1, 1), np.float32))],
    )
    return save(model, folder / "resnet.onnx")


def test_a_weakly_typed_fp16_engine_says_which_layers_tensorrt_left_in_fp32() -> None:
    body = read("lenet-fp16", "fp16")
    assert (body["storage"], body["compute"], body["converted"]) == ("fp16", "mixed", 2)
    assert body["kept"] == ["/c1/Conv (Conv)", "/c3/Conv (Conv)", "/output/Gemm (Gemm)"]
    assert (body["stayed"], body["unwanted"]) == ([], [])
    assert body["note"] == "TensorRT chose a higher precision for 3 layers with weights"
    assert {"name": "/c5/Conv + /Relu_2", "precision": "fp16", "nodes": ["/c5/Conv", "/Relu_2"]} in body["layers"]
    assert body["ops"]["fp16"] == {"CaskConvolution": 1, "CaskGemmConvolution": 1, "CaskPooling": 1}
    require_precision(body, asked=Precision.FP16)


def test_implicit_int8_that_silently_became_fp16_is_a_failed_build() -> None:
    body = read("lenet-implicit-int8", "int8")
    assert (body["converted"], len(body["kept"])) == (0, 5)
    with pytest.raises(PrecisionError, match="int8 was asked, but no node became int8: TensorRT chose a higher"):
        require_precision(body, asked=Precision.INT8)


def test_int8_is_read_from_weights_and_where_these_are_not_told_from_formats(tmp_path: Path) -> None:
    body = read("resnet18-implicit-int8", "int8", model=resnet(tmp_path))
    assert (body["storage"], body["converted"]) == ("int8", 21)
    assert body["kept"] == []
    first = next(each for each in body["layers"] if each["nodes"][:1] == ["/conv1/Conv"])
    assert first["precision"] == "int8"  # a convolution with its pooling: no weights are told


def test_tf32_is_told_by_the_flag() -> None:
    body = read("lenet-tf32", "tf32")
    assert (body["storage"], body["compute"], body["converted"]) == ("fp32", "tf32", 5)
    require_precision(body, asked=Precision.TF32)


def test_fp32_needs_no_proof_but_is_described() -> None:
    body = read("lenet-tf32", "fp32")
    assert (body["eligible"], body["kept"]) == (0, [])
    assert len(body["layers"]) == 10


def test_a_pinned_node_that_became_fp16_all_the_same_is_unwanted() -> None:
    body = read("lenet-fp16", "fp16", pinned=("/c5/Conv", "/c1/Conv"))
    assert body["unwanted"] == ["/c5/Conv (Conv)"]
    with pytest.raises(PrecisionError, match="nodes that were excluded became fp16 all the same: /c5/Conv"):
        require_precision(body, asked=Precision.FP16)


def test_strong_types_bind_so_a_layer_that_stayed_is_a_failed_build() -> None:
    variant = {"excluded_nodes": ["/c1/Conv"], "excluded_op_types": ["Gemm"]}
    body = read("lenet-fp16", "fp16", typing="strong", variant=variant)
    assert body["stayed"] == ["/c3/Conv (Conv)"]
    assert body["kept"] == ["/c1/Conv (Conv)", "/output/Gemm (Gemm)"]
    assert body["unwanted"] == ["/f6/Gemm (Gemm)"]
    with pytest.raises(PrecisionError, match="1 of 3 nodes stayed in FP32: /c3/Conv"):
        require_precision(body, asked=Precision.FP16)


def test_newer_keys_and_silent_layers_are_read_too(tmp_path: Path) -> None:
    layers = [
        {
            "Name": "a + b",
            "LayerType": "gemm",
            "Inputs": [{"Name": "x", "DataType": "BF16", "Format": "Linear"}],
            "Outputs": None,
        },
        "a layer of which only the name is known",
        {"Name": "c", "LayerType": "kgen"},
    ]
    path = tmp_path / "layers.json"
    path.write_text(json.dumps({"flags": [], "inspected": {"Layers": layers}}))
    model = make_model(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"], name="a"),
            helper.make_node("MatMul", ["h", "w"], ["y"], name="d"),
        ],
        inputs=[value("x", [2, 2])],
        outputs=[value("y", [2, 2])],
        initializers=[weight("w", np.ones((2, 2), np.float32))],
    )
    body = read_inspected(path, save(model, tmp_path / "m.onnx"), recipe("bf16"), ())
    assert body["converted"] == 1
    assert body["note"] == "the inspector does not tell of 1 layers with weights"
    assert [each["precision"] for each in body["layers"]] == ["bf16", "other"]


def test_an_inspector_that_tells_nothing_proves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "layers.json"
    path.write_text(json.dumps({"flags": [], "inspected": {}}))
    body = read_inspected(path, LENET, recipe("fp16"), ())
    assert (body["converted"], body["compute"]) == (0, "fp32")
    with pytest.raises(PrecisionError):
        require_precision(body, asked=Precision.FP16)


def test_the_recorded_files_are_of_this_model() -> None:
    names = {node.name for node in onnx.load(LENET).graph.node}
    for name in ("lenet-fp16", "lenet-tf32", "lenet-implicit-int8"):
        told = {node for each in read(name, "fp32")["layers"] for node in each["nodes"] if each["nodes"]}
        assert {"/c1/Conv", "/f6/Gemm"} <= told & names
