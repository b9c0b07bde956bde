"""Filling the cells of one `build`, several side by side, and the exit code that comes of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from modelreg.cli.build_choices import ChosenCells, Refusal, name_cell, sort_out
from modelreg.cli.build_outcomes import FilledCell, cell_document, print_cells, say_logs, summarise_failures
from modelreg.cli.build_words import say_hints, say_profiles
from modelreg.cli.context import Invocation, Registry
from modelreg.cli.executors import Place, open_executor
from modelreg.cli.larger import note_larger
from modelreg.cli.next_steps import print_next
from modelreg.cli.progress import Board, Tell, interrupted_by_signals
from modelreg.cli.render import print_document, print_note, print_warning
from modelreg.registry.errors import CellRefusedError, ModelregError

if TYPE_CHECKING:
    from modelreg.builders.cells import CellOutcome
    from modelreg.builders.planning import CellRequest
    from modelreg.registry.records import EngineRecord


def build_all(invocation: Invocation, registry: Registry, chosen: ChosenCells, place: Place) -> int:
    """Build every cell that can be built; return the exit code."""
    requests, refusals = sort_out(chosen, is_filled=lambda request: _find_reusable(registry, request) is not None)
    if not requests:
        raise _all_refused(refusals)
    requests = [_renew(registry, request) for request in requests]
    if not all(_find_reusable(registry, request) for request in requests):
        registry.require_writable()
    cells = _fill(invocation, registry, requests, place)
    for warning in dict.fromkeys(warning for cell in cells for warning in cell.warnings):
        print_warning(warning)
    if len(cells) == 1 and cells[0].error is not None and not refusals:
        cells[0].error.advise(say_logs(cells))
        raise cells[0].error
    cells += [_refused(refusal) for refusal in refusals]
    if invocation.as_json:
        print_document({"cells": [cell_document(cell) for cell in cells]})
    else:
        print_cells(cells, no_color=invocation.no_color)
    note_larger(registry, chosen.wanted.version, {cell.engine.id for cell in cells if cell.engine is not None})
    return _conclude(invocation, registry, chosen, cells)


def _all_refused(refusals: Sequence[Refusal]) -> ModelregError:
    if len({(str(refusal.error), refusal.error.hint()) for refusal in refusals}) == 1:
        return refusals[0].error
    reasons = list(dict.fromkeys(str(refusal.error) for refusal in refusals))
    return CellRefusedError("; ".join(reasons), hint=say_hints([(each.error.hint(), each.name) for each in refusals]))


def _fill(invocation: Invocation, registry: Registry, requests: list[CellRequest], place: Place) -> list[FilledCell]:
    from modelreg.builders.matrix import Workplace, fill_cells
    from modelreg.builders.planning import prepare_cell

    with interrupted_by_signals(), open_executor(_needed(registry, requests, place)) as executor:
        prepared = [prepare_cell(request) for request in requests]
        executor.require_ready(prepared, registry.storage)
        workplace = Workplace(
            database=registry.database, storage=registry.storage, actor=registry.actor, executor=executor
        )
        for line in dict.fromkeys(line for each in prepared for line in say_profiles(each.recipe.body)):
            print_note(line)
        with invocation.reporter().board(total=len(requests)) as board:
            results = fill_cells(
                requests, workplace, jobs=place.jobs, open_step=lambda request: _open_step(registry, board, request)
            )
    return [_filled(registry, request, result) for request, result in zip(requests, results, strict=True)]


def _needed(registry: Registry, requests: list[CellRequest], place: Place) -> Place:
    """Return where to build; here, where nothing is built since all is reused."""
    if place.scheduler and all(_find_reusable(registry, request) for request in requests):
        return Place(jobs=place.jobs)
    return place


@contextmanager
def _open_step(registry: Registry, board: Board, request: CellRequest) -> Iterator[Tell]:
    """Show that a cell is being built, or say that its engine is reused."""
    name = f"{request.cell.version.reference} {name_cell(request)}"
    reusable = _find_reusable(registry, request)
    if reusable is None:
        with board.step(f"building {name}") as tell:
            yield tell
    else:
        board.pass_over(f"{name}: engine {reusable.id} is reused")
        yield lambda _fraction, _doing: None


def _renew(registry: Registry, request: CellRequest) -> CellRequest:
    """Return what is asked for; a damaged engine is not reused, which is said."""
    from modelreg.builders.reusing import renew_damaged

    renewed, damage = renew_damaged(request, database=registry.database, storage=registry.storage)
    if damage:
        print_warning(damage)
    return renewed


def _find_reusable(registry: Registry, request: CellRequest) -> EngineRecord | None:
    from modelreg.builders.planning import prepare_cell
    from modelreg.builders.reusing import find_reusable

    return find_reusable(prepare_cell(request), database=registry.database, storage=registry.storage)


def _filled(registry: Registry, request: CellRequest, result: CellOutcome | ModelregError) -> FilledCell:
    cell = request.cell
    return FilledCell(
        reference=cell.version.reference,
        target=cell.target,
        precision=str(cell.precision),
        toolchain=cell.toolchain.name,
        engine=_find_attempt(registry, request, result) if isinstance(result, ModelregError) else result.engine,
        reused=not isinstance(result, ModelregError) and result.reused,
        replaces=None if isinstance(result, ModelregError) else result.replaces,
        warnings=() if isinstance(result, ModelregError) else result.warnings,
        error=result if isinstance(result, ModelregError) else None,
    )


def _refused(refusal: Refusal) -> FilledCell:
    return FilledCell(
        reference="",
        target=refusal.target,
        precision=str(refusal.precision),
        toolchain=refusal.toolchain,
        engine=None,
        refused=True,
        error=refusal.error,
    )


def _find_attempt(registry: Registry, request: CellRequest, error: ModelregError) -> EngineRecord | None:
    """Return the record of a build that failed just now, if it could be written and can be read."""
    from modelreg.registry.engines import list_engines

    cell = request.cell
    try:
        with registry.database.read() as connection:
            attempts = list_engines(connection, version_id=cell.version.id)
    except ModelregError:  # what failed first counts
        return None
    wanted = (cell.target, cell.precision, cell.toolchain.name, str(error))
    return next(
        (e for e in reversed(attempts) if (e.target.name, e.precision, e.toolchain.name, e.error) == wanted), None
    )


def _conclude(invocation: Invocation, registry: Registry, chosen: ChosenCells, cells: Sequence[FilledCell]) -> int:
    failed = [cell for cell in cells if cell.error is not None]
    if not failed:
        if not invocation.as_json:
            made = {cell.engine.id for cell in cells if cell.engine is not None}
            print_next(registry, chosen.wanted.version, among=made)
        return 0
    from modelreg.cli.failures import report_after_result

    return report_after_result(summarise_failures(failed, of=len(cells)))
