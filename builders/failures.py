"""What a job's exception means to the user."""

from __future__ import annotations

from modelreg.registry.errors import BuildError, PrecisionError, ToolchainError
from modelreg.registry.toolchains.process import WorkerJobError

_EXPLAINED = (
    "VariantError",
    "NothingToConvertError",
    "OrtBuildError",
    "OrtRunError",
    "TensorRTError",
    "BackendChangedError",
    "GpuError",
)
"""Exceptions of our job files: their message is written for the user."""

_OF_THE_TOOLCHAIN = ("ImportError", "ModuleNotFoundError", "BackendChangedError")
"""Exceptions that say that an interpreter no longer has what it was registered with."""


def build_error(error: WorkerJobError) -> BuildError:
    """Return a job's exception as a build error: one line, with the hint that the job gave."""
    hint = error.remote_details.get("hint")
    message = " ".join(str(error).split())
    if error.remote_type not in _EXPLAINED:
        message = f"{error.remote_type}: {message}"
    return _kind(error.remote_type)(message[:800], hint=str(hint) if hint else "")


def _kind(remote_type: str) -> type[BuildError]:
    if remote_type in _OF_THE_TOOLCHAIN:
        return ToolchainError
    return PrecisionError if remote_type == "NothingToConvertError" else BuildError
