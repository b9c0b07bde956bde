"""Statements that are compiled once and then run by the driver itself.

SQLAlchemy takes some 40 µs to run a statement it has compiled before, several times what the database takes. Where
many run in a row, in a promotion and in long listings, they are `Statement`s; all others are executed as usual. Both
kinds share the connection, its transaction and its errors, and are the same SQL for any database: text, parameters
and types come from SQLAlchemy's own compiler.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

Row = Any
"""A named tuple; its fields are the statement's columns."""

_Element = sa.Select[Any] | sa.Insert | sa.Update
_Convert = Callable[[Any], Any]
_KEPT = 8  # dialects, of which every open database has its own


class Statement:
    """One statement without expanding parameters; safe to keep at the top of a module."""

    def __init__(self, element: _Element) -> None:
        self.element = element
        self._prepared: dict[sa.Dialect, _Prepared] = {}

    def rows(self, connection: sa.Connection, /, **parameters: Any) -> list[Row]:
        """Run it and return every row."""
        tuples, _, prepared = self._run(connection, parameters)
        return [*map(prepared.make_row, tuples)]

    def tuples(self, connection: sa.Connection, /, **parameters: Any) -> Sequence[Sequence[Any]]:
        """Run it and return every row without the names of its columns, for results of many rows."""
        return self._run(connection, parameters)[0]

    def first(self, connection: sa.Connection, /, **parameters: Any) -> Row | None:
        """Run it and return the first row, or None."""
        tuples, _, prepared = self._run(connection, parameters)
        return prepared.make_row(tuples[0]) if tuples else None

    def scalar(self, connection: sa.Connection, /, **parameters: Any) -> Any:
        """Run it and return the first column of the first row, or None."""
        tuples, _, _ = self._run(connection, parameters)
        return tuples[0][0] if tuples else None

    def execute(self, connection: sa.Connection, /, **parameters: Any) -> int:
        """Run it and return how many rows it changed."""
        return self._run(connection, parameters)[1]

    def _run(
        self, connection: sa.Connection, parameters: Mapping[str, Any]
    ) -> tuple[Sequence[Sequence[Any]], int, _Prepared]:
        dialect = connection.dialect
        prepared = self._prepared.get(dialect) or self._prepare(dialect, given=parameters)
        values = prepared.encode(parameters)
        cursor = connection.connection.cursor()
        try:
            cursor.execute(prepared.text, values)
            return prepared.decode(cursor), cursor.rowcount, prepared
        except dialect.loaded_dbapi.Error as error:
            base = dialect.loaded_dbapi.Error
            raise sa.exc.DBAPIError.instance(prepared.text, values, error, base, dialect=dialect) from error
        finally:
            cursor.close()

    def _prepare(self, dialect: sa.Dialect, *, given: Iterable[str]) -> _Prepared:
        if len(self._prepared) >= _KEPT:
            self._prepared.clear()
        prepared = self._prepared[dialect] = _Prepared(self.element, dialect, given=given)
        return prepared


class _Prepared:
    """A statement for one dialect: its text, and what turns our values into the driver's and back."""

    def __init__(self, element: _Element, dialect: sa.Dialect, *, given: Iterable[str]) -> None:
        # Only an insertion takes its columns from what is given.
        columns = list(given) if isinstance(element, sa.Insert) else None
        compiled = element.compile(dialect=dialect, column_keys=columns)
        assert isinstance(compiled, sa.sql.compiler.SQLCompiler)
        if compiled.post_compile_params:
            raise ValueError(f"a statement that is rendered anew each time cannot be kept: {compiled}")
        self.text = str(compiled)
        self._dialect = dialect
        self._order = compiled.positiontup if compiled.positional else None
        binds = {name: bind for bind, name in compiled.bind_names.items()}
        self._constants = {name: value for name, value in compiled.params.items() if not binds[name].required}
        self.names = binds.keys() - self._constants.keys()
        encoders = {name: bind.type.dialect_impl(dialect).bind_processor(dialect) for name, bind in binds.items()}
        self._encoders = [(name, convert) for name, convert in encoders.items() if convert is not None]
        self._columns = element.exported_columns
        self._decoders: list[tuple[int, _Convert]] | None = None
        make_class: Any = namedtuple  # which checkers allow with literal names alone
        row = make_class("Row", self._columns.keys())
        self.make_row: Callable[[Iterable[Any]], Row] = row._make

    def encode(self, parameters: Mapping[str, Any]) -> Any:
        """Return what the driver wants: a list in its order, or a mapping by name."""
        if parameters.keys() != self.names:
            raise RuntimeError(f"parameters {sorted(parameters)} given, {sorted(self.names)} wanted")
        values = {**self._constants, **parameters}
        for name, convert in self._encoders:
            values[name] = convert(values[name])
        return values if self._order is None else [values[name] for name in self._order]

    def decode(self, cursor: sa.engine.interfaces.DBAPICursor) -> Sequence[Sequence[Any]]:
        """Fetch every row; nothing where the statement returns none."""
        if not len(self._columns):
            return ()
        if self._decoders is None:
            self._decoders = self._find_decoders(cursor.description)
        fetched: Sequence[Sequence[Any]] = cursor.fetchall()
        return [*map(self._decode, fetched)] if self._decoders else fetched

    def _decode(self, row: Sequence[Any]) -> Sequence[Any]:
        values = list(row)
        for index, convert in self._decoders or ():
            values[index] = convert(values[index])
        return values

    def _find_decoders(self, description: Sequence[Any]) -> list[tuple[int, _Convert]]:
        # Some depend on what the driver says that a column is.
        found = (
            column.type.dialect_impl(self._dialect).result_processor(self._dialect, described[1])
            for column, described in zip(self._columns, description, strict=True)
        )
        return [(index, convert) for index, convert in enumerate(found) if convert is not None]
