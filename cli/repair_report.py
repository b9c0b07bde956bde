"""What a repair came to, in lines for people and in one document."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelreg.cli.context import Invocation
from modelreg.cli.layer_tables import explain_layers
from modelreg.cli.render import count, number, print_document, print_line, print_warning, size
from modelreg.registry.words import Verdict

if TYPE_CHECKING:
    from modelreg.builders.planning import CellRequest
    from modelreg.cli.repair_cost import Cost
    from modelreg.cli.repairing import Repair
    from modelreg.registry.records import EngineRecord, ValidationRecord
    from modelreg.registry.words import Json

_SHOWN_SUSPECTS = 8


def conclude_early(invocation: Invocation, base: CellRequest, repair: Repair, *, dry_run: bool) -> int:
    """Print that the cell passes as it is, or what would be tried to repair it; return the exit code."""
    if invocation.as_json:
        print_document(
            {
                "dry_run": dry_run,
                "cell": base.cell.name,
                "needed": not repair.unrepaired.passed,
                "unrepaired": repair.unrepaired.to_json(),
                "suspects": list(repair.suspects),
                "layers": None if repair.layers is None else repair.layers.to_json(),
            }
        )
        return 0
    if repair.unrepaired.passed:
        print_line(f"{base.cell.name} passes as it is: nothing to repair")
        return 0
    print_line(f"{base.cell.name} fails: {repair.unrepaired.reason}")
    if repair.layers is not None:
        print_line(explain_layers(repair.layers, verdict=Verdict.FAIL)[0])
    shown = ", ".join(repair.suspects[:_SHOWN_SUSPECTS])
    more = f" and {len(repair.suspects) - _SHOWN_SUSPECTS} more" if len(repair.suspects) > _SHOWN_SUSPECTS else ""
    print_line(f"would try to keep in a high precision, in this order: {shown}{more}")
    return 0


def print_repair(
    invocation: Invocation,
    base: CellRequest,
    repair: Repair,
    engine: EngineRecord,
    *,
    validation: ValidationRecord,
    cost: Cost,
) -> None:
    """Print the nodes that were found, what they changed, what they cost, and how the recipe is written."""
    result = repair.result
    assert result is not None
    assert result.nodes is not None
    nodes = sorted(result.nodes)
    if invocation.as_json:
        print_document(_document(base, repair, nodes, engine=engine, validation=validation, cost=cost))
        return
    kind = "minimal: dropping any one fails" if result.is_minimal else "not proved minimal: the budget was spent"
    print_line(f"{base.cell.name} passes with {count(len(nodes), 'node')} kept in a high precision ({kind})")
    for node in nodes:
        print_line(f"  {node}")
    print_line(f"before: {repair.unrepaired.reason}")
    print_line(f"after:  engine {engine.id}: {validation.verdict}; {count(len(repair.trials), 'trial')}")
    before, after = cost.size_bytes
    print_line(
        f"size:   {size(before)} -> {size(after)} ({_change(before, after)}); FP32 takes {size(cost.fp32_size_bytes)}"
    )
    if cost.latency_ms is not None:
        first, second = cost.latency_ms
        batch = count(cost.samples, "sample")
        print_line(f"time:   {number(first)} -> {number(second)} ms for {batch} ({_change(first, second)})")
    print_line(f"recipe: --nodes-to-exclude {','.join(nodes)}")
    if cost.saves_nothing:
        print_warning(
            "the repaired engine takes no less room than FP32: unless it is faster (`modelreg bench`), "
            "build and promote fp32 instead"
        )


def _document(
    base: CellRequest,
    repair: Repair,
    nodes: list[str],
    *,
    engine: EngineRecord,
    validation: ValidationRecord,
    cost: Cost,
) -> Json:
    from modelreg.cli.cells import engine_document, validation_document

    assert repair.result is not None
    return {
        "dry_run": False,
        "cell": base.cell.name,
        "needed": True,
        "unrepaired": repair.unrepaired.to_json(),
        "nodes": nodes,
        "minimal": repair.result.is_minimal,
        "trials": [judged.to_json() for judged in repair.trials],
        "layers": None if repair.layers is None else repair.layers.to_json(),
        "engine": engine_document(engine),
        "validation": validation_document(validation),
        "cost": cost.to_json(),
    }


def _change(before: float, after: float) -> str:
    return f"{100 * (after - before) / before:+.1f} %" if before else "-"
