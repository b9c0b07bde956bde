"""Which resources of a cluster a cell asks for, and what is missing. Pure: what the workers offer is given.

A worker offers a toolchain under its registered name (`trt103`) or as backend and version (`tensorrt-10.3.0`), and a
GPU as its target (`sm_90`). Ahead-of-time builds need no GPU, so they ask for the toolchain alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from modelreg.builders.interface import Cell, ToolchainSpec
from modelreg.registry.words import Backend

Resources = Mapping[str, float]

_ON_DEVICE = (Backend.TENSORRT,)
"""Backends that build on the GPU that they build for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterWorker:
    """A worker as its scheduler knows it; `name` is what people call it, often its address."""

    address: str
    name: str
    resources: Resources = field(default_factory=dict)


def toolchain_resources(spec: ToolchainSpec) -> tuple[str, str]:
    """Return the two names that a worker may offer a toolchain under."""
    return spec.name, f"{spec.backend}-{spec.version}"


def alternatives(cell: Cell) -> list[dict[str, float]]:
    """Return what a cell may ask for, one of each: the first that a worker offers is asked for."""
    place = {cell.target: 1.0} if cell.toolchain.backend in _ON_DEVICE else {}
    return [{name: 1.0, **place} for name in toolchain_resources(cell.toolchain)]


def offering(workers: Iterable[ClusterWorker], asked: Resources) -> list[ClusterWorker]:
    """Return the workers that have all that is asked for, in use or not."""
    return [worker for worker in workers if all(worker.resources.get(name, 0) >= asked[name] for name in asked)]


def choose_resources(cell: Cell, workers: Sequence[ClusterWorker]) -> dict[str, float] | None:
    """Return what to ask for, or None where no worker could build the cell."""
    return next((asked for asked in alternatives(cell) if offering(workers, asked)), None)


def describe_missing(cell: Cell, workers: Sequence[ClusterWorker]) -> str:
    """Return which resources no worker has, and which there are."""
    first, second = toolchain_resources(cell.toolchain)
    asked = [name for name in alternatives(cell)[0] if name not in (first, second)]
    needed = " and ".join([f"{first} (or {second})", *asked])
    return f"no worker offers {needed}; {_describe(workers)}"


def _describe(workers: Sequence[ClusterWorker]) -> str:
    if not workers:
        return "there are no workers"
    offers: dict[str, int] = {}
    for worker in workers:
        names = " and ".join(sorted(worker.resources)) or "nothing"
        offers[names] = offers.get(names, 0) + 1
    return "there are " + ", ".join(f"{count} with {names}" for names, count in sorted(offers.items()))


def building_on_workers(spec: ToolchainSpec, targets: Iterable[str]) -> ToolchainSpec:
    """
    Return a toolchain as workers have it: one that builds on a GPU may find there what this host has not.

    Args:
        spec: As registered; its targets are the GPUs of the host where it was added.
        targets: What is asked for. A worker without that GPU offers no such resource, and is not asked.
    """
    if spec.backend not in _ON_DEVICE:
        return spec
    seen = spec.details.get("targets", [])
    asked = [target for target in targets if target.startswith("sm_") and target not in seen]
    return ToolchainSpec(
        name=spec.name,
        backend=spec.backend,
        version=spec.version,
        python=spec.python,
        details={**spec.details, "targets": [*seen, *asked]},
    )
