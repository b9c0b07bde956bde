"""What is said where a version has no engine of those that were asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from modelreg.registry.errors import NotFoundError

if TYPE_CHECKING:
    import sqlalchemy as sa

    from modelreg.registry.records import EngineRecord, VersionRecord
    from modelreg.registry.words import Precision


def no_engine(
    version: VersionRecord,
    built: Sequence[EngineRecord],
    *,
    precisions: Sequence[Precision] = (),
    targets: Sequence[str] = (),
) -> NotFoundError:
    """Return the error for a version none of whose built engines is of these precisions and targets."""
    if not built:
        return NotFoundError(
            f"{version.reference} has no built engine", hint=f"Run `modelreg build {version.reference}`."
        )
    kind = f"{' or '.join(precisions)} engine" if precisions else "engine"
    place = f" for {' or '.join(targets)}" if targets else ""
    return NotFoundError(
        f"{version.reference} has no built {kind}{place}",
        hint=f"It has {say_cells(built)}: `modelreg show {version.reference}`.",
    )


def say_cells(engines: Iterable[EngineRecord]) -> str:
    """Return targets and precisions of engines, each once: `cpu fp32, sm_89 fp16`."""
    from modelreg.registry.target_order import target_key

    ordered = sorted(engines, key=lambda engine: (target_key(engine.target.name), engine.id))
    return ", ".join(dict.fromkeys(f"{engine.target.name} {engine.precision}" for engine in ordered))


def require_engine(connection: sa.Connection, engine_id: int, *, version: VersionRecord) -> EngineRecord:
    """
    Return the built engine that a user names by its id.

    Raises:
        NotFoundError: There is none, it is of another version, or its build failed.
    """
    from modelreg.registry.engines import get_engine
    from modelreg.registry.named_engines import require_of

    engine = get_engine(connection, engine_id)
    require_of(engine, version)
    if not engine.files:
        raise NotFoundError(
            f"engine {engine_id} ({engine.target.name} {engine.precision}) was not built: {engine.brief_error}",
            hint=f"`modelreg show {version.reference} --log {engine_id}` prints why.",
        )
    return engine
