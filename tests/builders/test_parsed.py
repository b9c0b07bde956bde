from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from modelreg.builders.parsed import read_parsed
from modelreg_testing.onnx_models import make_model, save, value, weight

FP16_VARIANT = {
    "kind": "fp16",
    "settings": {"blocked_ops": ["Softmax"]},
    "excluded_nodes": ["fc2"],
    "excluded_op_types": [],
}
INT8_VARIANT = {"kind": "int8", "settings": {}, "excluded_nodes": ["fc2"], "excluded_op_types": []}


def layer(kind: str, node: str, inputs: list[str], outputs: list[str], sources: list[str] | None = None) -> Any:
    nodes = [node] if node else []
    sources = sources or ["INPUT"] * len(inputs)
    return {"name": node, "kind": kind, "nodes": nodes, "inputs": inputs, "outputs": outputs, "sources": sources}


def two_layers(dtype: str = "float32") -> onnx.ModelProto:
    """Two dense layers and a softmax, their weights in `dtype`."""
    return make_model(
        [
            helper.make_node("Gemm", ["x", "w1"], ["h"], name="fc1"),
            helper.make_node("Gemm", ["h", "w2"], ["z"], name="fc2"),
            helper.make_node("Softmax", ["z"], ["y"], name="soft"),
        ],
        inputs=[value("x", ["N", 4])],
        outputs=[value("y", ["N", 4])],
        initializers=[weight(name, np.ones((4, 4), dtype)) for name in ("w1", "w2")],
    )


def read(
    tmp_path: Path, layers: list[Any], variant: Any, *, flags: tuple[str, ...] = (), dtype: str = "float32"
) -> Any:
    path = tmp_path / "layers.json"
    path.write_text(json.dumps({"flags": list(flags), "layers": layers}))
    return read_parsed(path, save(two_layers(dtype), tmp_path / "m.onnx"), variant)


HALF, SINGLE = ["float16", "float16"], ["float32", "float32"]


def test_fp32_converts_nothing_and_says_where_it_was_read(tmp_path: Path) -> None:
    found = read(tmp_path, [layer("MATRIX_MULTIPLY", "fc1", SINGLE, ["float32"])], None)
    assert (found["compute"], found["storage"], found["converted"], found["stayed"]) == ("fp32", "fp32", 0, [])
    assert found["initialiser_bytes"] == {"float32": 128}
    assert "no GPU to ask" in found["note"]


def test_tf32_is_fp32_with_the_flag_as_it_was_read_back(tmp_path: Path) -> None:
    layers = [layer("MATRIX_MULTIPLY", "fc1", SINGLE, ["float32"]), layer("SOFTMAX", "soft", ["float32"], ["float32"])]
    found = read(tmp_path, layers, None, flags=("TF32",))
    assert (found["compute"], found["converted"], found["flags"]) == ("tf32", 1, ["TF32"])


def test_fp16_counts_nodes_and_names_those_that_stayed(tmp_path: Path) -> None:
    layers = [
        layer("MATRIX_MULTIPLY", "fc1", SINGLE, ["float32"]),
        layer("MATRIX_MULTIPLY", "fc2", SINGLE, ["float32"]),
        layer("CAST", "soft", ["float16"], ["float32"]),
        layer("SOFTMAX", "soft", ["float32"], ["float32"]),
        layer("SHUFFLE", "", ["float16"], ["float16"]),
        layer("GATHER", "shape", ["int64"], ["int64"]),
    ]
    found = read(tmp_path, layers, FP16_VARIANT, dtype="float16")
    assert found["stayed"] == ["fc1 (Gemm)"]
    assert found["kept"] == ["fc2 (Gemm)", "soft (Softmax)"]
    assert (found["converted"], found["eligible"], found["storage"]) == (0, 1, "fp16")
    assert found["ops"]["other"] == {"GATHER": 1}
    assert found["ops"]["casts"] == {"CAST": 1}


def test_a_node_that_was_to_stay_and_became_fp16_is_unwanted(tmp_path: Path) -> None:
    layers = [layer("MATRIX_MULTIPLY", name, HALF, ["float16"]) for name in ("fc1", "fc2")]
    found = read(tmp_path, layers, FP16_VARIANT)
    assert (found["converted"], found["unwanted"], found["compute"]) == (1, ["fc2 (Gemm)"], "fp16")
    assert found["storage"] == "fp32"


@pytest.mark.parametrize(
    ("sources", "converted"),
    [(["DEQUANTIZE", "DEQUANTIZE"], 1), (["DEQUANTIZE", "CONSTANT"], 0), (["INPUT", "DEQUANTIZE"], 0)],
)
def test_int8_needs_both_sides_dequantised(tmp_path: Path, sources: list[str], converted: int) -> None:
    layers = [
        layer("MATRIX_MULTIPLY", "fc1", SINGLE, ["float32"], sources),
        layer("MATRIX_MULTIPLY", "fc2", SINGLE, ["float32"], ["INPUT", "CONSTANT"]),
    ]
    found = read(tmp_path, layers, INT8_VARIANT)
    assert (found["converted"], found["eligible"]) == (converted, 1)
    assert found["stayed"] == ([] if converted else ["fc1 (Gemm)"])
    assert found["kept"] == ["fc2 (Gemm)"]
    assert found["compute"] == ("mixed" if converted else "fp32")


def test_an_excluded_node_that_became_int8_is_unwanted(tmp_path: Path) -> None:
    layers = [layer("MATRIX_MULTIPLY", n, SINGLE, ["float32"], ["DEQUANTIZE"] * 2) for n in ("fc1", "fc2")]
    found = read(tmp_path, layers, INT8_VARIANT)
    assert found["unwanted"] == ["fc2 (Gemm)"]
    assert found["compute"] == "int8"


def test_bf16_is_counted_as_fp16_is(tmp_path: Path) -> None:
    layers = [
        layer("MATRIX_MULTIPLY", "fc1", ["bfloat16"] * 2, ["bfloat16"]),
        layer("MATRIX_MULTIPLY", "fc2", SINGLE, ["float32"]),
        layer("SOFTMAX", "soft", ["bfloat16"], ["bfloat16"]),
    ]
    found = read(tmp_path, layers, {**FP16_VARIANT, "kind": "bf16"})
    assert (found["converted"], found["stayed"]) == (1, [])
    assert (found["kept"], found["unwanted"]) == (["fc2 (Gemm)"], ["soft (Softmax)"])
    assert (found["storage"], found["compute"]) == ("fp32", "mixed")
    assert found["ops"]["bf16"] == {"MATRIX_MULTIPLY": 1, "SOFTMAX": 1}


@pytest.mark.parametrize(("dtype", "converted"), [("fp8", 1), ("int8", 0)])
def test_fp8_is_what_is_dequantised_from_fp8(tmp_path: Path, dtype: str, converted: int) -> None:
    layers = [
        layer("DEQUANTIZE", "", [dtype, "float32"], ["float32"]),
        layer("MATRIX_MULTIPLY", "fc1", SINGLE, ["float32"], ["DEQUANTIZE"] * 2),
        layer("MATRIX_MULTIPLY", "fc2", SINGLE, ["float32"], ["INPUT", "CONSTANT"]),
    ]
    found = read(tmp_path, layers, {**INT8_VARIANT, "kind": "fp8"})
    assert (found["converted"], found["eligible"], found["compute"]) == (converted, 1, "mixed")
    assert found["ops"][dtype] == {"MATRIX_MULTIPLY": 1}


def test_a_network_without_weights_computes_in_what_its_layers_have(tmp_path: Path) -> None:
    found = read(tmp_path, [layer("SOFTMAX", "soft", ["float16"], ["float16"])], FP16_VARIANT)
    assert found["compute"] == "fp16"
    assert read(tmp_path, [layer("SHAPE", "s", ["float32"], ["int64"])], None)["compute"] == "fp32"
