"""What a validation works on, and doing it: engine after engine, each verdict with its report kept at once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from modelreg.cli.context import Registry
from modelreg.cli.evaluation import fetch_files, make_passes, open_source
from modelreg.cli.layer_validation import LayerChoice, compare_engine, layers_document
from modelreg.cli.no_engines import no_engine, require_engine
from modelreg.cli.progress import Reporter
from modelreg.cli.versions import read_version
from modelreg.registry.errors import NotFoundError, WorkerStartError
from modelreg.registry.references import ModelReference
from modelreg.registry.scratch import scratch_folder

if TYPE_CHECKING:
    from modelreg.cli.comparing import Active
    from modelreg.config.current_policies import CurrentPolicies
    from modelreg.config.policy import Policy
    from modelreg.registry.records import EngineRecord, GoldenSetRecord, ValidationRecord, VersionRecord
    from modelreg.registry.tensor_sets import TensorSet
    from modelreg.registry.words import Json, Precision
    from modelreg.validators.interface import EvaluationPass
    from modelreg.validators.layers.comparison import LayerReport
    from modelreg.validators.validation import ValidationOutcome


_SWEPT = "its plan was removed by gc, build it again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is to be validated, and by which policies."""

    version: VersionRecord
    golden: GoldenSetRecord
    engines: list[EngineRecord]
    skipped: list[tuple[EngineRecord, str]]
    channel: str | None
    policies: dict[Precision, Policy]
    current: CurrentPolicies
    loosened: dict[Precision, list[str]]
    superseded: list[tuple[EngineRecord, EngineRecord]] = field(default_factory=list)
    """Engines that are left out, each with the repaired one of its cell that passed."""
    active: Active | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """
    Which engines got a verdict, and which none and why.

    Attributes:
        reports: By validation, as stored.
        layers: By engine, what was found of its layers, or why nothing.
    """

    judged: list[tuple[EngineRecord, ValidationRecord]]
    skipped: list[tuple[EngineRecord, str]]
    reports: dict[int, Json]
    layers: dict[int, LayerReport | str] = field(default_factory=dict)


def plan_work(
    registry: Registry,
    reference: ModelReference,
    *,
    engine_id: int | None,
    precisions: tuple[Precision, ...],
    targets: tuple[str, ...],
    policy: Path | None,
    channel: str | None = None,
    against: str | None = None,
) -> Work:
    """
    Return which engines are validated here, against what and by which policies.

    With a channel, its policies count. An engine that gave way to a repaired one is left out unless it is named.

    Raises:
        NotFoundError: There is no such version, no built engine of that kind or that id, or no golden set, or the
            channel `against` serves nothing.
    """
    from modelreg.cli.comparing import read_active
    from modelreg.registry import engines, golden_sets, validations
    from modelreg.registry.repaired_engines import find_superseded

    with registry.database.read() as connection:
        version = read_version(connection, reference)
        if engine_id is None:
            built = [each for each in engines.current_engines(connection, version_id=version.id) if each.files]
        else:
            built = [require_engine(connection, engine_id, version=version)]
        golden = golden_sets.newest_golden_set(connection, version_id=version.id)
        newest = validations.newest_validations(connection, version_id=version.id)
    chosen = [
        engine
        for engine in built
        if (not precisions or engine.precision in precisions) and (not targets or engine.target.name in targets)
    ]
    if not chosen:
        raise no_engine(version, built, precisions=precisions, targets=targets)
    if golden is None:
        raise NotFoundError(
            f"{version.reference} has no golden set to be compared with",
            hint="Register the same file again with --golden or --reference.",
        )
    active = None if against is None else read_active(registry, version.model, against)
    gone = find_superseded(chosen, newest) if engine_id is None else {}
    left = [engine for engine in chosen if engine.id not in gone]
    work = plan_engines(registry, version, golden, left, policy=policy, channel=channel, active=active)
    return replace(work, superseded=[(engine, gone[engine.id]) for engine in chosen if engine.id in gone])


def plan_engines(
    registry: Registry,
    version: VersionRecord,
    golden: GoldenSetRecord,
    chosen: list[EngineRecord],
    *,
    policy: Path | None = None,
    channel: str | None = None,
    active: Active | None = None,
) -> Work:
    """Return how these engines of a version are validated here; those that cannot be, with the reason."""
    from modelreg.cli.policies_in_force import policies_in_force
    from modelreg.config.policy import load_policy

    wanted = dict.fromkeys(engine.precision for engine in chosen)
    policies = {
        precision: load_policy(
            precision, override=policy, home=registry.home.path, model=version.model, channel=channel
        )
        for precision in wanted
    }
    current = policies_in_force(registry.home, registry.database, model=version.model, channel=channel)
    loosened = {precision: _find_loosened(policies[precision], current) for precision in wanted}
    reasons = _why_not_here(chosen) | {engine.id: _SWEPT for engine in chosen if engine.is_swept}
    return Work(
        version=version,
        golden=golden,
        engines=[engine for engine in chosen if not reasons[engine.id]],
        skipped=[(engine, reasons[engine.id]) for engine in chosen if reasons[engine.id]],
        channel=channel,
        policies=policies,
        current=current,
        loosened=loosened,
        active=active,
    )


def _find_loosened(policy: Policy, current: CurrentPolicies) -> list[str]:
    """Return where a policy is looser than the shipped one, or than the registry's, and nobody gave a reason yet."""
    from modelreg.config.policy import load_shipped_policy, loosened_rules

    bases = (load_shipped_policy(policy.precision), current.read(policy.precision))
    lines = list(dict.fromkeys(line for base in bases for line in loosened_rules(policy, base=base)))
    return [] if not lines or current.is_acknowledged(policy) else lines


def _why_not_here(engines: list[EngineRecord]) -> dict[int, str]:
    """Return for each engine why this host cannot run it, or an empty string."""
    from modelreg.runtime.host import describe_host
    from modelreg.runtime.suitability import why_not_here

    host = describe_host()
    return {
        engine.id: why_not_here(engine.target.name, level=engine.hardware_compatibility, host=host)
        for engine in engines
    }


def validate_all(
    registry: Registry, reporter: Reporter, work: Work, *, message: str, choice: LayerChoice | None = None
) -> Done:
    """Run every engine over the golden set and keep each verdict; one that cannot be started gets none."""
    from modelreg.registry.tensor_sets import open_tensor_set

    judged: list[tuple[EngineRecord, ValidationRecord]] = []
    reports: dict[int, Json] = {}
    skipped = [*work.skipped]
    layers: dict[int, LayerReport | str] = {}
    with scratch_folder("validate") as folder:
        path = Path(folder) / "golden.safetensors"
        registry.storage.fetch_blob(work.golden.digest, path)
        for engine in work.engines:
            place = Path(folder) / f"engine-{engine.id}"
            for file in engine.files:
                registry.storage.keep_blob(file.digest)  # somebody works with it: no collector takes it now
            plan = fetch_files(engine.files, registry.storage, place)
            passes = make_passes(engine, plan, work.version, registry, place)
            try:
                with open_tensor_set(path) as golden:
                    outcome = _run(reporter, Attempt(registry, work, engine, golden, passes, place))
                    if choice is not None:
                        found = compare_engine(
                            choice,
                            engine=engine,
                            version=work.version,
                            golden=golden,
                            policy=work.policies[engine.precision],
                            served=next((each for each in passes if each.name == "rounded"), passes[0]),
                            registry=registry,
                            reporter=reporter,
                            folder=place / "layers",
                            outcome=outcome,
                        )
                        layers[engine.id] = found
                        outcome = replace(outcome, report={**outcome.report, "layers": layers_document(found)})
            except WorkerStartError as error:
                skipped.append((engine, str(error)))
                continue
            validation = _record(registry, work, engine, outcome, message=message)
            judged.append((engine, validation))
            reports[validation.id] = outcome.report
    return Done(judged=judged, skipped=skipped, reports=reports, layers=layers)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One engine about to be validated, with its files in a folder."""

    registry: Registry
    work: Work
    engine: EngineRecord
    golden: TensorSet
    passes: list[EvaluationPass]
    folder: Path


def _run(reporter: Reporter, attempt: Attempt) -> ValidationOutcome:
    from modelreg.cli.comparing import Comparison
    from modelreg.runtime.host import describe_host
    from modelreg.validators.validation import validate_engine

    work, engine = attempt.work, attempt.engine
    policy = work.policies[engine.precision]
    label = f"validating engine {engine.id} ({engine.target.name} {engine.precision})"
    with reporter.step(label) as tell:
        return validate_engine(
            engine=engine,
            version=work.version,
            golden=attempt.golden,
            golden_digest=work.golden.digest,
            policy=policy,
            passes=attempt.passes,
            host=describe_host().to_json(),
            progress=lambda name, done, total: tell(done / max(1, total), name),
            open_source=partial(open_source, work.version, attempt.registry, attempt.folder),
            compare=Comparison(
                registry=attempt.registry,
                version=work.version,
                engine=engine,
                own=attempt.passes[0],
                policy=policy,
                folder=attempt.folder,
                active=work.active,
            ),
        )


def _record(
    registry: Registry, work: Work, engine: EngineRecord, outcome: ValidationOutcome, *, message: str
) -> ValidationRecord:
    """Keep the report, then the verdict; a loosened policy is an event of its own, in the same transaction."""
    from modelreg.registry import blobs, events, validations
    from modelreg.registry.digests import canonical_json
    from modelreg.registry.policy_events import LOOSENED
    from modelreg.registry.words import BlobKind

    policy = work.policies[engine.precision]
    report = registry.storage.put_bytes(canonical_json(outcome.report))
    with registry.database.write() as connection:
        blobs.record_blob(connection, digest=report.digest, size_bytes=report.size_bytes, kind=BlobKind.REPORT)
        if work.loosened[engine.precision]:
            details: Json = {"policy": policy.digest, "demands": policy.to_json()}
            details |= {"rules": work.loosened[engine.precision], "message": message, "engine": engine.id}
            if work.channel is not None:
                details["channel"] = work.channel
            events.append_event(
                connection,
                kind=LOOSENED,
                subject=work.version.reference,
                details=details,
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
