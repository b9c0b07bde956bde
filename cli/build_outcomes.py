"""What came of the cells that `build` filled, in a table, a document and an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modelreg.cli.cells import engine_document, say_realised
from modelreg.cli.render import size
from modelreg.cli.tables import Column, print_table
from modelreg.registry.errors import BuildError, ModelregError

if TYPE_CHECKING:
    from modelreg.builders.planning import CellRequest
    from modelreg.registry.records import EngineRecord
    from modelreg.registry.words import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledCell:
    """A cell with its engine, or with the error and the record of the attempt, None where that was not written."""

    request: CellRequest
    engine: EngineRecord | None
    reused: bool = False
    warnings: tuple[str, ...] = ()
    error: ModelregError | None = None

    @property
    def status(self) -> str:
        """Return `built`, `reused` or `failed`."""
        if self.error is not None:
            return "failed"
        return "reused" if self.reused else "built"


def print_cells(cells: Sequence[FilledCell], *, no_color: bool) -> None:
    """Print one line for each cell."""
    columns = (
        Column(header="ENGINE", right=True),
        Column(header="TARGET"),
        Column(header="PRECISION"),
        Column(header="STATUS"),
        Column(header="REALISED", folds=True),
        Column(header="SIZE", right=True),
        Column(header="BUILD", right=True),
    )
    print_table(columns, [_row(filled) for filled in cells], no_color=no_color)


def _row(filled: FilledCell) -> tuple[str, ...]:
    cell, engine = filled.request.cell, filled.engine
    head = ("-" if engine is None else str(engine.id), cell.target, str(cell.precision), filled.status)
    if engine is None or filled.error is not None:
        return (*head, "-", "-", "-")
    return (*head, say_realised(engine), size(engine.size_bytes), f"{engine.build_s:.1f} s")


def cell_document(filled: FilledCell) -> Json:
    """Return a cell as JSON; a failed one has no engine, but the number of the attempt whose log is kept."""
    cell, engine = filled.request.cell, filled.engine
    body: Json = {"target": cell.target, "precision": str(cell.precision), "status": filled.status}
    if filled.error is not None:
        attempt = None if engine is None else engine.id
        return {**body, "error": str(filled.error), "hint": filled.error.hint(), "engine": None, "attempt": attempt}
    assert engine is not None
    return {**body, "engine": engine_document(engine), "warnings": list(filled.warnings)}


def summarise_failures(failed: Sequence[FilledCell], *, of: int) -> BuildError:
    """Return one error for all cells that failed, with the exit code they share, the first advice, and their logs."""
    what = "; ".join(f"{f.request.cell.precision} for {f.request.cell.target}: {f.error}" for f in failed)
    hint = next((f.error.hint() for f in failed if f.error is not None and f.error.hint()), "")
    error = BuildError(f"{len(failed)} of {of} engines were not built: {what}", hint=hint)
    error.advise(say_logs(failed))
    codes = {f.error.exit_code for f in failed if f.error is not None}
    if len(codes) == 1:
        error.exit_code = codes.pop()
    return error


def say_logs(failed: Sequence[FilledCell]) -> str:
    """Return which commands print the logs of failed builds."""
    commands = [
        f"`modelreg show {f.request.cell.version.reference} --log {f.engine.id}`"
        for f in failed
        if f.engine is not None
    ]
    return f"Its log: {commands[0]}." if len(commands) == 1 else f"Logs: {', '.join(commands)}." if commands else ""
