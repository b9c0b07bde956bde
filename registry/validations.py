"""Validations: what a policy made of an engine."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from modelreg.registry.clock import utc_now
from modelreg.registry.database import insert_row
from modelreg.registry.events import append_event
from modelreg.registry.records import EngineRecord, GateResult, ValidationRecord
from modelreg.registry.rows import decoding
from modelreg.registry.schema import engine, validation
from modelreg.registry.statements import Row, Statement
from modelreg.registry.words import Json, Verdict

_INSERT = sa.insert(validation)
_NEWEST_IDS = (
    sa.select(sa.func.max(validation.c.id))
    .join_from(validation, engine)
    .where(engine.c.version_id == sa.bindparam("of_version"))
    .group_by(validation.c.engine_id)
)
_NEWEST = Statement(sa.select(validation).where(validation.c.id.in_(_NEWEST_IDS)))


def record_validation(
    connection: sa.Connection,
    *,
    engine: EngineRecord,
    golden_digest: str,
    policy_digest: str,
    policy: Json,
    verdict: Verdict,
    gates: Sequence[GateResult],
    report_digest: str,
    host: Json,
    actor: str,
) -> ValidationRecord:
    """Add one run of a policy; earlier runs stay."""
    now = utc_now()
    row = {
        "engine_id": engine.id,
        "golden_digest": golden_digest,
        "policy_digest": policy_digest,
        "policy": policy,
        "verdict": str(verdict),
        "gates": [gate.to_json() for gate in gates],
        "report_digest": report_digest,
        "host": host,
        "created_at": now,
        "created_by": actor,
    }
    validation_id = insert_row(connection, _INSERT, row)
    append_event(
        connection,
        kind="engine.validated",
        subject=f"{engine.model}:{engine.version}",
        details={"engine": engine.id, "verdict": str(verdict), "policy": policy_digest, "report": report_digest},
        actor=actor,
    )
    return ValidationRecord(
        id=validation_id,
        engine_id=engine.id,
        golden_digest=golden_digest,
        policy_digest=policy_digest,
        policy=policy,
        verdict=verdict,
        gates=tuple(gates),
        report_digest=report_digest,
        host=host,
        created_at=now,
        created_by=actor,
    )


@decoding("validation")
def newest_validations(connection: sa.Connection, *, version_id: int) -> dict[int, ValidationRecord]:
    """Return the newest validation of each engine of a version, by engine id; one never validated has no entry."""
    return {row.engine_id: _validation(row) for row in _NEWEST.rows(connection, of_version=version_id)}


def _validation(row: Row) -> ValidationRecord:
    return ValidationRecord(
        id=row.id,
        engine_id=row.engine_id,
        golden_digest=row.golden_digest,
        policy_digest=row.policy_digest,
        policy=row.policy,
        verdict=Verdict(row.verdict),
        gates=tuple(GateResult.from_json(gate) for gate in row.gates),
        report_digest=row.report_digest,
        host=row.host,
        created_at=row.created_at,
        created_by=row.created_by,
    )
