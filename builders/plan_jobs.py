"""What builds of TensorRT and of TensorRT-RTX share on the parent's side: the request, and the check of the header."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelreg.registry.errors import BuildError
from modelreg.registry.plans import PlanHeader, disagreement, read_plan_header

if TYPE_CHECKING:
    from pathlib import Path

    from modelreg.builders.interface import BuildRequest, ToolchainSpec


def make_body(toolchain: ToolchainSpec, request: BuildRequest) -> dict[str, Any]:
    """Return what both job files need to build a plan."""
    return {
        **request.recipe["build"],
        "backend": str(toolchain.backend),
        "version": toolchain.version,
        "model": str(request.model),
        "plan": str(request.folder / "model.plan"),
        "layers": str(request.log_path.with_name("layers.json")),
        "target": request.target,
        "flags": request.flags,
        "keep_io_types": request.keep_io_types,
        **({"taps": list(request.taps), "tapped_as": request.tapped_as} if request.taps else {}),
        "inputs": {spec.name: spec.dtype for spec in request.signature.inputs},
        "outputs": {spec.name: spec.dtype for spec in request.signature.outputs},
    }


def require_header(plan: Path, toolchain: ToolchainSpec, target: str) -> PlanHeader:
    """
    Return the header of a plan that was just built.

    Raises:
        BuildError: It says another backend, version or target than was asked for.
        IntegrityError: It is no whole plan.
    """
    header = read_plan_header(plan)
    found = disagreement(header, backend=toolchain.backend, version=toolchain.version, target=target)
    if found:
        raise BuildError(f"the plan is not what was asked: {found}")
    return header
