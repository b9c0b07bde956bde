"""The PyTorch references on the GPU: `modelreg register --reference tests/gpu/references.py:resnet18`.

`register` runs a reference on the CPU, with TF32 off and deterministic algorithms. These move themselves to the GPU
when they are called, so that an engine is compared with what PyTorch computes on the card that it runs on.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

# cuBLAS is deterministic with a workspace of this kind alone, and PyTorch refuses it otherwise.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DEVICE = os.environ.get("MODELREG_GPU_DEVICE", "cuda")


def lenet() -> Any:
    """Return the example's LeNet, to run on the GPU."""
    return _on_device(_import("lenet", "model").lenet())


def resnet18() -> Any:
    """Return the example's ResNet-18, to run on the GPU."""
    return _on_device(_import("resnet50", "resnet").resnet18())


def resnet50() -> Any:
    """Return the example's ResNet-50, to run on the GPU."""
    return _on_device(_import("resnet50", "resnet").resnet50())


def _import(folder: str, module: str) -> Any:
    sys.path.insert(0, str(EXAMPLES / folder))
    try:
        return importlib.import_module(module)
    finally:
        sys.path.pop(0)


def _on_device(net: Any) -> Any:
    """Move a module and what it is called with to the device, whenever it is called."""

    def move(module: Any, positional: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        module.to(DEVICE)
        return tuple(each.to(DEVICE) for each in positional), {name: each.to(DEVICE) for name, each in named.items()}

    net.register_forward_pre_hook(move, with_kwargs=True)
    return net
