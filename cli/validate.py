"""`modelreg validate`: run engines over the golden set and let the policy judge; exit 3 unless all pass."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from modelreg.cli.cells import engine_document, validation_document
from modelreg.cli.context import Invocation, Registry
from modelreg.cli.layer_tables import advise_activations, advise_repair, print_layers
from modelreg.cli.layer_validation import layers_document, read_choice
from modelreg.cli.next_steps import print_next
from modelreg.cli.options import (
    dry_run_option,
    list_option,
    make_command,
    message_option,
    read_channel_name,
    read_precisions,
    read_reference,
    read_targets,
    whole_number,
)
from modelreg.cli.policies_in_force import warn_of_unknown_channel
from modelreg.cli.progress import interrupted_by_signals
from modelreg.cli.render import print_document, print_line, print_note, print_warning, short
from modelreg.cli.report_files import ReportFiles, report_options
from modelreg.cli.validating import Done, Work, plan_work, validate_all
from modelreg.cli.verdicts import print_verdicts
from modelreg.registry.errors import GateFailedError, UsageError
from modelreg.registry.references import ModelReference
from modelreg.registry.words import Precision

if TYPE_CHECKING:
    from modelreg.registry.records import EngineRecord, ValidationRecord
    from modelreg.registry.words import Json, Precision


@make_command(
    "validate",
    help_line="Compare engines with the reference, gate by gate.",
    examples="""
    modelreg validate lenet:1
    modelreg validate lenet:1 --precision int8 --policy strict.toml
    modelreg validate lenet:1 --channel production --html report.html --junit report.xml
    modelreg validate lenet:2 --against production
    modelreg validate lenet:1 --precision int8 --layers
    """,
)
@click.argument("reference", type=read_reference, metavar="REF")
@click.option("--engine", "engine_id", type=whole_number(1), metavar="ID", help="Only this engine.")
@list_option("--precision", "precisions", type=read_precisions, metavar="P,...", help="Only these precisions.")
@list_option("--target", "targets", type=read_targets, metavar="T,...", help="Only these targets.")
@click.option(
    "--policy",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A TOML file that changes the policy; loosening it needs --message.",
)
@click.option(
    "--channel",
    type=read_channel_name,
    metavar="CHANNEL",
    help="By this channel's policies (default: of NAME@CHANNEL).",
)
@click.option(
    "--against",
    metavar="CHANNEL",
    help="Compare with what CHANNEL serves now too: decisions on the labelled samples, and latency.",
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
@report_options
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
    channel: str | None,
    against: str | None,
    layers: bool,
    nodes: bool,
    layer_samples: int,
    reports: ReportFiles,
    message: str,
    dry_run: bool,
) -> int:
    """Run the engines of REF over its golden set and compare their outputs with the reference's, gate by gate.

    Exits with 3 unless every engine passes; the verdicts are kept, and promote goes by the newest, unless it was
    reached under a looser policy than the registry's own. An engine that failed and has been repaired since is left out
    unless --engine names it. With --layers, each layer is compared as well, with what
    PyTorch gave where the golden set has activations (`modelreg layers REF` shows which tensor is which module).
    """
    reports.require_writable(as_json=invocation.as_json)
    if nodes and not layers:
        raise UsageError("--nodes belongs to --layers", hint="Add --layers.")
    registry = invocation.open_registry()
    registry.open()
    work = plan_work(
        registry,
        reference,
        engine_id=engine_id,
        precisions=precisions,
        targets=targets,
        policy=policy,
        channel=channel or reference.channel,
        against=against,
    )
    for engine, repaired in work.superseded:
        print_note(
            f"engine {engine.id} ({engine.target.name} {engine.precision}) is left out: engine {repaired.id} is the"
            f" same, repaired, and passed; --engine {engine.id} validates it all the same"
        )
    if work.channel is not None:
        warn_of_unknown_channel(registry.home, registry.database, model=work.version.model, channel=work.channel)
    loosened = [line for lines in work.loosened.values() for line in lines]
    if loosened and not message.strip():
        raise UsageError(
            f"the policy is loosened ({'; '.join(loosened)}), and that needs --message",
            hint="Say why; it becomes an event. `modelreg policy accept` says it once for a policy of the registry.",
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
                "superseded": _superseded_document(work),
            }
        )
    elif not reports.uses_stdout:
        print_verdicts(done.judged, done.skipped, no_color=invocation.no_color)
        _print_layers(done, work, no_color=invocation.no_color)
    if reports:
        _write_reports(registry, reports, work, done)
    return _conclude(invocation, registry, work, done)


def _superseded_document(work: Work) -> list[Json]:
    return [{"engine": engine.id, "by": repaired.id} for engine, repaired in work.superseded]


def _print_layers(done: Done, work: Work, *, no_color: bool) -> None:
    """Print the layers of each engine that was compared by layer."""
    advice: dict[str, None] = {}
    for engine, validation in done.judged:
        found = done.layers.get(engine.id)
        if found is None or isinstance(found, str):
            continue
        print_line()
        name = f"engine {engine.id} ({engine.target.name} {engine.precision})"
        print_layers(found, name=name, verdict=validation.verdict, no_color=no_color)
        if _has_failed(validation):
            advise_repair(found, engine, work.version.reference)
        advice[advise_activations(found, work.golden.contents)] = None
    for words in filter(None, advice):
        print_note(words)


def _write_reports(registry: Registry, reports: ReportFiles, work: Work, done: Done) -> None:
    import json

    from modelreg.cli.report_documents import assemble
    from modelreg.registry.digests import canonical_json
    from modelreg.validators.reports.document import Judged

    judged = [
        Judged(
            validation=validation,
            report=json.loads(canonical_json(done.reports[validation.id])),  # as it is stored
            objection=work.current.object_to(engine, validation) if validation.verdict == "pass" else "",
        )
        for engine, validation in done.judged
    ]
    reports.write(
        assemble(
            registry,
            version=work.version,
            golden=work.golden,
            channel=work.channel,
            judged=judged,
            skipped=done.skipped,
        )
    )
    for kind, place in reports.places.items():
        print_note(f"{kind}: {place}")


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
    failed = [str(engine.precision) for engine, validation in bad if _has_failed(validation)]
    return report_after_result(
        GateFailedError(
            f"{len(bad)} of {total} engines of {reference} do not pass: {names}", hint=say_what_helps(reference, failed)
        )
    )


def _has_failed(validation: ValidationRecord) -> bool:
    """Return whether a gate was measured and failed: one that could not be run says nothing of the model."""
    return any(gate.outcome == "fail" for gate in validation.gates)


def say_what_helps(reference: str, failed: list[str]) -> str:
    """
    Return where to look on: with FP32 all else fails, so the export or the golden set is to blame first.

    Args:
        reference: The version.
        failed: The precisions whose gates failed; an engine that could not be run is none, and blames nothing.
    """
    if not failed:
        return (
            "No gate failed: what could not be run is said above. Once that is mended, validate again; neither the"
            " model nor its golden set is to blame."
        )
    shown = f"`modelreg report {reference} --html report.html` draws what was measured"
    if Precision.FP32 in failed:
        return f"FP32 fails: compare the golden set with the export it should be of. {shown}."
    look = f"modelreg validate {reference} --precision {failed[0]} --layers"
    needs_set = " --calibration FILE" if failed[0] in (Precision.INT8, Precision.FP8) else ""
    mend = f"modelreg repair {reference} --precision {failed[0]}{needs_set}"
    return f"{shown}, `{look}` says where the error is born, `{mend}` keeps those nodes in a high precision."


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
        body["superseded"] = _superseded_document(work)
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
