"""Which engine of the active release this host would load, and why the others not. Reads the store alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from modelreg.registry.errors import IntegrityError
from modelreg.registry.manifest import Manifest, ReleasedEngine, parse_manifest
from modelreg.registry.plans import PlanHeader, disagreement, is_same_version, read_plan_header
from modelreg.registry.pointers import Pointer
from modelreg.registry.references import check_name
from modelreg.registry.storage.interface import Storage
from modelreg.registry.suggestions import no_active_release
from modelreg.registry.words import Backend
from modelreg.runtime.host import Host

_BOUND_TO_VERSION = (Backend.TENSORRT, Backend.TENSORRT_RTX)
"""Backends that load only what their own version built."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suitability:
    """A released engine and whether this host can load it."""

    engine: ReleasedEngine
    usable: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """What a channel serves to one host. `chosen` is None when no engine of the release runs there."""

    pointer: Pointer
    manifest: Manifest
    candidates: tuple[Suitability, ...]
    chosen: ReleasedEngine | None
    path: Path | None


def judge(engine: ReleasedEngine, host: Host, *, header: PlanHeader | None = None) -> Suitability:
    """
    Return whether `host` can load `engine`. Pure: the manifest, the plan's header and the host are compared.

    Args:
        engine: The engine as released.
        host: What would load it.
        header: What its plan says about itself, for TensorRT; None when that was not read.
    """
    reason = _refuse(engine, host, header)
    return Suitability(engine=engine, usable=not reason, reason=reason or f"runs on {engine.target}")


def _refuse(engine: ReleasedEngine, host: Host, header: PlanHeader | None) -> str:
    if header is not None:
        found = disagreement(header, backend=engine.backend, version=engine.backend_version, target=engine.target)
        if found:
            return f"its plan is not what the release says: {found}"
    if engine.target not in host.targets:
        return f"needs {engine.target}; this host has {', '.join(host.targets)}"
    if engine.backend not in host.backends:
        return f"{engine.backend} is not installed here"
    installed = host.versions.get(engine.backend, "")
    if engine.backend in _BOUND_TO_VERSION and installed and not is_same_version(engine.backend_version, installed):
        return f"needs {engine.backend} {engine.backend_version}; this host has {installed}"
    return ""


def _judge_plan(engine: ReleasedEngine, host: Host, folder: Path | None) -> Suitability:
    """Judge an engine by its plan's header too, where the plan is a local file."""
    if folder is None or engine.backend not in _BOUND_TO_VERSION:
        return judge(engine, host)
    try:
        return judge(engine, host, header=read_plan_header(folder / engine.plan.path))
    except IntegrityError as error:
        return Suitability(engine=engine, usable=False, reason=str(error))
    except OSError as error:
        return Suitability(engine=engine, usable=False, reason=f"its plan cannot be read: {error.strerror}")


def resolve(storage: Storage, model: str, channel: str, host: Host) -> Resolution:
    """
    Return what `host` would load for `model@channel`: the pointer is read once, then only its release.

    Raises:
        NotFoundError: The channel has no release.
        IntegrityError: The pointer or the manifest does not match its digest.
    """
    check_name(model)
    check_name(channel, what="channel")
    pointer = storage.read_pointer(model, channel)
    if pointer is None:
        raise no_active_release(model, channel, served=storage.list_channels())
    manifest = parse_manifest(storage.read_manifest(pointer.release), where=pointer.release[:12])
    folder = storage.release_path(pointer.release)
    order = {target: rank for rank, target in enumerate(host.targets)}
    candidates = sorted(
        (_judge_plan(engine, host, folder) for engine in manifest.engines),
        key=lambda found: (not found.usable, order.get(found.engine.target, len(order)), found.engine.target),
    )
    chosen = candidates[0].engine if candidates and candidates[0].usable else None
    return Resolution(
        pointer=pointer,
        manifest=manifest,
        candidates=tuple(candidates),
        chosen=chosen,
        path=folder / chosen.plan.path if folder is not None and chosen is not None else None,
    )
