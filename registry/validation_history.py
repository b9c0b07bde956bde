"""What was measured of a model's versions, one verdict for each engine: the history that reports plot."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from modelreg.registry.records import GateResult
from modelreg.registry.rows import decoding
from modelreg.registry.schema import engine, model, target, toolchain, validation, version
from modelreg.registry.statements import Statement
from modelreg.registry.words import Backend, Precision, Verdict

_OF_MODEL = (
    sa.select(version.c.id)
    .join_from(version, model)
    .where(model.c.name == sa.bindparam("model_name"), version.c.number <= sa.bindparam("up_to"))
    .order_by(version.c.number.desc())
    .limit(sa.bindparam("versions", type_=sa.Integer))
)
_NEWEST_IDS = (
    sa.select(sa.func.max(validation.c.id))
    .join_from(validation, engine)
    .where(engine.c.version_id.in_(_OF_MODEL))
    .group_by(validation.c.engine_id)
)
_PAST = Statement(
    sa.select(
        version.c.number,
        engine.c.id.label("engine_id"),
        engine.c.precision,
        target.c.name.label("target"),
        toolchain.c.backend,
        validation.c.verdict,
        validation.c.gates,
        validation.c.created_at,
    )
    .select_from(validation)
    .join(engine, engine.c.id == validation.c.engine_id)
    .join(version, version.c.id == engine.c.version_id)
    .join(target, target.c.id == engine.c.target_id)
    .join(toolchain, toolchain.c.id == engine.c.toolchain_id)
    .where(validation.c.id.in_(_NEWEST_IDS))
    .order_by(version.c.number, validation.c.id)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PastVerdict:
    """The newest verdict on one engine of a version."""

    version: int
    engine_id: int
    target: str
    precision: Precision
    backend: Backend
    verdict: Verdict
    at: datetime
    gates: tuple[GateResult, ...]


@decoding("validation")
def list_past_verdicts(connection: sa.Connection, *, model: str, up_to: int, versions: int) -> list[PastVerdict]:
    """Return the newest verdict of each engine of a model's versions, the oldest version first.

    Args:
        connection: In any transaction.
        model: The model's name.
        up_to: The last version.
        versions: At most so many versions.
    """
    return [
        PastVerdict(
            version=row.number,
            engine_id=row.engine_id,
            target=row.target,
            precision=Precision(row.precision),
            backend=Backend(row.backend),
            verdict=Verdict(row.verdict),
            at=row.created_at,
            gates=tuple(GateResult.from_json(gate) for gate in row.gates),
        )
        for row in _PAST.rows(connection, model_name=model, up_to=up_to, versions=versions)
    ]
