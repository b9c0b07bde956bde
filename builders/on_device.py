"""TensorRT from the parent's side: engines are built on the GPU that they are for, and run there before they count."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modelreg.builders.calibration_cache import CalibrationCache
from modelreg.builders.failures import build_error
from modelreg.builders.interface import (
    BackendPart,
    BuildOptions,
    BuildRequest,
    BuildResult,
    OnProgress,
    ToolchainSpec,
)
from modelreg.builders.plan_jobs import make_body, require_header
from modelreg.builders.profiles import resolve_profiles
from modelreg.builders.trt_calibrator import PREFIX
from modelreg.builders.trt_options import require_options, require_places
from modelreg.registry.contents import Signature
from modelreg.registry.digests import file_digest
from modelreg.registry.errors import BuildError
from modelreg.registry.toolchains.process import Worker, WorkerJobError
from modelreg.registry.words import Backend

_JOBS = Path(__file__).with_name("trt.py")
_PREFERRED = {"fp16": "HALF", "bf16": "BF16"}


@dataclass(frozen=True, slots=True)
class TensorRTBuilder:
    """Builds plans of the full TensorRT for the GPU of this machine."""

    backend: Backend = Backend.TENSORRT

    def recipe_part(self, options: BuildOptions, signature: Signature, toolchain: ToolchainSpec) -> BackendPart:
        """Return profiles and settings; refuse what this version has not."""
        require_options(options.tensorrt, backend=toolchain.backend, version=toolchain.version)
        require_places(options.tensorrt)
        body = {
            "profiles": resolve_profiles(options.profiles, signature),
            "profiling_verbosity": "DETAILED",
            **options.tensorrt.to_recipe(),
        }
        return BackendPart(body=body, flags=options.tensorrt.flags)

    def refuse_target(self, target: str, toolchain: ToolchainSpec) -> str:
        """Return why not, for every target but the GPUs that were seen when the toolchain was added."""
        targets = toolchain.details.get("targets", [])
        if target in targets:
            return ""
        here = f"has {', '.join(targets)}" if targets else "has no GPU"
        return f"{toolchain.backend} {toolchain.version} builds on a GPU of {target}, and this host {here}"

    def build(self, toolchain: ToolchainSpec, request: BuildRequest, on_progress: OnProgress) -> BuildResult:
        """Build, save, load again, inspect and run one plan in a child process on the GPU."""
        plugins = _copy_plugins(request)
        cache = CalibrationCache.open(request, toolchain)
        timing_cache = request.folder.parent / "timing.cache"
        body = {**_make_body(toolchain, request, plugins), **_timing_caches(request, timing_cache)}
        body["calibrator"] = None if cache is None else cache.to_request()
        arrays = {**request.inputs, **({} if cache is None else cache.read_samples(PREFIX))}
        limit_s = request.options.timeout_s
        with Worker.start(toolchain.python, _JOBS, log_path=request.log_path, timeout_s=limit_s) as worker:
            try:
                answer, _ = worker.call("build", body, arrays, timeout_s=limit_s, on_progress=on_progress)
            except WorkerJobError as error:
                raise _name_nodes(build_error(error), request.model) from error
        plan = Path(body["plan"])
        require_header(plan, toolchain, request.target)
        if cache is not None:
            cache.keep()
        return BuildResult(
            files=(plan, *plugins),
            checked=answer["checked"],
            build_s=answer["build_s"],
            layers=Path(body["layers"]),
            gpu=answer["gpu"],
            timing_cache=timing_cache if timing_cache.exists() else None,
            taps=tuple(answer.get("taps", ())),
        )


def _make_body(toolchain: ToolchainSpec, request: BuildRequest, plugins: tuple[Path, ...]) -> dict[str, Any]:
    return {
        **make_body(toolchain, request),
        "strongly_typed": request.recipe["typing"] == "strong",
        "pins": list(request.pinned),
        "preferred": _preferred(request),
        "plugins": [str(path) for path in plugins],
        "seed": request.options.seed,
    }


def _preferred(request: BuildRequest) -> str:
    """Return TensorRT's name of the type that every layer is asked to compute in, or an empty string."""
    if request.is_preferred or request.recipe.get("constraints") == "prefer":
        return _PREFERRED[request.recipe["precision"]]
    return ""


def _timing_caches(request: BuildRequest, out: Path) -> dict[str, str]:
    given = request.options.tensorrt.timing_cache
    if given is None:
        return {"timing_cache": "", "timing_cache_out": ""}
    return {"timing_cache": str(given.absolute()) if given.exists() else "", "timing_cache_out": str(out)}


def _copy_plugins(request: BuildRequest) -> tuple[Path, ...]:
    """Copy the plugin libraries beside where the plan will lie; the copies are what is checked, and what is loaded."""
    copies = []
    for path, listed in zip(request.options.tensorrt.plugins, request.recipe["build"]["plugins"], strict=True):
        copy = request.folder / path.name
        try:
            copy.write_bytes(path.read_bytes())
        except OSError as error:
            raise BuildError(
                f"the plugin library {path} cannot be read: {error.strerror}", hint="Build again."
            ) from error
        if file_digest(copy) != listed["digest"]:
            raise BuildError(f"the plugin library {path} was changed since it was allowed", hint="Build again.")
        copies.append(copy)
    return tuple(copies)


def _name_nodes(error: BuildError, model: Path) -> BuildError:
    """Return the error with names in place of node numbers, which are all that TensorRT 8 tells."""
    numbers = [int(number) for number in re.findall(r"#(\d+) \(no op\)", str(error))]
    if not numbers:
        return error
    import onnx  # noqa: PLC0415 - only for this error

    nodes = onnx.load(model, load_external_data=False).graph.node
    names: Mapping[int, str] = {
        number: f"{nodes[number].name or f'#{number}'} ({nodes[number].op_type})"
        for number in numbers
        if number < len(nodes)
    }
    message = re.sub(r"#(\d+) \(no op\)", lambda found: names.get(int(found[1]), found[0]), str(error))
    return BuildError(message, hint=error.hint())
