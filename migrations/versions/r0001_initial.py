"""The first schema: everything from sources to activations.

A revision never changes once released, so it repeats what `registry.schema` says instead of importing it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
OPEN = sa.text("state IN ('prepared', 'unknown')")


def upgrade() -> None:
    """Make every table."""
    op.create_table(
        "blob",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_blob")),
    )
    op.create_table(
        "event",
        sa.Column("sequence", ID, autoincrement=False, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.String(length=255), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("details", sa.Text(), nullable=False),
        sa.Column("previous_hash", sa.String(length=64), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_event")),
    )
    op.create_table(
        "model",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("next_version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(length=255), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_model")),
        sa.UniqueConstraint("name", name=op.f("uq_model_name")),
    )
    op.create_table(
        "target",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("gpu", sa.String(length=128), nullable=False),
        sa.Column("sm_count", sa.Integer(), nullable=False),
        sa.Column("driver", sa.String(length=64), nullable=False),
        sa.Column("cuda", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_target")),
        sa.UniqueConstraint(
            "name", "gpu", "sm_count", "driver", "cuda", name=op.f("uq_target_name_gpu_sm_count_driver_cuda")
        ),
    )
    op.create_table(
        "toolchain",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("backend", sa.String(length=32), nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.Column("python", sa.Text(), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(length=255), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_toolchain")),
        sa.UniqueConstraint(
            "name", "backend", "version", "python", name=op.f("uq_toolchain_name_backend_version_python")
        ),
    )
    op.create_table(
        "variant",
        sa.Column("id", ID, nullable=False),
        sa.Column("source_digest", sa.String(length=64), nullable=False),
        sa.Column("recipe_digest", sa.String(length=64), nullable=False),
        sa.Column("files", sa.JSON(), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(length=255), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_variant")),
        sa.UniqueConstraint("source_digest", "recipe_digest", name=op.f("uq_variant_source_digest_recipe_digest")),
    )
    op.create_table(
        "channel",
        sa.Column("id", ID, nullable=False),
        sa.Column("model_id", ID, nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("policy", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(["model_id"], ["model.id"], name=op.f("fk_channel_model_id_model")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_channel")),
        sa.UniqueConstraint("model_id", "name", name=op.f("uq_channel_model_id_name")),
    )
    op.create_table(
        "version",
        sa.Column("id", ID, nullable=False),
        sa.Column("model_id", ID, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("source_digest", sa.String(length=64), nullable=False),
        sa.Column("signature", sa.JSON(), nullable=False),
        sa.Column("opsets", sa.JSON(), nullable=False),
        sa.Column("ir_version", sa.Integer(), nullable=False),
        sa.Column("producer", sa.Text(), nullable=False),
        sa.Column("node_counts", sa.JSON(), nullable=False),
        sa.Column("parameter_bytes", sa.BigInteger(), nullable=False),
        sa.Column("unbuildable", sa.JSON(), nullable=False),
        sa.Column("warnings", sa.JSON(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(["model_id"], ["model.id"], name=op.f("fk_version_model_id_model")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_version")),
        sa.UniqueConstraint("model_id", "number", name=op.f("uq_version_model_id_number")),
        sa.UniqueConstraint("model_id", "source_digest", name=op.f("uq_version_model_id_source_digest")),
    )
    op.create_table(
        "engine",
        sa.Column("id", ID, nullable=False),
        sa.Column("version_id", ID, nullable=False),
        sa.Column("target_id", ID, nullable=False),
        sa.Column("toolchain_id", ID, nullable=False),
        sa.Column("precision", sa.String(length=16), nullable=False),
        sa.Column("recipe", sa.JSON(), nullable=False),
        sa.Column("recipe_digest", sa.String(length=64), nullable=False),
        sa.Column("variant_digest", sa.String(length=64), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("files", sa.JSON(), nullable=False),
        sa.Column("plan_digest", sa.String(length=64), nullable=False),
        sa.Column("realised", sa.JSON(), nullable=False),
        sa.Column("build_s", sa.Float(), nullable=False),
        sa.Column("log_digest", sa.String(length=64), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(["target_id"], ["target.id"], name=op.f("fk_engine_target_id_target")),
        sa.ForeignKeyConstraint(["toolchain_id"], ["toolchain.id"], name=op.f("fk_engine_toolchain_id_toolchain")),
        sa.ForeignKeyConstraint(["version_id"], ["version.id"], name=op.f("fk_engine_version_id_version")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_engine")),
    )
    op.create_index(op.f("ix_engine_version_id"), "engine", ["version_id"], unique=False)
    op.create_table(
        "golden_set",
        sa.Column("id", ID, nullable=False),
        sa.Column("version_id", ID, nullable=False),
        sa.Column("blob_digest", sa.String(length=64), nullable=False),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("origin", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(["blob_digest"], ["blob.digest"], name=op.f("fk_golden_set_blob_digest_blob")),
        sa.ForeignKeyConstraint(["version_id"], ["version.id"], name=op.f("fk_golden_set_version_id_version")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_golden_set")),
    )
    op.create_index(op.f("ix_golden_set_version_id"), "golden_set", ["version_id"], unique=False)
    op.create_table(
        "release",
        sa.Column("id", ID, nullable=False),
        sa.Column("version_id", ID, nullable=False),
        sa.Column("manifest_digest", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(["version_id"], ["version.id"], name=op.f("fk_release_version_id_version")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_release")),
        sa.UniqueConstraint("manifest_digest", name=op.f("uq_release_manifest_digest")),
    )
    op.create_table(
        "version_file",
        sa.Column("version_id", ID, nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("blob_digest", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["blob_digest"], ["blob.digest"], name=op.f("fk_version_file_blob_digest_blob")),
        sa.ForeignKeyConstraint(["version_id"], ["version.id"], name=op.f("fk_version_file_version_id_version")),
        sa.PrimaryKeyConstraint("version_id", "position", name=op.f("pk_version_file")),
    )
    op.create_table(
        "activation",
        sa.Column("channel_id", ID, nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("release_id", ID, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("rolls_back_to", sa.Integer(), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("overridden", sa.JSON(), nullable=False),
        sa.Column("txn", sa.String(length=36), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(["channel_id"], ["channel.id"], name=op.f("fk_activation_channel_id_channel")),
        sa.ForeignKeyConstraint(["release_id"], ["release.id"], name=op.f("fk_activation_release_id_release")),
        sa.PrimaryKeyConstraint("channel_id", "generation", name=op.f("pk_activation")),
        sa.UniqueConstraint("txn", name=op.f("uq_activation_txn")),
    )
    op.create_table(
        "operation",
        sa.Column("id", ID, nullable=False),
        sa.Column("txn", sa.String(length=36), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("channel_id", ID, nullable=False),
        sa.Column("release_id", ID, nullable=False),
        sa.Column("expected_generation", sa.Integer(), nullable=False),
        sa.Column("pointer", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("owner", sa.JSON(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(["channel_id"], ["channel.id"], name=op.f("fk_operation_channel_id_channel")),
        sa.ForeignKeyConstraint(["release_id"], ["release.id"], name=op.f("fk_operation_release_id_release")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_operation")),
        sa.UniqueConstraint("txn", name=op.f("uq_operation_txn")),
    )
    op.create_index(
        "ix_operation_open", "operation", ["channel_id"], unique=True, sqlite_where=OPEN, postgresql_where=OPEN
    )
    op.create_table(
        "release_engine",
        sa.Column("release_id", ID, nullable=False),
        sa.Column("target", sa.String(length=64), nullable=False),
        sa.Column("engine_id", ID, nullable=False),
        sa.ForeignKeyConstraint(["engine_id"], ["engine.id"], name=op.f("fk_release_engine_engine_id_engine")),
        sa.ForeignKeyConstraint(["release_id"], ["release.id"], name=op.f("fk_release_engine_release_id_release")),
        sa.PrimaryKeyConstraint("release_id", "target", name=op.f("pk_release_engine")),
    )
    op.create_table(
        "validation",
        sa.Column("id", ID, nullable=False),
        sa.Column("engine_id", ID, nullable=False),
        sa.Column("golden_digest", sa.String(length=64), nullable=False),
        sa.Column("policy_digest", sa.String(length=64), nullable=False),
        sa.Column("policy", sa.JSON(), nullable=False),
        sa.Column("verdict", sa.String(length=16), nullable=False),
        sa.Column("gates", sa.JSON(), nullable=False),
        sa.Column("report_digest", sa.String(length=64), nullable=False),
        sa.Column("host", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(["engine_id"], ["engine.id"], name=op.f("fk_validation_engine_id_engine")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_validation")),
    )
    op.create_index(op.f("ix_validation_engine_id"), "validation", ["engine_id"], unique=False)


def downgrade() -> None:
    """Remove every table, children first."""
    op.drop_index(op.f("ix_validation_engine_id"), table_name="validation")
    op.drop_table("validation")
    op.drop_table("release_engine")
    op.drop_index("ix_operation_open", table_name="operation", sqlite_where=OPEN, postgresql_where=OPEN)
    op.drop_table("operation")
    op.drop_table("activation")
    op.drop_table("version_file")
    op.drop_table("release")
    op.drop_index(op.f("ix_golden_set_version_id"), table_name="golden_set")
    op.drop_table("golden_set")
    op.drop_index(op.f("ix_engine_version_id"), table_name="engine")
    op.drop_table("engine")
    op.drop_table("version")
    op.drop_table("channel")
    op.drop_table("variant")
    op.drop_table("toolchain")
    op.drop_table("target")
    op.drop_table("model")
    op.drop_table("event")
    op.drop_table("blob")
