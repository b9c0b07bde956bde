"""The tables of the registry: SQLAlchemy Core, portable between SQLite and PostgreSQL.

Enums and flags are stored by name. Times are integer microseconds UTC. Rows of version, toolchain_state, engine,
validation, benchmark, release, activation and event are never updated; `tests/registry/test_schema.py` holds the
migrations to this module.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import sqlalchemy as sa

SCHEMA_REVISION = "0003"
"""The Alembic revision that this program reads and writes."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)


def to_microseconds(moment: datetime) -> int:
    """
    Return `moment` as integer microseconds since 1970 in UTC.

    Raises:
        ValueError: It is naive.
    """
    if moment.tzinfo is None:
        raise ValueError("times must be aware")
    return (moment - _EPOCH) // _MICROSECOND


def from_microseconds(stored: int) -> datetime:
    """Return the aware time that `to_microseconds` made into an integer."""
    return _EPOCH + timedelta(microseconds=stored)


class UtcTime(sa.TypeDecorator[datetime]):
    """An aware time stored as integer microseconds UTC; SQLite would drop the zone."""

    impl = sa.BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> int | None:
        """Refuse naive times and convert to microseconds."""
        del dialect
        return None if value is None else to_microseconds(value)

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> datetime | None:
        """Return the aware time."""
        del dialect
        return None if value is None else from_microseconds(value)


NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

metadata = sa.MetaData(naming_convention=NAMING)

Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _id() -> sa.Column[int]:
    return sa.Column("id", Id, primary_key=True)


def _digest(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.String(64), nullable=nullable)


def _created() -> tuple[sa.Column[datetime], sa.Column[str]]:
    return (
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("created_by", sa.String(255), nullable=False),
    )


model = sa.Table(
    "model",
    metadata,
    _id(),
    sa.Column("name", sa.String(128), nullable=False, unique=True),
    sa.Column("next_version", sa.Integer, nullable=False),
    *_created(),
)

blob = sa.Table(
    "blob",
    metadata,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("created_at", UtcTime(), nullable=False),
)

version = sa.Table(
    "version",
    metadata,
    _id(),
    sa.Column("model_id", sa.ForeignKey("model.id"), nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
    _digest("source_digest"),
    sa.Column("signature", sa.JSON, nullable=False),
    sa.Column("opsets", sa.JSON, nullable=False),
    sa.Column("ir_version", sa.Integer, nullable=False),
    sa.Column("producer", sa.Text, nullable=False),
    sa.Column("node_counts", sa.JSON, nullable=False),
    sa.Column("parameter_bytes", sa.BigInteger, nullable=False),
    sa.Column("unbuildable", sa.JSON, nullable=False),
    sa.Column("warnings", sa.JSON, nullable=False),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("tags", sa.JSON, nullable=False),
    *_created(),
    sa.UniqueConstraint("model_id", "number"),
    sa.UniqueConstraint("model_id", "source_digest"),
)

version_file = sa.Table(
    "version_file",
    metadata,
    sa.Column("version_id", sa.ForeignKey("version.id"), primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("blob_digest", sa.ForeignKey("blob.digest"), nullable=False),
)

variant = sa.Table(
    "variant",
    metadata,
    _id(),
    _digest("source_digest"),
    _digest("recipe_digest"),
    sa.Column("files", sa.JSON, nullable=False),
    sa.Column("details", sa.JSON, nullable=False),
    *_created(),
    sa.UniqueConstraint("source_digest", "recipe_digest"),
)

golden_set = sa.Table(
    "golden_set",
    metadata,
    _id(),
    sa.Column("version_id", sa.ForeignKey("version.id"), nullable=False),
    sa.Column("blob_digest", sa.ForeignKey("blob.digest"), nullable=False),
    sa.Column("samples", sa.Integer, nullable=False),
    sa.Column("origin", sa.JSON, nullable=False),
    *_created(),
    sa.Index(None, "version_id"),
)

toolchain = sa.Table(
    "toolchain",
    metadata,
    _id(),
    sa.Column("name", sa.String(128), nullable=False),
    sa.Column("backend", sa.String(32), nullable=False),
    sa.Column("version", sa.String(64), nullable=False),
    sa.Column("python", sa.Text, nullable=False),
    sa.Column("details", sa.JSON, nullable=False),
    *_created(),
    sa.UniqueConstraint("name", "backend", "version", "python"),
)

toolchain_state = sa.Table(
    "toolchain_state",
    metadata,
    _id(),
    sa.Column("toolchain_id", sa.ForeignKey("toolchain.id"), nullable=False),
    sa.Column("name", sa.String(128), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("details", sa.JSON, nullable=False),
    *_created(),
    sa.Index(None, "name"),
)
"""Registrations, the newest row of a name counts: `active` with what was probed then, or `retired`."""

target = sa.Table(
    "target",
    metadata,
    _id(),
    sa.Column("name", sa.String(64), nullable=False),
    sa.Column("gpu", sa.String(128), nullable=False),
    sa.Column("sm_count", sa.Integer, nullable=False),
    sa.Column("driver", sa.String(64), nullable=False),
    sa.Column("cuda", sa.String(64), nullable=False),
    sa.UniqueConstraint("name", "gpu", "sm_count", "driver", "cuda"),
)

engine = sa.Table(
    "engine",
    metadata,
    _id(),
    sa.Column("version_id", sa.ForeignKey("version.id"), nullable=False),
    sa.Column("target_id", sa.ForeignKey("target.id"), nullable=False),
    sa.Column("toolchain_id", sa.ForeignKey("toolchain.id"), nullable=False),
    sa.Column("precision", sa.String(16), nullable=False),
    sa.Column("recipe", sa.JSON, nullable=False),
    _digest("recipe_digest"),
    sa.Column("variant_digest", sa.String(64), nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("files", sa.JSON, nullable=False),
    sa.Column("plan_digest", sa.String(64), nullable=False),
    sa.Column("realised", sa.JSON, nullable=False),
    sa.Column("build_s", sa.Float, nullable=False),
    sa.Column("log_digest", sa.String(64), nullable=False),
    sa.Column("error", sa.Text, nullable=False),
    *_created(),
    sa.Index(None, "version_id"),
)

validation = sa.Table(
    "validation",
    metadata,
    _id(),
    sa.Column("engine_id", sa.ForeignKey("engine.id"), nullable=False),
    _digest("golden_digest"),
    _digest("policy_digest"),
    sa.Column("policy", sa.JSON, nullable=False),
    sa.Column("verdict", sa.String(16), nullable=False),
    sa.Column("gates", sa.JSON, nullable=False),
    _digest("report_digest"),
    sa.Column("host", sa.JSON, nullable=False),
    *_created(),
    sa.Index(None, "engine_id"),
)

benchmark = sa.Table(
    "benchmark",
    metadata,
    _id(),
    sa.Column("engine_id", sa.ForeignKey("engine.id"), nullable=False),
    sa.Column("batch", sa.Integer, nullable=False),
    sa.Column("boundary", sa.String(32), nullable=False),
    sa.Column("figures", sa.JSON, nullable=False),
    sa.Column("comparisons", sa.JSON, nullable=False),
    _digest("samples_digest"),
    sa.Column("settings", sa.JSON, nullable=False),
    sa.Column("clocks", sa.JSON, nullable=False),
    sa.Column("host", sa.JSON, nullable=False),
    *_created(),
    sa.Index(None, "engine_id"),
)

release = sa.Table(
    "release",
    metadata,
    _id(),
    sa.Column("version_id", sa.ForeignKey("version.id"), nullable=False),
    sa.Column("manifest_digest", sa.String(64), nullable=False, unique=True),
    *_created(),
)

release_engine = sa.Table(
    "release_engine",
    metadata,
    sa.Column("release_id", sa.ForeignKey("release.id"), primary_key=True),
    sa.Column("target", sa.String(64), primary_key=True),
    sa.Column("engine_id", sa.ForeignKey("engine.id"), nullable=False),
)

channel = sa.Table(
    "channel",
    metadata,
    _id(),
    sa.Column("model_id", sa.ForeignKey("model.id"), nullable=False),
    sa.Column("name", sa.String(128), nullable=False),
    sa.Column("policy", sa.JSON, nullable=False),
    *_created(),
    sa.UniqueConstraint("model_id", "name"),
)

activation = sa.Table(
    "activation",
    metadata,
    sa.Column("channel_id", sa.ForeignKey("channel.id"), primary_key=True),
    sa.Column("generation", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("release_id", sa.ForeignKey("release.id"), nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("rolls_back_to", sa.Integer, nullable=True),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("overridden", sa.JSON, nullable=False),
    sa.Column("txn", sa.String(36), nullable=False, unique=True),
    *_created(),
)

OPEN_OPERATION = sa.text("state IN ('prepared', 'unknown')")
"""Literal, since SQLite uses a partial index only for a query that repeats its condition word for word."""

operation = sa.Table(
    "operation",
    metadata,
    _id(),
    sa.Column("txn", sa.String(36), nullable=False, unique=True),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("channel_id", sa.ForeignKey("channel.id"), nullable=False),
    sa.Column("release_id", sa.ForeignKey("release.id"), nullable=False),
    sa.Column("expected_generation", sa.Integer, nullable=False),
    sa.Column("pointer", sa.JSON, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("owner", sa.JSON, nullable=False),
    sa.Column("error", sa.Text, nullable=False),
    sa.Column("updated_at", UtcTime(), nullable=False),
    *_created(),
    sa.Index(
        "ix_operation_open",
        "channel_id",
        unique=True,
        sqlite_where=OPEN_OPERATION,
    ),
)


def complete_for_postgresql() -> None:
    """Give the partial index its condition on PostgreSQL too: named above, it would import that dialect every time."""
    index = next(index for index in operation.indexes if index.name == "ix_operation_open")
    index.dialect_options["postgresql"]["where"] = OPEN_OPERATION


event = sa.Table(
    "event",
    metadata,
    sa.Column("sequence", Id, primary_key=True, autoincrement=False),
    sa.Column("at", UtcTime(), nullable=False),
    sa.Column("actor", sa.String(255), nullable=False),
    sa.Column("kind", sa.String(64), nullable=False),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("details", sa.Text, nullable=False),
    _digest("previous_hash"),
    _digest("hash"),
)
