"""TensorRT-RTX from the parent's side: engines are compiled ahead of time, for GPUs that need not be here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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
from modelreg.builders.trt_options import require_options
from modelreg.registry.contents import Signature
from modelreg.registry.plans import PlanHeader
from modelreg.registry.toolchains.process import Worker, WorkerJobError
from modelreg.registry.words import Backend, Json

AHEAD_OF_TIME = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_120", "sm_121")
"""What TensorRT-RTX 1.4 to 1.7 compile for; what an installed one does is what it says when it is probed."""
_JOBS = Path(__file__).with_name("trt_rtx.py")


@dataclass(frozen=True, slots=True)
class RtxBuilder:
    """Builds plans of TensorRT-RTX for one compute capability each."""

    backend: Backend = Backend.TENSORRT_RTX

    def recipe_part(self, options: BuildOptions, signature: Signature, toolchain: ToolchainSpec) -> BackendPart:
        """Return the profiles and what the plan keeps of its layers; the optimisation level changes nothing here."""
        require_options(options.tensorrt, backend=toolchain.backend, version=toolchain.version)
        body: Json = {"profiles": resolve_profiles(options.profiles, signature), "profiling_verbosity": "DETAILED"}
        if options.tensorrt.memory_pools:
            body["pools"] = dict(sorted(options.tensorrt.memory_pools.items()))
        return BackendPart(body=body)

    def refuse_target(self, target: str, toolchain: ToolchainSpec) -> str:
        """Return why not, for what this version has no compute capability of."""
        targets = toolchain.details.get("targets", [])
        if target in targets:
            return ""
        return f"{toolchain.backend} {toolchain.version} builds for {', '.join(targets) or 'nothing'}, not for {target}"

    def build(self, toolchain: ToolchainSpec, request: BuildRequest, on_progress: OnProgress) -> BuildResult:
        """Build and save one plan in a child process, and hold its header to what was asked."""
        body = make_body(toolchain, request)
        plan, layers = Path(body["plan"]), Path(body["layers"])
        limit_s = request.options.timeout_s
        with Worker.start(toolchain.python, _JOBS, log_path=request.log_path, timeout_s=limit_s) as worker:
            try:
                answer, _ = worker.call("build", body, timeout_s=limit_s, on_progress=on_progress)
            except WorkerJobError as error:
                raise build_error(error) from error
        header = require_header(plan, toolchain, request.target)
        return BuildResult(
            files=(plan,),
            checked=_not_run(answer, header),
            build_s=answer["build_s"],
            layers=layers,
            taps=tuple(answer.get("taps", ())),
        )


def _not_run(answer: Json, header: PlanHeader) -> Json:
    return {
        "inputs": "none",
        "shapes": [],
        "runs": 0,
        "reason": "compiled ahead of time; a plan of tensorrt-rtx runs on a GPU of its own target alone",
        "weight_bytes": header.weight_bytes,
        "warnings": answer["warnings"],
        "edges": {"inputs": answer["inputs"], "outputs": answer["outputs"]},
    }
