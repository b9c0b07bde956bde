"""Benchmarks: what an engine took at one batch size, with the state of the clocks and a digest of every run.

A revision never changes once released, so it repeats what `registry.schema` says instead of importing it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "benchmark",
        sa.Column("id", ID, nullable=False),
        sa.Column("engine_id", ID, nullable=False),
        sa.Column("batch", sa.Integer(), nullable=False),
        sa.Column("boundary", sa.String(length=32), nullable=False),
        sa.Column("figures", sa.JSON(), nullable=False),
        sa.Column("comparisons", sa.JSON(), nullable=False),
        sa.Column("samples_digest", sa.String(length=64), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("clocks", sa.JSON(), nullable=False),
        sa.Column("host", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(["engine_id"], ["engine.id"], name=op.f("fk_benchmark_engine_id_engine")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_benchmark")),
    )
    op.create_index(op.f("ix_benchmark_engine_id"), "benchmark", ["engine_id"], unique=False)


def downgrade() -> None:
    """Remove the table and the rows of its blobs, for whose kind an older program has no word."""
    op.drop_index(op.f("ix_benchmark_engine_id"), table_name="benchmark")
    op.drop_table("benchmark")
    op.execute("DELETE FROM blob WHERE kind = 'samples'")
