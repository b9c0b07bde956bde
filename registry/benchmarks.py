"""Benchmarks: what engines took, run by run; measurements, from which nothing is decided here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from modelreg.registry.blobs import record_blob
from modelreg.registry.clock import utc_now
from modelreg.registry.database import insert_row
from modelreg.registry.events import append_event
from modelreg.registry.records import BenchmarkRecord, EngineRecord
from modelreg.registry.rows import decoding
from modelreg.registry.schema import benchmark, engine
from modelreg.registry.statements import Row, Statement
from modelreg.registry.words import BlobKind, Json

_INSERT = sa.insert(benchmark)
_NEWEST_IDS = (
    sa.select(sa.func.max(benchmark.c.id))
    .join_from(benchmark, engine)
    .where(engine.c.version_id == sa.bindparam("of_version"))
    .group_by(benchmark.c.engine_id, benchmark.c.batch)
)
_NEWEST = Statement(
    sa.select(benchmark).where(benchmark.c.id.in_(_NEWEST_IDS)).order_by(benchmark.c.engine_id, benchmark.c.batch)
)
_ALL = (
    sa.select(benchmark)
    .join_from(benchmark, engine)
    .where(engine.c.version_id == sa.bindparam("of_version"))
    .order_by(benchmark.c.id.desc())
    .limit(sa.bindparam("at_most", type_=sa.Integer))
)
_SAMPLES = (
    sa.select(benchmark.c.samples_digest)
    .join_from(benchmark, engine)
    .where(engine.c.version_id == sa.bindparam("of_version"))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One batch size of an engine, measured and not kept yet; the fields are those of `BenchmarkRecord`."""

    batch: int
    boundary: str
    figures: Json
    samples_digest: str
    samples_bytes: int
    comparisons: Sequence[Json] = field(default_factory=tuple)


def record_benchmarks(
    connection: sa.Connection,
    *,
    engine: EngineRecord,
    measured: Sequence[Measured],
    settings: Json,
    clocks: Json,
    host: Json,
    actor: str,
) -> list[BenchmarkRecord]:
    """Add what an engine took at some batch sizes, with one event; earlier benchmarks stay.

    The event is what a collector goes by: it names blobs that are needed from now on.
    """
    now = utc_now()
    records = []
    for each in measured:
        record_blob(connection, digest=each.samples_digest, size_bytes=each.samples_bytes, kind=BlobKind.SAMPLES)
        row: dict[str, Any] = {
            "engine_id": engine.id,
            "batch": each.batch,
            "boundary": each.boundary,
            "figures": each.figures,
            "comparisons": [*each.comparisons],
            "samples_digest": each.samples_digest,
            "settings": settings,
            "clocks": clocks,
            "host": host,
            "created_at": now,
            "created_by": actor,
        }
        row_id = insert_row(connection, _INSERT, row)
        records.append(BenchmarkRecord(id=row_id, **{**row, "comparisons": tuple(each.comparisons)}))
    append_event(
        connection,
        kind="engine.benchmarked",
        subject=f"{engine.model}:{engine.version}",
        details={"engine": engine.id, "batches": [each.batch for each in measured]},
        actor=actor,
    )
    return records


@decoding("benchmark")
def newest_benchmarks(connection: sa.Connection, *, version_id: int) -> dict[int, list[BenchmarkRecord]]:
    """Return the newest benchmark of each batch size of a version's engines, by engine id, the smallest batch first."""
    found: dict[int, list[BenchmarkRecord]] = {}
    for row in _NEWEST.rows(connection, of_version=version_id):
        found.setdefault(row.engine_id, []).append(_benchmark(row))
    return found


@decoding("benchmark")
def list_benchmarks(connection: sa.Connection, *, version_id: int, limit: int) -> list[BenchmarkRecord]:
    """Return the benchmarks of a version's engines, at most so many, the newest first."""
    rows = connection.execute(_ALL, {"of_version": version_id, "at_most": limit})
    return [_benchmark(row) for row in rows]


def list_samples(connection: sa.Connection, *, version_id: int) -> list[str]:
    """Return the digests of the runs of every benchmark of a version's engines."""
    return [*connection.execute(_SAMPLES, {"of_version": version_id}).scalars()]


def _benchmark(row: Row) -> BenchmarkRecord:
    return BenchmarkRecord(
        id=row.id,
        engine_id=row.engine_id,
        batch=row.batch,
        boundary=row.boundary,
        figures=row.figures,
        comparisons=tuple(row.comparisons),
        samples_digest=row.samples_digest,
        settings=row.settings,
        clocks=row.clocks,
        host=row.host,
        created_at=row.created_at,
        created_by=row.created_by,
    )
