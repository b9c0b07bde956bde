"""Registered toolchains: added, changed and retired, one row each time.

A revision never changes once released, so it repeats what `registry.schema` says instead of importing it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "toolchain_state",
        sa.Column("id", ID, nullable=False),
        sa.Column("toolchain_id", ID, nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(
            ["toolchain_id"], ["toolchain.id"], name=op.f("fk_toolchain_state_toolchain_id_toolchain")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_toolchain_state")),
    )
    op.create_index(op.f("ix_toolchain_state_name"), "toolchain_state", ["name"], unique=False)


def downgrade() -> None:
    """Remove the table."""
    op.drop_index(op.f("ix_toolchain_state_name"), table_name="toolchain_state")
    op.drop_table("toolchain_state")
