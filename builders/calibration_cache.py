"""The cache of an implicit INT8 calibration, bound to what it was made from: a stale one gives wrong ranges in silence.

The file is JSON: the ONNX digest, the calibration set's digest, the exact TensorRT version and the method, and
TensorRT's own cache as text. TensorRT itself checks only the version's first numbers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from modelreg.builders.interface import BuildRequest, ToolchainSpec
from modelreg.registry.digests import file_digest
from modelreg.registry.errors import IntegrityError, UsageError
from modelreg.registry.regular_files import write_whole
from modelreg.registry.words import Json

if TYPE_CHECKING:
    from modelreg.builders.interface import Array

_SCHEMA = 1
_KEYS = ("schema", "onnx", "calibration_set", "tensorrt", "method")
_METHODS = ("entropy", "minmax")
_MAX_BYTES = 64 << 20
"""Of a cache: a line for each tensor makes a few hundred kilobytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationCache:
    """
    Where an implicit calibration finds its samples, or its ranges, and leaves them.

    Attributes:
        request: What is built.
        binding: What the ranges hold for.
        file: The user's cache file, or None.
        taken: The ranges found there, as the builder reads them; None when it has to calibrate.
        made: Where the builder writes them.
    """

    request: BuildRequest
    binding: Json
    file: Path | None
    taken: Path | None
    made: Path

    @classmethod
    def open(cls, request: BuildRequest, toolchain: ToolchainSpec) -> CalibrationCache | None:
        """
        Return the cache of a build, or None where nothing is calibrated.

        Raises:
            IntegrityError: The file holds ranges of another model, set, version or method.
            UsageError: TensorRT has no such method.
        """
        part, calibration = request.recipe.get("implicit_calibration"), request.calibration
        if part is None or calibration is None:
            return None
        if part["method"] not in _METHODS:
            raise UsageError(f"implicit calibration has no method {part['method']}", hint="It has entropy and minmax.")
        binding: Json = {
            "schema": _SCHEMA,
            "onnx": file_digest(request.model),
            "calibration_set": part,
            "tensorrt": toolchain.version,
            "method": part["method"],
        }
        folder, file = request.folder.parent, request.options.tensorrt.calibration_cache
        taken = None
        if file is not None and file.exists():
            taken = folder / "calibration.taken"
            taken.write_text(_read_ranges(file, binding))
        return cls(request=request, binding=binding, file=file, taken=taken, made=folder / "calibration.made")

    def to_request(self) -> Json:
        """Return what the builder needs to know."""
        assert self.request.calibration is not None
        return {
            "method": self.binding["method"],
            "batch": self.request.calibration.batch,
            "cache": "" if self.taken is None else str(self.taken),
            "cache_out": str(self.made),
        }

    def read_samples(self, prefix: str) -> dict[str, Array]:
        """Return the samples by input, under names that begin with `prefix`."""
        import numpy as np  # noqa: PLC0415 - only where something is calibrated

        from modelreg.builders.calibration import iterate_batches  # noqa: PLC0415
        from modelreg.registry.tensor_sets import open_tensor_set  # noqa: PLC0415

        assert self.request.calibration is not None
        with open_tensor_set(self.request.calibration.path) as tensors:
            batches = list(iterate_batches(tensors, self.request.calibration.to_request()))
        return {prefix + name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}

    def keep(self) -> None:
        """Write the new ranges to the user's file, with what they are bound to."""
        if self.file is None or not self.made.exists():
            return
        body = {**self.binding, "ranges": self.made.read_text()}
        write_whole(self.file, (json.dumps(body, indent=1) + "\n").encode())


def _read_ranges(file: Path, binding: Json) -> str:
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise ValueError("too large")
        found = json.loads(file.read_text())
        stated = {key: found[key] for key in _KEYS}
        ranges = str(found["ranges"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise IntegrityError(
            f"{file} is no calibration cache of modelreg",
            hint="Give a new file; TensorRT's own caches do not say what they were made from.",
        ) from error
    others = [key for key in _KEYS if stated[key] != binding[key]]
    if others:
        raise IntegrityError(
            f"the calibration cache {file} is stale: it is of another {', '.join(others)}",
            hint="Remove it, or give another file, to calibrate again.",
        )
    return ranges
