from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from modelreg.runtime import ort
from modelreg_testing.onnx_models import mlp, save


def ignore(_fraction: float | None, _message: str) -> None: ...


@pytest.mark.parametrize("threads", [None, 1])
@pytest.mark.parametrize("mode", ["plan", "rounded"])
def test_both_modes_load_and_run_with_and_without_a_number_of_threads(
    tmp_path: Path, mode: str, threads: int | None
) -> None:
    path = save(mlp(), tmp_path / "m.onnx")
    info = ort.load({"path": str(path), "mode": mode, "threads": threads}, {}, ignore)
    assert [each["name"] for each in info["outputs"]] == ["logits"]
    _, outputs = ort.run({}, {"x": np.ones((2, 16), np.float32), "unused": np.ones(1)}, ignore)
    assert outputs["logits"].shape == (2, 10)


def test_a_missing_input_is_named(tmp_path: Path) -> None:
    ort.load({"path": str(save(mlp(), tmp_path / "m.onnx")), "mode": "plan"}, {}, ignore)
    with pytest.raises(ValueError, match="input 'x' is missing"):
        ort.run({}, {}, ignore)
