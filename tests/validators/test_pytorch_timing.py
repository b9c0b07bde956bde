"""Real PyTorch in a real child, on the CPU; `tests/gpu` has the variants of a GPU."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelreg.registry.errors import ReferenceModelError
from modelreg.registry.words import Precision
from modelreg.validators.pytorch_eager import Eager
from modelreg.validators.pytorch_timing import PyTorchModel, Variant, choose_variants

torch: Any = pytest.importorskip("torch")

REFERENCE = """
import os, time, torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(2))

    def forward(self, x, k):
        assert x.dtype == torch.float32 and k.dtype == torch.int64, (x.dtype, k.dtype)
        assert torch.is_inference_mode_enabled() and torch.get_num_threads() == 1
        if k[0] == 0:
            raise KeyError("no such thing")
        if k[0] == 2:
            os._exit(3)
        print("in the reference")
        time.sleep(0.005)
        return x * self.scale
"""
FEW = {"warmup_ms": 1.0, "duration_s": 0.0, "iterations": 4}


def inputs(first: int = 1) -> dict[str, Any]:
    return {"x": np.ones((4, 2), np.float64), "k": np.full(4, first, np.int64)}


@pytest.mark.slow
def test_every_run_is_timed_and_what_the_reference_does_wrong_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "user.py"
    path.write_text(textwrap.dedent(REFERENCE))
    log = tmp_path / "log"
    with PyTorchModel(f"{path}:Net", weights=None, device="cpu", threads=1, log_path=log) as model:
        assert model.info["torch"] == str(torch.__version__)
        told, times = model.bench(Variant.FP32, inputs(), FEW)
        assert list(times) == ["host"]
        assert len(times["host"]) == 4
        assert times["host"].min() >= 5
        assert told["wall_s"] * 1000 >= times["host"].sum()
        assert model.rival(Variant.FP32).time_block(inputs()) >= 5
        with pytest.raises(ReferenceModelError, match="the reference failed: KeyError: 'no such thing'"):
            model.bench(Variant.FP32, inputs(0), FEW)
        assert model.rival(Variant.FP32).time_block(inputs()) >= 5  # the process lives on
        with pytest.raises(ReferenceModelError, match=r"the reference ended the process \(exit code 3\)"):
            model.bench(Variant.FP32, inputs(2), FEW)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_pytorch_cannot_use_is_said() -> None:
    with pytest.raises(ReferenceModelError, match="can use no GPU here"):
        Eager(torch, reference="user.py:Net", weights=None, device="cuda", threads=None)


@pytest.mark.parametrize(
    ("precision", "device", "rivals"),
    [
        (Precision.FP32, "cuda", ["fp32"]),
        (Precision.TF32, "cuda", ["fp32"]),
        (Precision.INT8, "cuda", ["fp16", "fp16-channels-last"]),
        (Precision.INT8, "cpu", ["fp32"]),
    ],
)
def test_engines_are_compared_with_pytorch_of_their_precision(
    precision: Precision, device: str, rivals: list[str]
) -> None:
    assert [str(each) for each in choose_variants(precision, device=device)] == rivals
