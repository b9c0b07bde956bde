"""Which schema a database has, and whether this program reads and writes it."""

from __future__ import annotations

import sqlalchemy as sa

from modelreg.registry.errors import DatabaseError, SchemaVersionError
from modelreg.registry.schema import SCHEMA_REVISION
from modelreg.registry.sqlite import RESTORE_HINT

REVISION = sa.text("SELECT version_num FROM alembic_version")
"""The query that asks a database; it fails where there is no schema at all."""


def read_revision(connection: sa.Connection) -> str | None:
    """Return the schema revision as `Database.revision` does, in a transaction that goes on."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.execute(REVISION).scalar()
    return found


def require_schema(found: str | None, *, name: str) -> str:
    """
    Return the schema revision of a database that has one.

    Raises:
        DatabaseError: It has none: a file that was cut off or put there, which is as bad as a missing one.
    """
    if found is None:
        raise DatabaseError(f"database {name} is empty", hint=RESTORE_HINT)
    return found


def check_revision(revision: str | None, *, name: str) -> None:
    """
    Check that a schema revision is the one this program reads and writes.

    Raises:
        DatabaseError: There is none.
        SchemaVersionError: It is older, or newer.
    """
    found = require_schema(revision, name=name)
    if found == SCHEMA_REVISION:
        return
    if found < SCHEMA_REVISION:
        raise SchemaVersionError(
            f"database {name} has schema {found}, this modelreg needs {SCHEMA_REVISION}",
            hint="Run `modelreg db upgrade`.",
        )
    raise SchemaVersionError(
        f"database {name} has schema {found}, this modelreg knows {SCHEMA_REVISION}",
        hint="It was written by a newer modelreg: upgrade modelreg.",
    )
