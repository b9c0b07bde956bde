"""What came of the cells that `build` filled, in a table, a document and an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modelreg.cli.build_words import CellName, group_cells, say_cells, say_hints, say_reasons
from modelreg.cli.cells import engine_document, say_realised
from modelreg.cli.render import print_line, size
from modelreg.cli.tables import Column, print_table
from modelreg.registry.errors import BuildError, ModelregError

if TYPE_CHECKING:
    from modelreg.registry.records import EngineRecord
    from modelreg.registry.words import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledCell:
    """A cell with its engine, or with the error and the record of the attempt, None where none was written.

    `replaces` is the engine of the same recipe that it stands in the place of; `toolchain` is empty where none builds
    for the target.
    """

    reference: str
    target: str
    precision: str
    toolchain: str
    engine: EngineRecord | None
    reused: bool = False
    replaces: int | None = None
    refused: bool = False
    warnings: tuple[str, ...] = ()
    error: ModelregError | None = None

    @property
    def name(self) -> CellName:
        """Return its precision and target."""
        return self.precision, self.target

    @property
    def status(self) -> str:
        """Return `built`, `reused`, `refused` or `failed`."""
        if self.error is not None:
            return "refused" if self.refused else "failed"
        return "reused" if self.reused else "built"


def print_cells(cells: Sequence[FilledCell], *, no_color: bool) -> None:
    """Print one line for each cell, then why which engines were not run."""
    from modelreg.registry.toolchains.catalogue import EMBEDDED

    # Our own ONNX Runtime needs no mention; beside another one it does.
    is_mixed = any(cell.toolchain not in ("", EMBEDDED) for cell in cells)
    columns = [
        Column(header="ENGINE", right=True),
        Column(header="TARGET"),
        *([Column(header="TOOLCHAIN")] if is_mixed else []),
        Column(header="PRECISION"),
        Column(header="STATUS"),
        Column(header="REALISED", folds=True),
        Column(header="SIZE", right=True),
        Column(header="BUILD", right=True),
    ]
    print_table(columns, [_row(cell, with_toolchain=is_mixed) for cell in cells], no_color=no_color)
    for reason, unrun in group_cells((_not_run(cell), cell.name) for cell in cells).items():
        print_line(f"not run, {say_cells(unrun)}: {reason}")
    for cell in cells:
        if cell.replaces is not None and cell.engine is not None and cell.error is None:
            place = f"engine {cell.engine.id} stands in the place of engine {cell.replaces} (same recipe)"
            print_line(f"{place} and has no verdict yet: validate it")


def _row(cell: FilledCell, *, with_toolchain: bool) -> tuple[str, ...]:
    engine = cell.engine
    toolchain = [cell.toolchain or "-"] if with_toolchain else []
    head = ("-" if engine is None else str(engine.id), cell.target, *toolchain, cell.precision, cell.status)
    if engine is None or cell.error is not None:
        return (*head, "-", "-", "-")
    return (*head, say_realised(engine), size(engine.size_bytes), f"{engine.build_s:.1f} s")


def _not_run(cell: FilledCell) -> str:
    """Return why a built engine was not run, or an empty string."""
    checked = {} if cell.engine is None else cell.engine.realised.get("checked", {})
    return str(checked.get("reason", "")) if checked.get("runs") == 0 else ""


def cell_document(cell: FilledCell) -> Json:
    """Return a cell as JSON; a failed one has no engine, but the number of the attempt whose log is kept."""
    engine = cell.engine
    body: Json = {
        "target": cell.target,
        "precision": cell.precision,
        "toolchain": cell.toolchain,
        "status": cell.status,
    }
    if cell.error is not None:
        attempt = None if engine is None else engine.id
        return {**body, "error": str(cell.error), "hint": cell.error.hint(), "engine": None, "attempt": attempt}
    assert engine is not None
    return {**body, "engine": engine_document(engine), "replaces": cell.replaces, "warnings": list(cell.warnings)}


def summarise_failures(failed: Sequence[FilledCell], *, of: int) -> BuildError:
    """Return one error for all cells that failed, with the exit code they share, each advice once, and their logs."""
    errors = [(cell.error, cell.name) for cell in failed if cell.error is not None]
    what = say_reasons((str(error), name) for error, name in errors)
    hints = say_hints([(error.hint(), name) for error, name in errors])
    error = BuildError(
        f"{len(failed)} of {of} engines were not built: {what}",
        hint="\n".join(part for part in (hints, say_logs(failed)) if part),
    )
    codes = {each.exit_code for each, _ in errors}
    if len(codes) == 1:
        error.exit_code = codes.pop()
    return error


def say_logs(failed: Sequence[FilledCell]) -> str:
    """Return which commands print the logs of failed builds."""
    commands = [
        f"`modelreg show {cell.reference} --log {cell.engine.id}`" for cell in failed if cell.engine is not None
    ]
    return f"Its log: {commands[0]}." if len(commands) == 1 else f"Logs: {', '.join(commands)}." if commands else ""
