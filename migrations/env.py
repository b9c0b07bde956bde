"""What Alembic runs for every command; the connection comes from `runner`, there is no ini file."""

from __future__ import annotations

from alembic import context

from modelreg.registry import schema


def run_migrations() -> None:
    """Run the chosen revisions on the caller's connection, inside the caller's transaction."""
    connection = context.config.attributes["connection"]
    if connection.dialect.name == "postgresql":
        schema.complete_for_postgresql()
    context.configure(
        connection=connection,
        target_metadata=schema.metadata,
        render_as_batch=True,
        transactional_ddl=True,
    )
    with context.begin_transaction():
        context.run_migrations()


if __name__ != "modelreg.migrations.env":  # Alembic runs this file under a name of its own
    run_migrations()
