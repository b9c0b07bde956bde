"""Which engine of the active release this host would load, and why the others not. Reads the store alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from modelreg.registry.manifest import Manifest, ReleasedEngine, parse_manifest
from modelreg.registry.pointers import Pointer
from modelreg.registry.references import check_name
from modelreg.registry.storage.interface import Storage
from modelreg.registry.suggestions import no_active_release
from modelreg.runtime.host import Host


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


def judge(engine: ReleasedEngine, host: Host) -> Suitability:
    """Return whether `host` can load `engine`. Pure: only what the manifest records is compared."""
    if engine.target not in host.targets:
        found = ", ".join(host.targets)
        return Suitability(engine=engine, usable=False, reason=f"needs {engine.target}; this host has {found}")
    if engine.backend not in host.backends:
        return Suitability(engine=engine, usable=False, reason=f"{engine.backend} is not installed here")
    return Suitability(engine=engine, usable=True, reason=f"runs on {engine.target}")


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
    order = {target: rank for rank, target in enumerate(host.targets)}
    candidates = sorted(
        (judge(engine, host) for engine in manifest.engines),
        key=lambda found: (not found.usable, order.get(found.engine.target, len(order)), found.engine.target),
    )
    chosen = candidates[0].engine if candidates and candidates[0].usable else None
    folder = storage.release_path(pointer.release)
    return Resolution(
        pointer=pointer,
        manifest=manifest,
        candidates=tuple(candidates),
        chosen=chosen,
        path=folder / chosen.plan.path if folder is not None and chosen is not None else None,
    )
