"""Which engine of the active release this host would load, and why the others not. Reads the store alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple  # a tenth of a dataclass's start-up

from modelreg.registry.errors import IntegrityError
from modelreg.registry.manifest import Manifest, ReleasedEngine, parse_manifest
from modelreg.registry.pointers import Pointer
from modelreg.registry.references import check_name
from modelreg.registry.storage.interface import Storage
from modelreg.registry.suggestions import no_active_release
from modelreg.registry.target_order import target_key
from modelreg.registry.words import Precision
from modelreg.runtime.host import Host
from modelreg.runtime.suitability import BOUND_TO_VERSION, Suitability, compute_capability, judge

Preference = Callable[[str], Sequence[Precision]]
"""Returns a target's precisions, the most wanted first."""


class Resolution(NamedTuple):
    """What a channel serves to one host: the best candidate first; none is chosen where no engine runs there."""

    pointer: Pointer
    manifest: Manifest
    candidates: tuple[Suitability, ...]
    folder: Path | None

    @property
    def best(self) -> Suitability | None:
        """Return the candidate that the host would load."""
        return self.candidates[0] if self.candidates and self.candidates[0].usable else None

    @property
    def chosen(self) -> ReleasedEngine | None:
        """Return its engine."""
        return None if self.best is None else self.best.engine

    @property
    def path(self) -> Path | None:
        """Return its plan, where that is a local file."""
        return None if self.best is None or self.folder is None else self.folder / self.best.engine.plan.path


def resolve(
    storage: Storage,
    model: str,
    channel: str,
    host: Host,
    *,
    preference: Preference = lambda _target: (),
) -> Resolution:
    """
    Return what `host` would load for `model@channel`: the pointer is read once, then only its release.

    Args:
        storage: The store.
        model: The model.
        channel: Its channel.
        host: What would load it.
        preference: Decides between engines that fit equally well.

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
    return resolve_release(pointer, manifest, storage.release_path(pointer.release), host, preference=preference)


def resolve_release(
    pointer: Pointer,
    manifest: Manifest,
    folder: Path | None,
    host: Host,
    *,
    preference: Preference = lambda _target: (),
) -> Resolution:
    """Return what `host` would load of a release whose files are in `folder`, None where they are no local files."""
    judged = [_judge_plan(engine, host, folder, pointer) for engine in manifest.engines]
    return Resolution(
        pointer=pointer, manifest=manifest, candidates=rank(judged, host, preference=preference), folder=folder
    )


def _judge_plan(engine: ReleasedEngine, host: Host, folder: Path | None, pointer: Pointer) -> Suitability:
    """Judge an engine by its plan's header too, where the plan is a local file."""
    header, damage = None, ""
    if folder is not None and engine.backend in BOUND_TO_VERSION:
        from modelreg.registry.plans import read_plan_header  # noqa: PLC0415 - releases for CPUs start without it

        try:
            header = read_plan_header(folder / engine.plan.path)
        except IntegrityError as error:
            damage = str(error)
        except OSError as error:
            damage = f"its plan cannot be read: {error.strerror}"
    return judge(engine, host, header=header, damage=damage, overridden=pointer.overridden)


def rank(judged: Sequence[Suitability], host: Host, *, preference: Preference) -> tuple[Suitability, ...]:
    """
    Return candidates, what the host should load first; what it cannot load comes last.

    A GPU goes before the CPU; what was built for the GPU's architecture before what is compatible with it; what passed
    its gates before what went over them; then the host's first GPU, the preferred precision, the nearest architecture.
    What cannot be loaded is in the order of its targets.
    """
    order = {target: index for index, target in enumerate(host.targets)}

    def key(found: Suitability) -> tuple[bool | int | str, ...]:
        engine, target = found.engine, found.runs_on or found.engine.target
        wanted = list(preference(target))
        precision = wanted.index(engine.precision) if engine.precision in wanted else len(wanted)
        if not found.usable:
            return (True, *target_key(engine.target), precision)
        return (
            False,
            target == "cpu",
            not found.is_exact,
            not found.passes_gates,
            order.get(target, len(order)),
            precision,
            abs(compute_capability(target) - compute_capability(engine.target)),
            *target_key(engine.target),
        )

    return tuple(sorted(judged, key=key))


def why_behind(best: Suitability, other: Suitability) -> str:
    """Return why an engine that could be loaded ranks behind the best one."""
    if other.runs_on == "cpu":
        return "a GPU goes before the CPU"
    if best.is_exact and not other.is_exact:
        return "an exact match goes before a compatible one"
    if best.passes_gates and not other.passes_gates:
        return "its gates were overridden"
    if best.runs_on != other.runs_on:
        return f"{best.runs_on} is this host's first GPU"
    if best.engine.precision is not other.engine.precision:
        return f"{best.engine.precision} is preferred"
    return f"{best.engine.target} is nearer"
