"""What `build --dry-run` says: the cells that would be built, reused or refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelreg.cli.build_choices import ChosenCells, Refusal, name_cell
from modelreg.cli.build_words import CellName, say_hints, say_profiles, say_settings
from modelreg.cli.context import Invocation, Registry
from modelreg.cli.render import print_document, print_line, print_warning
from modelreg.registry.errors import BuildError

if TYPE_CHECKING:
    from modelreg.builders.planning import CellPlan
    from modelreg.registry.words import Json


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
    refusals = [(plan.hint, _name(plan)) for plan in plans if plan.action == "refuse"]
    hint = say_hints(refusals + [(each.error.hint(), each.name) for each in cells.refusals])
    return report_after_result(BuildError(f"{refused} of {total} engines would be refused", hint=hint))


def _name(plan: CellPlan) -> CellName:
    cell = plan.request.cell
    return str(cell.precision), cell.target


def _print_plans(plans: list[CellPlan]) -> None:
    for plan in plans:
        reason = f": {plan.reason}" if plan.reason else ""
        print_line(f"would {plan.action} {name_cell(plan.request)}{reason}")
        for step in plan.steps:
            print_line(f"  {step}")
        for line in (*say_profiles(plan.recipe or {}), *say_settings(plan.recipe or {})):
            print_line(f"  {line}")
    for warning in dict.fromkeys(warning for plan in plans for warning in plan.warnings):
        print_warning(warning)


def _plan_document(plan: CellPlan) -> Json:
    cell = plan.request.cell
    return {
        "target": cell.target,
        "precision": str(cell.precision),
        "toolchain": cell.toolchain.name,
        "action": plan.action,
        "reason": plan.reason,
        "hint": plan.hint,
        "steps": list(plan.steps),
        "warnings": list(plan.warnings),
        "recipe": plan.recipe,
    }


def _refusal_document(refusal: Refusal) -> Json:
    return {
        "target": refusal.target,
        "precision": str(refusal.precision),
        "toolchain": refusal.toolchain,
        "action": "refuse",
        "reason": str(refusal.error),
        "hint": refusal.error.hint(),
        "steps": [],
        "warnings": [],
        "recipe": None,
    }
