"""`modelreg build`: fill cells of the matrix; each backend works in a child process."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from modelreg.cli.build_outcomes import FilledCell, cell_document, print_cells, say_logs, summarise_failures
from modelreg.cli.context import Invocation, Registry
from modelreg.cli.next_steps import print_next
from modelreg.cli.options import (
    dry_run_option,
    list_option,
    make_command,
    positive_number,
    read_precisions,
    read_reference,
    read_words,
    whole_number,
)
from modelreg.cli.progress import Reporter, interrupted_by_signals
from modelreg.cli.render import print_document, print_line, print_note, print_warning
from modelreg.cli.versions import find_version
from modelreg.registry.errors import BuildError, ModelregError
from modelreg.registry.references import ModelReference

if TYPE_CHECKING:
    from modelreg.builders.interface import BuildOptions
    from modelreg.builders.planning import CellPlan, CellRequest, PreparedCell
    from modelreg.cli.progress import Tell
    from modelreg.registry.records import EngineRecord, VersionRecord
    from modelreg.registry.words import Precision

_METHODS = ("entropy", "minmax", "percentile")


@make_command(
    "build",
    help_line="Build engines of a version.",
    examples="""
    modelreg build lenet:1
    modelreg build lenet:1 --precision fp32,fp16,int8 --calibration digits.npz
    modelreg build lenet:1 --precision int8 --calibration digits.npz --nodes-to-exclude /conv1/Conv
    """,
)
@click.argument("reference", type=read_reference, metavar="REF")
@list_option(
    "--precision",
    "precisions",
    type=read_precisions,
    default=("fp32",),
    metavar="P,...",
    help="What to build: fp32, fp16, int8.",
)
@list_option("--target", "targets", type=read_words, default=("cpu",), metavar="T,...", help="What to build for.")
@click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Real samples for INT8: .npz or .safetensors with input.NAME.",
)
@click.option(
    "--calibration-method",
    type=click.Choice(_METHODS),
    default="entropy",
    show_default=True,
    help="How INT8 ranges are found.",
)
@click.option(
    "--percentile",
    type=positive_number,
    metavar="P",
    help="For the percentile method: how much of the values lies in range.  [default: 99.99]",
)
@click.option(
    "--calibration-samples",
    type=whole_number(1),
    metavar="N",
    help="Use so many samples, chosen by --seed (default: all).",
)
@list_option("--nodes-to-exclude", type=read_words, metavar="NODE,...", help="Nodes that stay in FP32.")
@list_option("--op-types-to-exclude", type=read_words, metavar="OP,...", help="Op types that stay in FP32.")
@click.option(
    "--seed",
    type=whole_number(0),
    default=0,
    show_default=True,
    help="Chooses samples, and inputs to try the plan on.",
)
@click.option(
    "--timeout",
    type=positive_number,
    metavar="S",
    help="Seconds that one step may take (default: the registry's setting).",
)
@click.option("--rebuild", is_flag=True, help="Build again where an engine of the same recipe exists.")
@dry_run_option
@click.pass_obj
def command(
    invocation: Invocation,
    *,
    reference: ModelReference,
    precisions: tuple[Precision, ...],
    targets: tuple[str, ...],
    calibration: Path | None,
    calibration_method: str,
    percentile: float | None,
    calibration_samples: int | None,
    nodes_to_exclude: tuple[str, ...],
    op_types_to_exclude: tuple[str, ...],
    seed: int,
    timeout: float | None,
    rebuild: bool,
    dry_run: bool,
) -> int:
    """Build engines of REF, one for each precision and target, and run each once before it counts as built.

    An engine of the same recipe is reused. An engine that did not become the precision asked for is a failed build.
    """
    if percentile is not None and calibration_method != "percentile":
        raise click.UsageError("--percentile belongs to --calibration-method percentile")
    from modelreg.builders.exclusions import require_known_nodes
    from modelreg.builders.interface import BuildOptions, CalibrationOptions

    registry = invocation.open_registry()
    registry.open()
    method = {"percentile": percentile} if percentile is not None else {}
    options = BuildOptions(
        calibration=None
        if calibration is None
        else CalibrationOptions(
            path=calibration, method=calibration_method, samples=calibration_samples, seed=seed, **method
        ),
        nodes_to_exclude=nodes_to_exclude,
        op_types_to_exclude=op_types_to_exclude,
        seed=seed,
        timeout_s=timeout or registry.home.settings.build_timeout_s,
    )
    version = find_version(registry, reference)
    require_known_nodes(version, nodes_to_exclude, registry.storage)
    requests = _make_requests(version, targets, precisions, options, rebuild=rebuild)
    if dry_run:
        return _preview(invocation, registry, requests)
    return _build_all(invocation, registry, requests)


def _make_requests(
    version: VersionRecord,
    targets: tuple[str, ...],
    precisions: tuple[Precision, ...],
    options: BuildOptions,
    *,
    rebuild: bool,
) -> list[CellRequest]:
    from modelreg.builders.backends import embedded_toolchain
    from modelreg.builders.interface import Cell
    from modelreg.builders.planning import CellRequest

    toolchain = embedded_toolchain()
    return [
        CellRequest(
            cell=Cell(version=version, target=target, precision=precision, toolchain=toolchain),
            options=options,
            rebuild=rebuild,
        )
        for target in targets
        for precision in precisions
    ]


def _build_all(invocation: Invocation, registry: Registry, requests: list[CellRequest]) -> int:
    from modelreg.builders.cells import find_reusable
    from modelreg.builders.planning import prepare_cell

    prepared = [prepare_cell(request) for request in requests]  # what is refused is refused before anything is built
    if not all(find_reusable(cell, database=registry.database, storage=registry.storage) for cell in prepared):
        registry.require_writable()
    reporter = invocation.reporter()
    with interrupted_by_signals():
        cells = [_build(registry, reporter, cell) for cell in prepared]
    for warning in dict.fromkeys(warning for cell in cells for warning in cell.warnings):
        print_warning(warning)
    failed = [cell for cell in cells if cell.error is not None]
    if len(cells) == 1 and cells[0].error is not None:
        cells[0].error.advise(say_logs(failed))
        raise cells[0].error
    if invocation.as_json:
        print_document({"cells": [cell_document(cell) for cell in cells]})
    else:
        print_cells(cells, no_color=invocation.no_color)
    if not failed:
        if not invocation.as_json:
            print_next(registry, requests[0].cell.version)
        return 0
    from modelreg.cli.failures import report_after_result

    return report_after_result(summarise_failures(failed, of=len(cells)))


def _build(registry: Registry, reporter: Reporter, prepared: PreparedCell) -> FilledCell:
    """Build one cell, or reuse its engine; a failed one does not stop the others."""
    from modelreg.builders.cells import build_cell, find_reusable

    request, name = prepared.request, prepared.request.cell.name
    try:
        reusable = find_reusable(prepared, database=registry.database, storage=registry.storage)
        with _say(reporter, name, reusable) as tell:
            outcome = build_cell(
                request, database=registry.database, storage=registry.storage, progress=tell, actor=registry.actor
            )
    except ModelregError as error:
        return FilledCell(request=request, error=error, engine=_find_attempt(registry, request, error))
    return FilledCell(request=request, engine=outcome.engine, reused=outcome.reused, warnings=outcome.warnings)


def _say(reporter: Reporter, name: str, reusable: EngineRecord | None) -> AbstractContextManager[Tell]:
    if reusable is None:
        return reporter.step(f"building {name}")
    print_note(f"{name}: engine {reusable.id} is reused")
    return nullcontext(lambda _fraction, _doing: None)


def _find_attempt(registry: Registry, request: CellRequest, error: ModelregError) -> EngineRecord | None:
    """Return the record of a build that failed just now, if it could be written and can be read."""
    from modelreg.registry.engines import list_engines

    cell = request.cell
    try:
        with registry.database.read() as connection:
            attempts = list_engines(connection, version_id=cell.version.id)
    except ModelregError:  # what failed first counts
        return None
    wanted = (cell.target, cell.precision, str(error))
    return next((e for e in reversed(attempts) if (e.target.name, e.precision, e.error) == wanted), None)


def _preview(invocation: Invocation, registry: Registry, requests: list[CellRequest]) -> int:
    from modelreg.builders.planning import plan_cells

    plans = plan_cells(requests, database=registry.database)
    if invocation.as_json:
        print_document({"dry_run": True, "cells": [_plan_document(plan) for plan in plans]})
    else:
        for plan in plans:
            cell = plan.request.cell
            reason = f": {plan.reason}" if plan.reason else ""
            print_line(f"would {plan.action} {cell.precision} for {cell.target}{reason}")
            for step in plan.steps:
                print_line(f"  {step}")
            for warning in plan.warnings:
                print_warning(warning)
    refused = [plan for plan in plans if plan.action == "refuse"]
    if not refused:
        return 0
    from modelreg.cli.failures import report_after_result

    return report_after_result(BuildError(f"{len(refused)} of {len(plans)} engines would be refused"))


def _plan_document(plan: CellPlan) -> dict[str, object]:
    cell = plan.request.cell
    return {
        "target": cell.target,
        "precision": str(cell.precision),
        "action": plan.action,
        "reason": plan.reason,
        "steps": list(plan.steps),
        "warnings": list(plan.warnings),
        "recipe": plan.recipe,
    }
