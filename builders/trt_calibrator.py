"""Implicit INT8 calibration, which TensorRT has up to 10: it runs the network and chooses ranges itself. Python 3.8.

Superseded by Q/DQ nodes in the model, which say the ranges; kept for what exists, and never chosen by default.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Optional

from modelreg.builders.trt_config import make_profile
from modelreg.registry.toolchains.cuda_memory import Device
from modelreg.registry.toolchains.trt_log import TensorRTError

Json = Dict[str, Any]
Arrays = Dict[str, Any]

PREFIX = "calibration."
"""Calibration samples travel beside the trial inputs, under this prefix."""

_KINDS = {"entropy": "IInt8EntropyCalibrator2", "minmax": "IInt8MinMaxCalibrator"}


def set_calibrator(trt: Any, builder: Any, config: Any, request: Json, arrays: Arrays) -> None:
    """
    Let the builder calibrate on the arrays named `calibration.INPUT`, or by the cache of an earlier calibration.

    `request` has `method`, `batch` (rows of one run), `cache` (a file to read, or "") and `cache_out`.

    Raises:
        TensorRTError: The calibration profile is refused.
    """
    samples = {name[len(PREFIX) :]: array for name, array in arrays.items() if name.startswith(PREFIX)}
    shapes = {name: [request["batch"], *array.shape[1:]] for name, array in samples.items()}
    profile = make_profile(builder, {name: {"min": s, "opt": s, "max": s} for name, s in shapes.items()})
    if not profile or not config.set_calibration_profile(profile):
        raise TensorRTError("TensorRT takes no calibration profile of %s" % shapes)
    config.int8_calibrator = _make(trt, request, samples)


def _make(trt: Any, request: Json, samples: Arrays) -> Any:
    base: Any = getattr(trt, _KINDS[request["method"]])

    class Calibrator(base):  # type: ignore[misc]
        """Feeds the samples batch by batch."""

        def __init__(self) -> None:
            base.__init__(self)
            self._device = Device()
            self._next = 0

        def get_batch_size(self) -> int:
            """Return the rows of one batch."""
            return int(request["batch"])

        def get_batch(self, names: List[str]) -> Optional[List[int]]:
            """Return the addresses of the next batch's inputs, or None after the last whole one."""
            first, last = self._next, self._next + request["batch"]
            if last > min(len(array) for array in samples.values()):
                return None
            self._next = last
            addresses = []
            for name in names:
                part = samples[name][first:last]
                addresses.append(self._device.reserve(name, part.nbytes))
                self._device.upload(addresses[-1], part)
            self._device.wait()
            return addresses

        def read_calibration_cache(self) -> Optional[bytes]:
            """Return the ranges of an earlier calibration, which the caller found to be of the same model and set."""
            return Path(request["cache"]).read_bytes() if request["cache"] else None

        def write_calibration_cache(self, cache: Any) -> None:
            """Keep the ranges."""
            Path(request["cache_out"]).write_bytes(bytes(cache))

    return Calibrator()
