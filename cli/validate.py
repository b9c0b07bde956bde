"""`modelreg validate`: run engines over the golden set and let the policy judge; exit 3 unless all pass."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from modelreg.cli.cells import engine_document, explain_gate, print_gates, say_outcomes, validation_document
from modelreg.cli.context import Invocation, Registry
from modelreg.cli.evaluation import fetch_files, make_passes
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
from modelreg.cli.progress import Reporter, interrupted_by_signals
from modelreg.cli.render import print_document, print_line, print_warning, short
from modelreg.cli.versions import read_version
from modelreg.registry.errors import GateFailedError, NotFoundError, UsageError
from modelreg.registry.references import ModelReference

if TYPE_CHECKING:
    from modelreg.config.current_policies import CurrentPolicies
    from modelreg.config.policy import Policy
    from modelreg.registry.records import EngineRecord, GoldenSetRecord, ValidationRecord, VersionRecord
    from modelreg.registry.tensor_sets import TensorSet
    from modelreg.registry.words import Precision
    from modelreg.validators.interface import EvaluationPass
    from modelreg.validators.validation import ValidationOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What is to be validated, and by which policies."""

    version: VersionRecord
    golden: GoldenSetRecord
    engines: list[EngineRecord]
    skipped: list[tuple[EngineRecord, str]]
    policies: dict[Precision, Policy]
    current: CurrentPolicies
    loosened: dict[Precision, list[str]]


@make_command(
    "validate",
    help_line="Compare engines with the reference, gate by gate.",
    examples="""
    modelreg validate lenet:1
    modelreg validate lenet:1 --precision int8 --policy strict.toml
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
    message: str,
    dry_run: bool,
) -> int:
    """Run the engines of REF over its golden set and compare their outputs with the reference's, gate by gate.

    Exits with 3 unless every engine passes; the verdicts are kept, and promote goes by the newest, unless it was
    reached under a looser policy than the registry's own.
    """
    registry = invocation.open_registry()
    registry.open()
    work = _plan(registry, reference, engine_id=engine_id, precisions=precisions, targets=targets, policy=policy)
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
        judged = _validate_all(registry, invocation.reporter(), work, message=message)
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
                    }
                    for engine, validation in judged
                ],
                "skipped": [{"engine": engine_document(engine), "reason": reason} for engine, reason in work.skipped],
            }
        )
    else:
        _print(judged, work.skipped, no_color=invocation.no_color)
    return _conclude(invocation, registry, work, judged)


def _plan(
    registry: Registry,
    reference: ModelReference,
    *,
    engine_id: int | None,
    precisions: tuple[Precision, ...],
    targets: tuple[str, ...],
    policy: Path | None,
) -> _Work:
    from modelreg.config.current_policies import CurrentPolicies
    from modelreg.config.policy import load_policy
    from modelreg.registry import engines, golden_sets

    with registry.database.read() as connection:
        version = read_version(connection, reference)
        list_engines = engines.current_engines if engine_id is None else engines.list_engines
        built = [engine for engine in list_engines(connection, version_id=version.id) if engine.files]
        golden = golden_sets.newest_golden_set(connection, version_id=version.id)
    chosen = [
        engine
        for engine in built
        if engine_id in (None, engine.id)
        and (not precisions or engine.precision in precisions)
        and (not targets or engine.target.name in targets)
    ]
    if not chosen:
        raise NotFoundError(
            f"{version.reference} has no built engine" + (" of that kind" if built else ""),
            hint=f"Run `modelreg show {version.reference}`." if built else f"Run `modelreg build {version.reference}`.",
        )
    if golden is None:
        raise NotFoundError(
            f"{version.reference} has no golden set to be compared with",
            hint="Register the same file again with --golden or --reference.",
        )
    wanted = dict.fromkeys(engine.precision for engine in chosen)
    policies = {
        precision: load_policy(precision, override=policy, home=registry.home.path, model=version.model)
        for precision in wanted
    }
    current = CurrentPolicies(registry.home.path, model=version.model)
    loosened = {
        precision: _find_loosened(policies[precision], bases=[load_policy(precision), current.read(precision)])
        for precision in wanted
    }
    reasons = _why_not_here(chosen)
    return _Work(
        version=version,
        golden=golden,
        engines=[engine for engine in chosen if not reasons[engine.id]],
        skipped=[(engine, reasons[engine.id]) for engine in chosen if reasons[engine.id]],
        policies=policies,
        current=current,
        loosened=loosened,
    )


def _find_loosened(policy: Policy, *, bases: list[Policy]) -> list[str]:
    """Return where a policy is looser than the shipped one, or than the registry's."""
    from modelreg.config.policy import loosened_rules

    return list(dict.fromkeys(line for base in bases for line in loosened_rules(policy, base=base)))


def _why_not_here(engines: list[EngineRecord]) -> dict[int, str]:
    """Return for each engine why this host cannot run it, or an empty string."""
    from modelreg.runtime.host import describe_host
    from modelreg.runtime.suitability import why_not_here

    host = describe_host()
    return {
        engine.id: why_not_here(engine.target.name, level=engine.hardware_compatibility, host=host)
        for engine in engines
    }


def _validate_all(
    registry: Registry, reporter: Reporter, work: _Work, *, message: str
) -> list[tuple[EngineRecord, ValidationRecord]]:
    from modelreg.registry.tensor_sets import open_tensor_set

    judged = []
    with tempfile.TemporaryDirectory(prefix="modelreg-validate-") as folder:
        path = Path(folder) / "golden.safetensors"
        registry.storage.fetch_blob(work.golden.digest, path)
        for engine in work.engines:
            place = Path(folder) / f"engine-{engine.id}"
            plan = fetch_files(engine.files, registry.storage, place)
            passes = make_passes(engine, plan, work.version, registry, place)
            with open_tensor_set(path) as golden:
                outcome = _run(reporter, work, engine, golden, passes)
            judged.append((engine, _record(registry, work, engine, outcome, message=message)))
    return judged


def _run(
    reporter: Reporter, work: _Work, engine: EngineRecord, golden: TensorSet, passes: list[EvaluationPass]
) -> ValidationOutcome:
    from modelreg.runtime.host import describe_host
    from modelreg.validators.validation import validate_engine

    label = f"validating engine {engine.id} ({engine.target.name} {engine.precision})"
    with reporter.step(label) as tell:
        return validate_engine(
            engine=engine,
            version=work.version,
            golden=golden,
            golden_digest=work.golden.digest,
            policy=work.policies[engine.precision],
            passes=passes,
            host=describe_host().to_json(),
            progress=lambda name, done, total: tell(done / max(1, total), name),
        )


def _record(
    registry: Registry, work: _Work, engine: EngineRecord, outcome: ValidationOutcome, *, message: str
) -> ValidationRecord:
    """Keep the report, then the verdict; a loosened policy is an event of its own, in the same transaction."""
    from modelreg.registry import blobs, events, validations
    from modelreg.registry.digests import canonical_json
    from modelreg.registry.words import BlobKind

    policy = work.policies[engine.precision]
    report = registry.storage.put_bytes(canonical_json(outcome.report))
    with registry.database.write() as connection:
        blobs.record_blob(connection, digest=report.digest, size_bytes=report.size_bytes, kind=BlobKind.REPORT)
        if work.loosened[engine.precision]:
            details = {"policy": policy.digest, "rules": work.loosened[engine.precision], "message": message}
            events.append_event(
                connection,
                kind="policy.loosened",
                subject=work.version.reference,
                details={**details, "engine": engine.id},
                actor=registry.actor,
            )
        return validations.record_validation(
            connection,
            engine=engine,
            golden_digest=work.golden.digest,
            policy_digest=policy.digest,
            policy=policy.to_json(),
            verdict=outcome.verdict,
            gates=outcome.gates,
            report_digest=report.digest,
            host=outcome.report["host"],
            actor=registry.actor,
        )


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


def _conclude(
    invocation: Invocation, registry: Registry, work: _Work, judged: list[tuple[EngineRecord, ValidationRecord]]
) -> int:
    bad = [(engine, validation) for engine, validation in judged if validation.verdict != "pass"]
    reference = work.version.reference
    if not bad and not work.skipped:
        objections = _warn_of_objections(work, judged)
        if not invocation.as_json and not objections:
            print_next(registry, work.version)
        return 0
    from modelreg.cli.failures import report_after_result

    total = len(judged) + len(work.skipped)
    if not bad:
        names = ", ".join(f"{engine.target.name} {engine.precision}" for engine, _ in work.skipped)
        return report_after_result(
            GateFailedError(
                f"{len(work.skipped)} of {total} engines of {reference} cannot be validated on this host: {names}",
                hint="Validate them on a host with their GPU, or leave them out with --target.",
            )
        )
    names = ", ".join(f"{engine.target.name} {engine.precision}" for engine, _ in bad)
    return report_after_result(
        GateFailedError(
            f"{len(bad)} of {total} engines of {reference} do not pass: {names}",
            hint=f"The gates above say what was measured; `modelreg show {reference}` keeps showing it.",
        )
    )


def _warn_of_objections(work: _Work, judged: list[tuple[EngineRecord, ValidationRecord]]) -> int:
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


def _preview(invocation: Invocation, work: _Work) -> None:
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
