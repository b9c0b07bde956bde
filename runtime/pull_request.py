"""What a host asks of a channel, what it gets, and which engines of a release that are. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from modelreg.registry.errors import IntegrityError, NotFoundError, UsageError
from modelreg.registry.manifest import Manifest, ReleasedEngine
from modelreg.registry.pointers import Pointer
from modelreg.registry.words import Json


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

    def to_json(self) -> Json:
        """Return what the folder's state says was asked for."""
        return {
            "store": self.store_url,
            "name": self.name,
            "wanted": list(self.wanted),
            "host": list(self.host_targets),
        }


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
    chosen = tuple(engine for engine in manifest.listed if engine.target in wanted)
    if not chosen:
        raise NotFoundError(
            f"{request.name} serves {has}, and this host has {', '.join(wanted)}",
            hint="Build and promote an engine for it, or name what to pull with --target.",
        )
    return chosen


def require_forward(before: Pointer | None, pointer: Pointer, root: Path) -> None:
    """
    Check that `pointer` goes on from what `root` has. Pure.

    Raises:
        UsageError: The folder holds another channel.
        IntegrityError: The channel went back.
    """
    if before is None:
        return
    if (before.model, before.channel) != (pointer.model, pointer.channel):
        raise UsageError(
            f"{root} holds {before.model}@{before.channel}", hint="Pull each channel into a folder of its own."
        )
    if pointer.generation < before.generation:
        raise IntegrityError(
            f"the store serves generation {pointer.generation}, and {root} has {before.generation} already",
            hint=f"The store was restored from an older copy? Remove {root / 'pointer.json'} to accept it.",
        )
