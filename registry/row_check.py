"""Every row decoded: finds what the database's own check cannot, a value of the right shape that means nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from modelreg.registry import schema
from modelreg.registry.contents import Signature, StoredFile
from modelreg.registry.records import GateResult
from modelreg.registry.rows import explain
from modelreg.registry.words import (
    ActivationKind,
    Backend,
    BlobKind,
    EngineStatus,
    Json,
    OperationState,
    Precision,
    Verdict,
)

_PAGE = 1000


def _object(found: Any) -> Json:
    if not isinstance(found, dict):
        raise ValueError(f"{found!r:.40} is no JSON object")
    return found


def _list_of(decode: Callable[[Any], object]) -> Callable[[Any], object]:
    return lambda found: [decode(item) for item in found]


_MEANINGS: Mapping[str, Callable[[Any], object]] = {
    "activation.kind": ActivationKind,
    "activation.overridden": _list_of(str),
    "benchmark.comparisons": _list_of(_object),
    "benchmark.figures": lambda found: _object(_object(found)["boundaries"]),
    "blob.kind": BlobKind,
    "engine.files": _list_of(StoredFile.from_json),
    "engine.precision": Precision,
    "engine.status": EngineStatus,
    "operation.kind": ActivationKind,
    "operation.state": OperationState,
    "toolchain.backend": Backend,
    "validation.gates": _list_of(GateResult.from_json),
    "validation.verdict": Verdict,
    "variant.files": _list_of(StoredFile.from_json),
    "version.signature": Signature.from_json,
    "version.unbuildable": _list_of(str),
    "version.warnings": _list_of(str),
}
"""What a column's value must be made into; other JSON columns hold objects."""


def find_unreadable(connection: sa.Connection) -> Iterator[str]:
    """Read every row of every table, in constant memory, and say in one line each what cannot be decoded."""
    for table in schema.metadata.sorted_tables:
        raw = sa.select(*(_as_bytes(column, connection.dialect).label(column.name) for column in table.columns))
        for row in connection.execute(raw, execution_options={"yield_per": _PAGE}):
            for column, value in zip(table.columns, row, strict=True):
                fault = _fault(column, value, connection.dialect)
                if fault:
                    yield f"row {_key(table, row._mapping)} of {table.name}: {column.name} cannot be read: {fault}"


def _as_bytes(column: sa.Column[Any], dialect: sa.Dialect) -> sa.ColumnElement[Any]:
    """Return a column as its bytes: SQLite's driver would stop at the first text that is not UTF-8."""
    if dialect.name == "sqlite":
        return sa.cast(column, sa.LargeBinary)
    return sa.func.convert_to(sa.cast(column, sa.Text), "UTF8")


def _fault(column: sa.Column[Any], value: bytes | None, dialect: sa.Dialect) -> str:
    if value is None:
        return "" if column.nullable else "it is missing"
    try:
        _decode(column, value.decode(), dialect)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        return explain(error)
    return ""


def _decode(column: sa.Column[Any], text: str, dialect: sa.Dialect) -> None:
    kind = column.type
    if isinstance(kind, sa.JSON):
        _MEANINGS.get(str(column), _object)(json.loads(text))
    elif isinstance(kind, schema.UtcTime):
        kind.process_result_value(int(text), dialect)
    elif isinstance(kind, sa.Integer):
        int(text)
    elif isinstance(kind, sa.Float):
        float(text)
    else:
        _MEANINGS.get(str(column), str)(text)


def _key(table: sa.Table, row: sa.RowMapping) -> str:
    values = [row[column.name] or b"" for column in table.primary_key]
    return "/".join(value.decode(errors="backslashreplace") for value in values)
