"""A registry's database copied into another one, of the same kind or not, whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from modelreg.registry import schema
from modelreg.registry.database import Database
from modelreg.registry.errors import DatabaseError

_PAGE = 1000


def copy_database(source: Database, destination: Database) -> Mapping[str, int]:
    """
    Copy every row and return how many each table has; nobody writes to the source meanwhile.

    Args:
        source: Of this program's schema.
        destination: Of this program's schema, without rows.

    Raises:
        DatabaseError: The destination has rows, or either cannot be used; the destination is as it was.
    """
    counts = {}
    with source.write() as rows_from, destination.write() as rows_to:
        require_empty(rows_to, name=destination.name)
        for table in schema.metadata.sorted_tables:
            counts[table.name] = _copy_table(table, rows_from, rows_to)
    return counts


def require_empty(connection: sa.Connection, *, name: str) -> None:
    """Let a database without rows pass; raises DatabaseError."""
    for table in schema.metadata.sorted_tables:
        if connection.execute(sa.select(sa.exists(sa.select(sa.literal(1)).select_from(table)))).scalar():
            raise DatabaseError(
                f"database {name} has a registry already: rows in {table.name}", hint="Name an empty one to copy to."
            )


def _copy_table(table: sa.Table, source: sa.Connection, destination: sa.Connection) -> int:
    count = 0
    result = source.execute(sa.select(table).order_by(*table.primary_key), execution_options={"yield_per": _PAGE})
    for page in result.mappings().partitions():
        destination.execute(sa.insert(table), [dict(row) for row in page])
        count += len(page)
    key = table.autoincrement_column
    if count and key is not None and destination.dialect.name == "postgresql":
        # Its counters do not see keys that they have not given themselves.
        sequence = sa.func.pg_get_serial_sequence(table.name, key.name)
        destination.execute(sa.select(sa.func.setval(sequence, sa.select(sa.func.max(key)).scalar_subquery())))
    return count
