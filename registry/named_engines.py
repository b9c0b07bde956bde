"""The engines that a promotion names by id: of this version, built, one for a target, and of what is promoted. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from modelreg.registry.errors import GateFailedError, NotFoundError, UsageError
from modelreg.registry.records import EngineRecord, VersionRecord
from modelreg.registry.references import ModelReference
from modelreg.registry.words import EngineStatus, Precision


def require_promotable(
    named: Sequence[EngineRecord],
    *,
    reference: ModelReference,
    version: VersionRecord,
    served: frozenset[int] | None,
    precision: Precision | None,
) -> dict[str, EngineRecord]:
    """
    Return the named engines by target.

    Args:
        named: Each once.
        reference: What the user wrote.
        version: The version that it names.
        served: Where it names a channel, the ids of the engines that this one serves.
        precision: The only one that is asked for, or None.

    Raises:
        NotFoundError: An engine is of another version, or the channel does not serve it.
        GateFailedError: There is no plan of it: its build failed, or `gc` removed it.
        UsageError: Two are for one target, or one is of another precision.
    """
    chosen: dict[str, EngineRecord] = {}
    for engine in named:
        _require_own(engine, reference, version, served)
        _require_plan(engine, version)
        target = engine.target.name
        if precision not in (None, engine.precision):
            raise UsageError(
                f"engine {engine.id} is {engine.precision}, and --precision {precision} is asked for",
                hint="Leave --precision out: --engine says which.",
            )
        if target in chosen:
            raise UsageError(
                f"engines {chosen[target].id} and {engine.id} are both for {target}",
                hint="A release has one engine for each target: name one of them.",
            )
        chosen[target] = engine
    return chosen


def require_wanted(
    named: dict[str, EngineRecord], targets: Sequence[str], *, explicit: Sequence[str], channel_wants: Sequence[str]
) -> None:
    """
    Let the named engines pass if each is for one of the targets that are promoted.

    Raises:
        UsageError: One is for another, and would be left out without a word.
    """
    for target, engine in named.items():
        if target not in targets:
            who = (
                f"--target {','.join(explicit)}"
                if explicit
                else f"the channel, which is for {', '.join(channel_wants)},"
            )
            raise UsageError(
                f"engine {engine.id} is for {target}, and {who} leaves that out",
                hint=f"Leave --engine {engine.id} out, or say which targets to serve: --target"
                f" {','.join((*targets, target))}.",
            )


def require_of(engine: EngineRecord, version: VersionRecord) -> None:
    """Raise NotFoundError where an engine that a user names is of another version."""
    if engine.version_id != version.id:
        raise NotFoundError(
            f"engine {engine.id} is not one of {version.reference}",
            hint=f"It is one of {engine.model}:{engine.version}.",
        )


def _require_own(
    engine: EngineRecord, reference: ModelReference, version: VersionRecord, served: frozenset[int] | None
) -> None:
    require_of(engine, version)
    if served is not None and engine.id not in served:
        raise NotFoundError(
            f"engine {engine.id} is not one that {reference} serves",
            hint=f"Promote it as one of {version.reference}.",
        )


def _require_plan(engine: EngineRecord, version: VersionRecord) -> None:
    name = f"engine {engine.id} ({engine.target.name} {engine.precision})"
    if engine.status is not EngineStatus.BUILT:
        raise GateFailedError(
            f"{name} was not built: {engine.brief_error}",
            hint=f"`modelreg show {version.reference} --log {engine.id}` prints why.",
        )
    if engine.is_swept:
        raise GateFailedError(
            f"the plan of {name} was removed by gc", hint=f"`modelreg build {version.reference}` makes it again."
        )
