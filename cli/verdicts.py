"""How verdicts are printed: the table of gates, a line for each engine, and why what failed did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modelreg.cli.cells import explain_gate, print_gates, say_outcomes
from modelreg.cli.render import print_line, short

if TYPE_CHECKING:
    from modelreg.registry.records import EngineRecord, ValidationRecord


def print_verdicts(
    judged: Sequence[tuple[EngineRecord, ValidationRecord]],
    skipped: Sequence[tuple[EngineRecord, str]],
    *,
    no_color: bool,
) -> None:
    """Print every gate of every engine, then a line for each engine."""
    if judged:
        print_gates([(engine, validation.gates) for engine, validation in judged], no_color=no_color)
        print_line()
    for engine, validation in judged:
        name = f"engine {engine.id} ({engine.target.name} {engine.precision})"
        outcomes = say_outcomes(validation.gates)
        print_line(f"{name}: {validation.verdict}: {outcomes}, report {short(validation.report_digest)}")
        for gate in validation.gates:
            if gate.outcome in ("fail", "error"):
                print_line(f"  {explain_gate(gate)}")
    for engine, reason in skipped:
        print_line(f"engine {engine.id} ({engine.target.name} {engine.precision}): skipped, {reason}")
