"""What a host asks of a channel, what it gets, and which engines of a release that are. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from modelreg.registry.errors import NotFoundError
from modelreg.registry.manifest import Manifest, ReleasedEngine
from modelreg.registry.pointers import Pointer


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """What a pull left current. `path` is the release's folder, `plans` maps a target to the file that its backend
    loads; `changed` is False where all was there already."""

    pointer: Pointer
    path: Path
    plans: dict[str, Path]
    fetched_bytes: int
    reused_bytes: int
    changed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest:
    """Which channel of which store, for which targets (`wanted`; empty: those in `host_targets` that it has)."""

    store_url: str
    model: str
    channel: str
    wanted: tuple[str, ...] = ()
    host_targets: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return NAME@CHANNEL."""
        return f"{self.model}@{self.channel}"


def choose_engines(manifest: Manifest, request: PullRequest) -> tuple[ReleasedEngine, ...]:
    """
    Return the engines to bring. Pure.

    Raises:
        NotFoundError: The release has none for a target that was asked for, or none for this host.
    """
    has = ", ".join(manifest.targets) or "nothing"
    if missing := [target for target in request.wanted if target not in manifest.targets]:
        raise NotFoundError(f"{request.name} has no engine for {missing[0]}", hint=f"It serves {has}.")
    wanted = request.wanted or request.host_targets
    chosen = tuple(engine for engine in manifest.engines if engine.target in wanted)
    if not chosen:
        raise NotFoundError(
            f"{request.name} serves {has}, and this host has {', '.join(wanted)}",
            hint="Build and promote an engine for it, or name what to pull with --target.",
        )
    return chosen
