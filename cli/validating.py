"""What a validation works on, and doing it: engine after engine, each verdict with its report kept at once."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from modelreg.cli.context import Registry
from modelreg.cli.evaluation import fetch_files, make_passes
from modelreg.cli.layer_validation import LayerChoice, compare_engine, layers_document
from modelreg.cli.progress import Reporter
from modelreg.cli.versions import read_version
from modelreg.registry.errors import NotFoundError, WorkerStartError
from modelreg.registry.references import ModelReference

if TYPE_CHECKING:
    from modelreg.config.current_policies import CurrentPolicies
    from modelreg.config.policy import Policy
    from modelreg.registry.records import EngineRecord, GoldenSetRecord, ValidationRecord, VersionRecord
    from modelreg.registry.tensor_sets import TensorSet
    from modelreg.registry.words import Precision
    from modelreg.validators.interface import EvaluationPass
    from modelreg.validators.layers.comparison import LayerReport
    from modelreg.validators.validation import ValidationOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is to be validated, and by which policies."""

    version: VersionRecord
    golden: GoldenSetRecord
    engines: list[EngineRecord]
    skipped: list[tuple[EngineRecord, str]]
    policies: dict[Precision, Policy]
    current: CurrentPolicies
    loosened: dict[Precision, list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Which engines got a verdict, and which none and why; with what was found of their layers, by engine."""

    judged: list[tuple[EngineRecord, ValidationRecord]]
    skipped: list[tuple[EngineRecord, str]]
    layers: dict[int, LayerReport | str] = field(default_factory=dict)


def plan_work(
    registry: Registry,
    reference: ModelReference,
    *,
    engine_id: int | None,
    precisions: tuple[Precision, ...],
    targets: tuple[str, ...],
    policy: Path | None,
) -> Work:
    """
    Return which engines are validated here, against what and by which policies.

    Raises:
        NotFoundError: There is no such version, no built engine of that kind, or no golden set.
    """
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
    return Work(
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


def validate_all(
    registry: Registry, reporter: Reporter, work: Work, *, message: str, choice: LayerChoice | None = None
) -> Done:
    """Run every engine over the golden set and keep each verdict; one that cannot be started gets none."""
    from modelreg.registry.tensor_sets import open_tensor_set

    judged: list[tuple[EngineRecord, ValidationRecord]] = []
    skipped = [*work.skipped]
    layers: dict[int, LayerReport | str] = {}
    with tempfile.TemporaryDirectory(prefix="modelreg-validate-") as folder:
        path = Path(folder) / "golden.safetensors"
        registry.storage.fetch_blob(work.golden.digest, path)
        for engine in work.engines:
            place = Path(folder) / f"engine-{engine.id}"
            plan = fetch_files(engine.files, registry.storage, place)
            passes = make_passes(engine, plan, work.version, registry, place)
            try:
                with open_tensor_set(path) as golden:
                    outcome = _run(reporter, work, engine, golden, passes)
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
                        )
                        layers[engine.id] = found
                        outcome = replace(outcome, report={**outcome.report, "layers": layers_document(found)})
            except WorkerStartError as error:
                skipped.append((engine, str(error)))
                continue
            judged.append((engine, _record(registry, work, engine, outcome, message=message)))
    return Done(judged=judged, skipped=skipped, layers=layers)


def _run(
    reporter: Reporter, work: Work, engine: EngineRecord, golden: TensorSet, passes: list[EvaluationPass]
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
    registry: Registry, work: Work, engine: EngineRecord, outcome: ValidationOutcome, *, message: str
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
