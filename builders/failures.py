"""What a job's exception means to the user."""

from __future__ import annotations

from modelreg.registry.errors import BuildError, PrecisionError
from modelreg.registry.toolchains.process import WorkerJobError

_EXPLAINED = ("VariantError", "NothingToConvertError", "OrtBuildError", "OrtRunError", "TensorRTError", "GpuError")
"""Exceptions of our job files: their message is written for the user."""


def build_error(error: WorkerJobError) -> BuildError:
    """Return a job's exception as a build error: one line, with the hint that the job gave."""
    hint = error.remote_details.get("hint")
    message = " ".join(str(error).split())
    if error.remote_type not in _EXPLAINED:
        message = f"{error.remote_type}: {message}"
    kind = PrecisionError if error.remote_type == "NothingToConvertError" else BuildError
    return kind(message[:800], hint=str(hint) if hint else "")
