"""The cells of one `build`: which they are, filling them, and what is said of each."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modelreg.cli.cells import engine_document, say_realised
from modelreg.cli.context import Invocation, Registry
from modelreg.cli.progress import Tell, interrupted_by_sigterm
from modelreg.cli.render import print_document, print_line, print_note, print_warning, size
from modelreg.cli.tables import Column, print_table
from modelreg.registry.errors import BuildError, CellRefusedError, ModelregError

if TYPE_CHECKING:
    from modelreg.builders.cells import CellOutcome
    from modelreg.builders.choosing import TargetChoice
    from modelreg.builders.interface import BuildOptions, ToolchainSpec
    from modelreg.builders.planning import CellPlan, CellRequest
    from modelreg.registry.records import VersionRecord
    from modelreg.registry.words import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the user asks for: every precision on every target."""

    version: VersionRecord
    targets: tuple[str, ...]
    precisions: tuple[Precision, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A cell that cannot be built here; `toolchain` is empty where none builds for the target."""

    target: str
    precision: Precision
    toolchain: str
    error: BuildError


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenCells:
    """What is built, and what is not."""

    wanted: Wanted
    requests: list[CellRequest]
    refusals: list[Refusal]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    target: str
    precision: str
    toolchain: str
    status: str
    outcome: CellOutcome | None = None
    error: ModelregError | None = None


def choose_cells(
    registry: Registry, wanted: Wanted, names: tuple[str, ...], options: BuildOptions, *, rebuild: bool
) -> ChosenCells:
    """Return the cells of all targets, precisions and the toolchains that build for them."""
    from modelreg.builders.interface import Cell
    from modelreg.builders.planning import CellRequest

    requests: list[CellRequest] = []
    refusals: list[Refusal] = []
    for choice in _choose_toolchains(registry, wanted.targets, names):
        for precision in wanted.precisions:
            if not choice.toolchains:
                error = CellRefusedError(choice.reason, hint=_hint(names))
                refusals.append(Refusal(target=choice.target, precision=precision, toolchain="", error=error))
            for spec in choice.toolchains:
                cell = Cell(version=wanted.version, target=choice.target, precision=precision, toolchain=spec)
                requests.append(CellRequest(cell=cell, options=options, rebuild=rebuild))
    return ChosenCells(wanted=wanted, requests=requests, refusals=refusals)


def _choose_toolchains(registry: Registry, targets: tuple[str, ...], names: tuple[str, ...]) -> list[TargetChoice]:
    from modelreg.builders.backends import embedded_toolchain
    from modelreg.builders.choosing import choose_named, choose_toolchains, to_spec
    from modelreg.registry.toolchains.catalogue import EMBEDDED, get_toolchain, list_toolchains

    with registry.database.read() as connection:
        if not names:
            known = [embedded_toolchain(), *(to_spec(record) for record in list_toolchains(connection))]
            # Our own ONNX Runtime builds for the CPU unless another one is named.
            return [choose_toolchains(target, known[:1] if target == "cpu" else known) for target in targets]
        named: list[ToolchainSpec] = [
            embedded_toolchain() if name == EMBEDDED else to_spec(get_toolchain(connection, name)) for name in names
        ]
    return [choose_named(target, named) for target in targets]


def _hint(names: tuple[str, ...]) -> str:
    return (
        ""
        if names
        else "Add one with: modelreg toolchain add NAME --python PATH; `modelreg toolchain list` shows them."
    )


def preview(invocation: Invocation, registry: Registry, cells: ChosenCells) -> int:
    """Say what would be built, reused or refused."""
    from modelreg.builders.planning import plan_cells

    plans = plan_cells(cells.requests, database=registry.database)
    if invocation.as_json:
        listed = [_plan_document(plan) for plan in plans] + [_refusal_document(each) for each in cells.refusals]
        print_document({"dry_run": True, "cells": listed})
    else:
        _print_plans(plans)
        for each in cells.refusals:
            print_line(f"would refuse {each.precision} for {each.target}: {each.error}")
    refused = sum(plan.action == "refuse" for plan in plans) + len(cells.refusals)
    if not refused:
        return 0
    from modelreg.cli.failures import report_after_result

    total = len(plans) + len(cells.refusals)
    return report_after_result(BuildError(f"{refused} of {total} engines would be refused"))


def _print_plans(plans: list[CellPlan]) -> None:
    for plan in plans:
        reason = f": {plan.reason}" if plan.reason else ""
        print_line(f"would {plan.action} {_name(plan.request)}{reason}")
        for step in plan.steps:
            print_line(f"  {step}")
        for profile in (plan.recipe or {}).get("build", {}).get("profiles", []):
            print_line(f"  profile: {say_profile(profile)}")
        for warning in plan.warnings:
            print_warning(warning)


def say_profile(profile: dict[str, dict[str, list[int]]]) -> str:
    """Return a profile in trtexec's spelling."""
    parts = []
    for name, points in profile.items():
        shapes = ["x".join(map(str, points[point])) for point in ("min", "opt", "max")]
        parts.append(f"{name} {shapes[0]} to {shapes[2]}, tuned for {shapes[1]}")
    return "; ".join(parts)


def build_all(invocation: Invocation, registry: Registry, cells: ChosenCells, *, jobs: int) -> int:
    """Build every cell that can be built; return the exit code."""
    from modelreg.builders.matrix import Workplace, fill_cells

    requests, refusals = _sort_out(cells)
    if not requests:
        raise _all_refused(refusals)
    workplace = Workplace(database=registry.database, storage=registry.storage, actor=registry.actor)
    with interrupted_by_sigterm(), invocation.reporter().board(total=len(requests)) as board:

        def open_step(request: CellRequest) -> AbstractContextManager[Tell]:
            return board.step(f"building {request.cell.version.reference} {_name(request)}")

        results = fill_cells(requests, workplace, jobs=jobs, open_step=open_step)
    rows = [_row(request, result) for request, result in zip(requests, results, strict=True)]
    _print_warnings(rows)
    failed = [row for row in rows if row.error is not None]
    if len(failed) == len(rows) == 1 and not refusals:
        assert failed[0].error is not None
        raise failed[0].error
    rows += [_refusal_row(refusal) for refusal in refusals]
    if invocation.as_json:
        print_document({"cells": [_document(row) for row in rows]})
    else:
        _print(rows, no_color=invocation.no_color)
    return _conclude(invocation, cells.wanted, rows)


def _sort_out(cells: ChosenCells) -> tuple[list[CellRequest], list[Refusal]]:
    """Return what can be built and what not; what is wrong with the command itself is raised before any build."""
    from modelreg.builders.planning import prepare_cell

    requests: list[CellRequest] = []
    refusals = list(cells.refusals)
    for request in cells.requests:
        cell = request.cell
        try:
            prepare_cell(request)
        except CellRefusedError as error:
            name = cell.toolchain.name
            refusals.append(Refusal(target=cell.target, precision=cell.precision, toolchain=name, error=error))
        else:
            requests.append(request)
    return requests, refusals


def _all_refused(refusals: list[Refusal]) -> BuildError:
    reasons = list(dict.fromkeys(str(refusal.error) for refusal in refusals))
    hint = next((refusal.error.hint() for refusal in refusals if refusal.error.hint()), "")
    return CellRefusedError("; ".join(reasons), hint=hint)


def _name(request: CellRequest) -> str:
    from modelreg.registry.toolchains.catalogue import EMBEDDED

    cell = request.cell
    name = f"{cell.precision} for {cell.target}"
    return name if cell.toolchain.name == EMBEDDED else f"{name} with {cell.toolchain.name}"


def _row(request: CellRequest, result: CellOutcome | BuildError) -> _Row:
    cell = request.cell
    error = result if isinstance(result, BuildError) else None
    outcome = None if isinstance(result, BuildError) else result
    status = "failed" if outcome is None else ("reused" if outcome.reused else "built")
    return _Row(
        target=cell.target,
        precision=str(cell.precision),
        toolchain=cell.toolchain.name,
        status=status,
        outcome=outcome,
        error=error,
    )


def _refusal_row(refusal: Refusal) -> _Row:
    return _Row(
        target=refusal.target,
        precision=str(refusal.precision),
        toolchain=refusal.toolchain,
        status="refused",
        error=refusal.error,
    )


def _print_warnings(rows: list[_Row]) -> None:
    warnings = [warning for row in rows if row.outcome is not None for warning in row.outcome.warnings]
    for warning in dict.fromkeys(warnings):
        print_warning(warning)


def _print(rows: list[_Row], *, no_color: bool) -> None:
    from modelreg.registry.toolchains.catalogue import EMBEDDED

    # Our own ONNX Runtime needs no mention; beside another one it does.
    is_mixed = any(row.toolchain not in ("", EMBEDDED) for row in rows)
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
    table = []
    for row in rows:
        engine = None if row.outcome is None else row.outcome.engine
        made = (
            ("-", "-", "-")
            if engine is None
            else (say_realised(engine), size(engine.size_bytes), f"{engine.build_s:.1f} s")
        )
        number = "-" if engine is None else str(engine.id)
        name = [row.toolchain or "-"] if is_mixed else []
        table.append((number, row.target, *name, row.precision, row.status, *made))
    print_table(columns, table, no_color=no_color)
    for reason, unrun in _by_reason((_not_run(row), row) for row in rows).items():
        print_line(f"not run, {_say_cells(unrun)}: {reason}")


def _not_run(row: _Row) -> str:
    """Return why a built engine was not run, or an empty string."""
    if row.outcome is None:
        return ""
    checked = row.outcome.engine.realised.get("checked", {})
    return str(checked.get("reason", "")) if checked.get("runs") == 0 else ""


def _conclude(invocation: Invocation, wanted: Wanted, rows: list[_Row]) -> int:
    bad = [row for row in rows if row.error is not None]
    if not bad:
        if not invocation.as_json:
            print_note(f"next: modelreg validate {wanted.version.reference}")
        return 0
    from modelreg.cli.failures import report_after_result

    reasons = _by_reason((str(row.error), row) for row in bad)
    what = "; ".join(f"{_say_cells(cells)}: {reason}" for reason, cells in reasons.items())
    hint = next((row.error.hint() for row in bad if row.error is not None and row.error.hint()), "")
    return report_after_result(BuildError(f"{len(bad)} of {len(rows)} engines were not built: {what}", hint=hint))


def _by_reason(pairs: Iterable[tuple[str, _Row]]) -> dict[str, list[_Row]]:
    """Return the rows of each reason; rows without one are left out."""
    grouped: dict[str, list[_Row]] = {}
    for reason, row in pairs:
        if reason:
            grouped.setdefault(reason, []).append(row)
    return grouped


def _say_cells(rows: list[_Row]) -> str:
    """Return the cells in words: `fp32, fp16 for sm_86, sm_89`."""
    precisions: dict[str, list[str]] = {}
    for row in rows:
        precisions.setdefault(row.target, []).append(row.precision)
    targets: dict[str, list[str]] = {}
    for target, names in precisions.items():
        targets.setdefault(", ".join(dict.fromkeys(names)), []).append(target)
    return " and ".join(f"{names} for {', '.join(each)}" for names, each in targets.items())


def _document(row: _Row) -> dict[str, object]:
    body: dict[str, object] = {
        "target": row.target,
        "precision": row.precision,
        "toolchain": row.toolchain,
        "status": row.status,
    }
    if row.outcome is None:
        assert row.error is not None
        return {**body, "error": str(row.error), "hint": row.error.hint(), "engine": None}
    return {**body, "engine": engine_document(row.outcome.engine), "warnings": list(row.outcome.warnings)}


def _plan_document(plan: CellPlan) -> dict[str, object]:
    cell = plan.request.cell
    return {
        "target": cell.target,
        "precision": str(cell.precision),
        "toolchain": cell.toolchain.name,
        "action": plan.action,
        "reason": plan.reason,
        "steps": list(plan.steps),
        "warnings": list(plan.warnings),
        "recipe": plan.recipe,
    }


def _refusal_document(refusal: Refusal) -> dict[str, object]:
    return {
        "target": refusal.target,
        "precision": str(refusal.precision),
        "toolchain": refusal.toolchain,
        "action": "refuse",
        "reason": str(refusal.error),
        "steps": [],
        "warnings": [],
        "recipe": None,
    }
