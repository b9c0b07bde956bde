"""A PyTorch reference timed in eager mode, in this process: the child's side of `pytorch_timing`.

PyTorch comes as an argument: `torch_reference` alone imports it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelreg.registry.errors import ReferenceModelError
from modelreg.registry.words import Json
from modelreg.validators.pytorch_timing import Variant
from modelreg.validators.reference_models import Reference, load_reference
from modelreg.validators.torch_reference import to_torch
from modelreg.validators.user_code import guard

Array = NDArray[Any]

_EVENTS_IN_FLIGHT = 16


class Eager:
    """A reference on one device, each variant loaded once, when it is first timed; close it at the end."""

    def __init__(self, torch: Any, *, reference: str, weights: Path | None, device: str, threads: int | None) -> None:
        """
        Choose the device.

        Raises:
            ReferenceModelError: PyTorch cannot use it.
        """
        self._torch, self._reference, self._weights, self._device = torch, reference, weights, device
        self._loaded: dict[Variant, Reference] = {}
        self._stack = contextlib.ExitStack()
        if device == "cuda":
            if not torch.cuda.is_available():
                raise ReferenceModelError(f"PyTorch {torch.__version__} can use no GPU here")
            torch.backends.cudnn.benchmark = True  # as one would who wants it fast
            torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        if threads:
            torch.set_num_threads(threads)

    def describe(self) -> Json:
        """Return what is timed: the versions, and the device's name."""
        torch = self._torch
        name = torch.cuda.get_device_name() if self._device == "cuda" else ""
        return {"torch": str(torch.__version__), "device": self._device, "device_name": name}

    def time_runs(self, variant: Variant, arrays: Mapping[str, Array], request: Json) -> tuple[Json, dict[str, Array]]:
        """
        Time a variant; answer with the milliseconds of every run, as `gpu-compute` or `host`, as engines are timed.

        Args:
            variant: Which.
            arrays: Inputs by name, in the ONNX's order; they are on the device before.
            request: `warmup_ms`, `duration_s` and `iterations` (the longer of both counts).

        Raises:
            ReferenceModelError: The reference failed.
        """
        loaded = self._load(variant)
        tensors = {name: self._to_device(variant, to_torch(self._torch, loaded, each)) for name, each in arrays.items()}
        is_cuda = self._device == "cuda"
        time_some = self._time_events if is_cuda else _time_once

        def run() -> None:
            loaded.call(tensors)

        with guard("the reference failed"), self._torch.inference_mode():
            _repeat(lambda: [time_some(run)], request["warmup_ms"] / 1000, 0)
            began = time.perf_counter()
            found = _repeat(lambda: time_some(run), request["duration_s"], request["iterations"])
            wall_s = time.perf_counter() - began
        return {"wall_s": wall_s, "streams": 1}, {"gpu-compute" if is_cuda else "host": np.array(found)}

    def _load(self, variant: Variant) -> Reference:
        """Load the reference anew for each variant: a module is converted in place."""
        if variant not in self._loaded:
            torch = self._torch
            torch.manual_seed(0)
            loaded = self._stack.enter_context(load_reference(torch, self._reference, self._weights))
            with guard(f"the reference cannot be made {variant}"):
                loaded.module.to(self._device)
                if variant is not Variant.FP32:
                    loaded.module.half()
                if variant is Variant.FP16_CHANNELS_LAST:
                    loaded.module.to(memory_format=torch.channels_last)
            self._loaded[variant] = loaded
        return self._loaded[variant]

    def _to_device(self, variant: Variant, tensor: Any) -> Any:
        moved = tensor.to(self._device)
        if variant is not Variant.FP32 and moved.is_floating_point():
            moved = moved.half()
        is_image = variant is Variant.FP16_CHANNELS_LAST and moved.dim() == 4
        return moved.to(memory_format=self._torch.channels_last) if is_image else moved

    def _time_events(self, run: Callable[[], None]) -> list[float]:
        """Return the milliseconds between two events around each of some runs, which are enqueued without waiting."""
        make: Callable[[], Any] = lambda: self._torch.cuda.Event(enable_timing=True)  # noqa: E731
        pairs = [(make(), make()) for _ in range(_EVENTS_IN_FLIGHT)]
        for first, last in pairs:
            first.record()
            run()
            last.record()
        self._torch.cuda.synchronize()
        return [first.elapsed_time(last) for first, last in pairs]

    def close(self) -> None:
        """Forget the reference."""
        self._stack.close()


def _time_once(run: Callable[[], None]) -> list[float]:
    began = time.perf_counter()
    run()
    return [(time.perf_counter() - began) * 1000]


def _repeat(time_some: Callable[[], list[Any]], duration_s: float, at_least: int) -> list[Any]:
    found: list[Any] = []
    until = time.perf_counter() + duration_s
    while len(found) < at_least or time.perf_counter() < until:
        found += time_some()
    return found
