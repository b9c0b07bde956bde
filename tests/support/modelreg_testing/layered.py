"""Networks with one layer that a precision cannot bear, registered with a golden set that is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from modelreg_testing.cli import Shop, save_npz
from modelreg_testing.onnx_models import make_model, save, value, weight

Array = NDArray[Any]


def outlier_net(*, factor: float = 3000.0, seed: int = 0) -> onnx.ModelProto:
    """
    Return a network in which one channel of what `mix` takes is `factor` times as large as all others.

    INT8 has one scale for all channels of `scaled`, so that nothing is left of the others; `mix` alone reads it.
    """
    rng = np.random.default_rng(seed)
    scale, inverse = np.ones(16, np.float32), np.ones((16, 1), np.float32)
    scale[3], inverse[3] = factor, 1 / factor
    plain = {
        "w1": rng.normal(size=(8, 16)) / 8**0.5,
        "scale": scale,
        "w2": inverse * rng.normal(size=(16, 16)) / 4,
        "w3": rng.normal(size=(16, 10)) / 4,
    }
    return make_model(
        [
            helper.make_node("MatMul", ["x", "w1"], ["h1"], name="enter"),
            helper.make_node("Tanh", ["h1"], ["t1"], name="tanh"),
            helper.make_node("Mul", ["t1", "scale"], ["scaled"], name="scaling"),
            helper.make_node("MatMul", ["scaled", "w2"], ["h2"], name="mix"),
            helper.make_node("Relu", ["h2"], ["r2"], name="relu"),
            helper.make_node("MatMul", ["r2", "w3"], ["y"], name="leave"),
        ],
        inputs=[value("x", ["batch", 8])],
        outputs=[value("y", ["batch", 10])],
        initializers=[weight(name, np.asarray(array, np.float32)) for name, array in plain.items()],
    )


def register(shop: Shop, model: onnx.ModelProto, folder: Path, *, name: str = "net", wrong_by: float = 0.0) -> Path:
    """Register a network with what it answers in FP32 as its golden set; return a calibration set for it."""
    import onnxruntime as ort

    folder.mkdir(parents=True, exist_ok=True)
    path = save(model, folder / f"{name}.onnx")
    shape = [each.dim_value or 64 for each in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    input_name, output_name = model.graph.input[0].name, model.graph.output[0].name
    y = session.run([output_name], {input_name: x})[0]
    save_npz(
        folder / f"{name}-golden.npz", {f"input.{input_name}": x, f"output.{output_name}": y + np.float32(wrong_by)}
    )
    save_npz(folder / f"{name}-calibration.npz", {f"input.{input_name}": x})
    done = shop.cli("register", name, path, "--golden", folder / f"{name}-golden.npz")
    assert done.code == 0, done.err
    return folder / f"{name}-calibration.npz"
