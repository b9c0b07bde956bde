"""`modelreg build`: fill cells of the matrix; each backend works in a child process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from modelreg.cli.cells import engine_document, say_realised
from modelreg.cli.context import Invocation, Registry
from modelreg.cli.options import dry_run_option, make_command, read_precisions, read_reference, read_words
from modelreg.cli.progress import Reporter, interrupted_by_sigterm
from modelreg.cli.render import print_document, print_line, print_note, print_warning, size
from modelreg.cli.tables import Column, print_table
from modelreg.registry.errors import BuildError, ModelregError
from modelreg.registry.references import ModelReference

if TYPE_CHECKING:
    from modelreg.builders.cells import CellOutcome
    from modelreg.builders.interface import BuildOptions
    from modelreg.builders.planning import CellPlan, CellRequest
    from modelreg.registry.records import VersionRecord
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
@click.option(
    "--precision",
    "precisions",
    type=read_precisions,
    default="fp32",
    show_default=True,
    metavar="P,...",
    help="What to build: fp32, fp16, int8.",
)
@click.option(
    "--target", "targets", type=read_words, default="cpu", show_default=True, metavar="T,...", help="What to build for."
)
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
    type=float,
    metavar="P",
    help="For the percentile method: how much of the values lies in range.  [default: 99.99]",
)
@click.option(
    "--calibration-samples",
    type=click.IntRange(min=1),
    metavar="N",
    help="Use so many samples, chosen by --seed (default: all).",
)
@click.option("--nodes-to-exclude", type=read_words, default=(), metavar="NODE,...", help="Nodes that stay in FP32.")
@click.option(
    "--op-types-to-exclude", type=read_words, default=(), metavar="OP,...", help="Op types that stay in FP32."
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Chooses samples, and inputs to try the plan on.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
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
    version = _find_version(registry, reference)
    requests = _make_requests(version, targets, precisions, options, rebuild=rebuild)
    if dry_run:
        return _preview(invocation, registry, requests)
    return _build_all(invocation, registry, requests)


def _find_version(registry: Registry, reference: ModelReference) -> VersionRecord:
    from modelreg.registry.versions import get_version

    with registry.database.read() as connection:
        return get_version(connection, reference)


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
    from modelreg.builders.planning import prepare_cell

    for request in requests:  # what is refused is refused before anything is built
        prepare_cell(request)
    reporter = invocation.reporter()
    outcomes: list[tuple[CellRequest, CellOutcome | ModelregError]] = []
    with interrupted_by_sigterm():
        for request in requests:
            outcomes.append((request, _build(registry, reporter, request)))
    warnings = [w for _, outcome in outcomes if not isinstance(outcome, ModelregError) for w in outcome.warnings]
    for warning in dict.fromkeys(warnings):
        print_warning(warning)
    failures = [(request, outcome) for request, outcome in outcomes if isinstance(outcome, ModelregError)]
    if len(failures) == len(requests) == 1:
        raise failures[0][1]
    if invocation.as_json:
        print_document({"cells": [_document(request, outcome) for request, outcome in outcomes]})
    else:
        _print(outcomes, no_color=invocation.no_color)
    if not failures:
        if not invocation.as_json:
            print_note(f"next: modelreg validate {requests[0].cell.version.reference}")
        return 0
    from modelreg.cli.failures import report_after_result

    what = "; ".join(f"{request.cell.precision} for {request.cell.target}: {error}" for request, error in failures)
    hint = next((error.hint() for _, error in failures if error.hint()), "")
    return report_after_result(
        BuildError(f"{len(failures)} of {len(requests)} engines were not built: {what}", hint=hint)
    )


def _build(registry: Registry, reporter: Reporter, request: CellRequest) -> CellOutcome | ModelregError:
    """Build one cell; a failed one does not stop the others."""
    from modelreg.builders.cells import build_cell

    cell = request.cell
    try:
        with reporter.step(f"building {cell.version.reference} {cell.precision} for {cell.target}") as tell:
            return build_cell(
                request, database=registry.database, storage=registry.storage, progress=tell, actor=registry.actor
            )
    except BuildError as error:
        return error


def _print(outcomes: list[tuple[CellRequest, CellOutcome | ModelregError]], *, no_color: bool) -> None:
    columns = (
        Column(header="ENGINE", right=True),
        Column(header="TARGET"),
        Column(header="PRECISION"),
        Column(header="STATUS"),
        Column(header="REALISED", folds=True),
        Column(header="SIZE", right=True),
        Column(header="BUILD", right=True),
    )
    rows = []
    for request, outcome in outcomes:
        cell = request.cell
        if isinstance(outcome, ModelregError):
            rows.append(("-", cell.target, str(cell.precision), "failed", "-", "-", "-"))
            continue
        engine = outcome.engine
        rows.append(
            (
                str(engine.id),
                engine.target.name,
                str(engine.precision),
                "reused" if outcome.reused else "built",
                say_realised(engine),
                size(engine.size_bytes),
                f"{engine.build_s:.1f} s",
            )
        )
    print_table(columns, rows, no_color=no_color)


def _document(request: CellRequest, outcome: CellOutcome | ModelregError) -> dict[str, object]:
    cell = request.cell
    body: dict[str, object] = {"target": cell.target, "precision": str(cell.precision)}
    if isinstance(outcome, ModelregError):
        return {**body, "status": "failed", "error": str(outcome), "hint": outcome.hint(), "engine": None}
    status = "reused" if outcome.reused else "built"
    return {**body, "status": status, "engine": engine_document(outcome.engine), "warnings": list(outcome.warnings)}


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
