"""`modelreg validate`: run engines over the golden set and let the policy judge; exit 3 unless all pass."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from modelreg.cli.cells import engine_document, explain_gate, print_gates, say_outcomes, validation_document
from modelreg.cli.context import Invocation, Registry
from modelreg.cli.layer_tables import advise_repair, print_layers
from modelreg.cli.layer_validation import layers_document, read_choice
from modelreg.cli.next_steps import print_next
from modelreg.cli.options import (
    dry_run_option,
    list_option,
    make_command,
    message_option,
    read_precisions,
    read_reference,
    read_words,
    whole_number,
)
from modelreg.cli.progress import interrupted_by_signals
from modelreg.cli.render import print_document, print_line, print_warning, short
from modelreg.cli.validating import Done, Work, plan_work, validate_all
from modelreg.registry.errors import GateFailedError, UsageError
from modelreg.registry.references import ModelReference

if TYPE_CHECKING:
    from modelreg.registry.records import EngineRecord, ValidationRecord
    from modelreg.registry.words import Precision


@make_command(
    "validate",
    help_line="Compare engines with the reference, gate by gate.",
    examples="""
    modelreg validate lenet:1
    modelreg validate lenet:1 --precision int8 --policy strict.toml
    modelreg validate lenet:1 --precision int8 --layers
    """,
)
@click.argument("reference", type=read_reference, metavar="REF")
@click.option("--engine", "engine_id", type=whole_number(1), metavar="ID", help="Only this engine.")
@list_option("--precision", "precisions", type=read_precisions, metavar="P,...", help="Only these precisions.")
@list_option("--target", "targets", type=read_words, metavar="T,...", help="Only these targets.")
@click.option(
    "--policy",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A TOML file that changes the policy; loosening it needs --message.",
)
@click.option("--layers", is_flag=True, help="Compare layer by layer too, and say where an error is born.")
@click.option("--nodes", is_flag=True, help="With --layers: each node of the ONNX, with the source in FP32.")
@click.option(
    "--layer-samples",
    type=whole_number(1),
    default=32,
    show_default=True,
    metavar="N",
    help="With --layers: the most samples to look at.",
)
@message_option
@dry_run_option
@click.pass_obj
def command(
    invocation: Invocation,
    *,
    reference: ModelReference,
    engine_id: int | None,
    precisions: tuple[Precision, ...],
    targets: tuple[str, ...],
    policy: Path | None,
    layers: bool,
    nodes: bool,
    layer_samples: int,
    message: str,
    dry_run: bool,
) -> int:
    """Run the engines of REF over its golden set and compare their outputs with the reference's, gate by gate.

    Exits with 3 unless every engine passes; the verdicts are kept, and promote goes by the newest, unless it was
    reached under a looser policy than the registry's own. With --layers, each layer is compared as well, with what
    PyTorch gave where the golden set has activations (`modelreg layers REF` shows which tensor is which module).
    """
    if nodes and not layers:
        raise UsageError("--nodes belongs to --layers", hint="Add --layers.")
    registry = invocation.open_registry()
    registry.open()
    work = plan_work(registry, reference, engine_id=engine_id, precisions=precisions, targets=targets, policy=policy)
    loosened = [line for lines in work.loosened.values() for line in lines]
    if loosened and not message.strip():
        raise UsageError(
            f"the policy is loosened ({'; '.join(loosened)}), and that needs --message",
            hint="Say why; it becomes an event.",
        )
    if dry_run:
        _preview(invocation, work)
        return 0
    registry.require_writable()
    with interrupted_by_signals():
        choice = read_choice(registry, work.version, every_node=nodes, samples=layer_samples) if layers else None
        done = validate_all(registry, invocation.reporter(), work, message=message, choice=choice)
    if invocation.as_json:
        print_document(
            {
                "model": work.version.model,
                "version": work.version.number,
                "golden_set": work.golden.digest,
                "validations": [
                    {
                        **validation_document(validation),
                        "engine": engine_document(engine),
                        "objection": work.current.object_to(engine, validation),
                        **({"layers": layers_document(done.layers[engine.id])} if layers else {}),
                    }
                    for engine, validation in done.judged
                ],
                "skipped": [{"engine": engine_document(engine), "reason": reason} for engine, reason in done.skipped],
            }
        )
    else:
        _print(done.judged, done.skipped, no_color=invocation.no_color)
        for engine, validation in done.judged:
            found = done.layers.get(engine.id)
            if found is not None and not isinstance(found, str):
                print_line()
                print_layers(
                    found,
                    name=f"engine {engine.id} ({engine.target.name} {engine.precision})",
                    no_color=invocation.no_color,
                )
                if validation.verdict != "pass":
                    advise_repair(found, engine, work.version.reference)
    return _conclude(invocation, registry, work, done)


def _print(
    judged: list[tuple[EngineRecord, ValidationRecord]], skipped: list[tuple[EngineRecord, str]], *, no_color: bool
) -> None:
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


def _conclude(invocation: Invocation, registry: Registry, work: Work, done: Done) -> int:
    judged, skipped = done.judged, done.skipped
    bad = [(engine, validation) for engine, validation in judged if validation.verdict != "pass"]
    reference = work.version.reference
    if not bad and not skipped:
        objections = _warn_of_objections(work, judged)
        if not invocation.as_json and not objections:
            print_next(registry, work.version)
        return 0
    from modelreg.cli.failures import report_after_result

    total = len(judged) + len(skipped)
    if not bad:
        names = ", ".join(f"{engine.target.name} {engine.precision}" for engine, _ in skipped)
        return report_after_result(
            GateFailedError(
                f"{len(skipped)} of {total} engines of {reference} cannot be validated on this host: {names}",
                hint="Validate them on a host with their GPU and toolchain, or leave them out with --target.",
            )
        )
    names = ", ".join(f"{engine.target.name} {engine.precision}" for engine, _ in bad)
    return report_after_result(
        GateFailedError(
            f"{len(bad)} of {total} engines of {reference} do not pass: {names}",
            hint=f"The gates above say what was measured; `modelreg show {reference}` keeps showing it.",
        )
    )


def _warn_of_objections(work: Work, judged: list[tuple[EngineRecord, ValidationRecord]]) -> int:
    """Say which passes promote will not go by, and return how many."""
    objections = [
        (engine, objection)
        for engine, validation in judged
        if (objection := work.current.object_to(engine, validation))
    ]
    for engine, objection in objections:
        name = f"engine {engine.id} ({engine.target.name} {engine.precision})"
        print_warning(f"promote will not go by the pass of {name}: {objection}")
    return len(objections)


def _preview(invocation: Invocation, work: Work) -> None:
    if invocation.as_json:
        engines = [
            {"engine": engine.id, "precision": str(engine.precision), "policy": work.policies[engine.precision].digest}
            for engine in work.engines
        ]
        skipped = [{"engine": engine.id, "reason": reason} for engine, reason in work.skipped]
        body = {"golden_set": work.golden.digest, "engines": engines, "skipped": skipped}
        print_document({"dry_run": True, **body})
        return
    for engine, reason in work.skipped:
        print_line(f"would skip engine {engine.id} ({engine.target.name} {engine.precision}): {reason}")
    for engine in work.engines:
        policy = work.policies[engine.precision]
        print_line(
            f"would validate engine {engine.id} ({engine.target.name} {engine.precision}) against"
            f" {work.golden.samples} samples by policy {short(policy.digest)} ({policy.name})"
        )
