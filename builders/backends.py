"""The builders by backend, and the one way that all of them share: a job file in the toolchain's interpreter."""

from __future__ import annotations

import importlib.metadata
import sys
from dataclasses import dataclass
from pathlib import Path

from modelreg.builders.failures import build_error
from modelreg.builders.graph_sizes import EXTERNAL_BYTES
from modelreg.builders.interface import (
    BackendPart,
    Builder,
    BuildOptions,
    BuildRequest,
    BuildResult,
    OnProgress,
    ToolchainSpec,
)
from modelreg.builders.on_device import TensorRTBuilder
from modelreg.builders.rtx import RtxBuilder
from modelreg.registry.contents import Signature
from modelreg.registry.errors import MissingDependencyError, UsageError
from modelreg.registry.toolchains.process import Worker, WorkerJobError
from modelreg.registry.words import Backend

_ORT_JOBS = Path(__file__).with_name("ort.py")
_LEVELS = ("disabled", "basic", "extended", "all")


@dataclass(frozen=True, slots=True)
class OrtBuilder:
    """Builds optimised graphs of ONNX Runtime for the CPU."""

    backend: Backend = Backend.ONNXRUNTIME

    def recipe_part(self, options: BuildOptions, signature: Signature, toolchain: ToolchainSpec) -> BackendPart:
        """Return the optimisation level: `extended`, since `all` ties the plan to the CPU that built it."""
        del signature, toolchain  # ONNX Runtime takes any shape, in every version
        level = options.optimisation_level or "extended"
        if level not in _LEVELS:
            raise UsageError(f"optimisation level {level!r} is none of {', '.join(_LEVELS)} of onnxruntime")
        return BackendPart(body={"optimisation_level": level, "seed": options.seed})

    def refuse_target(self, target: str, toolchain: ToolchainSpec) -> str:
        """Return why not, for every target but the CPU."""
        del toolchain
        return "" if target == "cpu" else f"onnxruntime builds for cpu, not for {target}"

    def build(self, toolchain: ToolchainSpec, request: BuildRequest, on_progress: OnProgress) -> BuildResult:
        """Build, save, load again and execute one plan in a child process."""
        body = {
            "model": str(request.model),
            "source": str(request.source),
            "plan": str(request.folder / "model.onnx"),
            # ONNX Runtime would let the plan refer to the external data of its model: give it data of its own.
            "is_big": request.size_bytes > EXTERNAL_BYTES or request.size_bytes > request.model.stat().st_size,
            "keep_io_types": request.keep_io_types,
            **request.recipe["build"],
        }
        limit_s = request.options.timeout_s
        with Worker.start(toolchain.python, _ORT_JOBS, log_path=request.log_path, timeout_s=limit_s) as worker:
            try:
                answer, _ = worker.call("build", body, request.inputs, timeout_s=limit_s, on_progress=on_progress)
            except WorkerJobError as error:
                raise build_error(error) from error
        files = tuple(Path(path) for path in answer["files"])
        return BuildResult(files=files, checked=answer["checked"], build_s=answer["build_s"])


BUILDERS: dict[Backend, Builder] = {
    Backend.ONNXRUNTIME: OrtBuilder(),
    Backend.TENSORRT: TensorRTBuilder(),
    Backend.TENSORRT_RTX: RtxBuilder(),
}


def embedded_toolchain() -> ToolchainSpec:
    """
    Return the ONNX Runtime of this interpreter.

    Raises:
        MissingDependencyError: It is not installed.
    """
    for package in ("onnxruntime", "onnxruntime-gpu"):
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        details = {"package": package, "python_version": sys.version.split()[0]}
        return ToolchainSpec(
            name="onnxruntime",
            backend=Backend.ONNXRUNTIME,
            version=version,
            python=sys.executable,
            details=details,
        )
    raise MissingDependencyError("onnxruntime", extra="dev")
