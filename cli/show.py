"""`modelreg show`: a version with its engines and gates, or a model with its channels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from modelreg.cli.activations import pointer_document
from modelreg.cli.cells import (
    engine_document,
    explain_gate,
    explain_import,
    explain_realised,
    print_engines,
    print_gates,
    validation_document,
)
from modelreg.cli.context import Invocation, Registry
from modelreg.cli.leases import print_leases, warn_of_time
from modelreg.cli.options import make_command, read_reference, whole_number
from modelreg.cli.render import count, print_document, print_line, print_text, short, size, when
from modelreg.cli.siblings import tell_apart
from modelreg.cli.tables import Column, print_table
from modelreg.cli.versions import say_samples, version_document
from modelreg.registry.errors import ModelregError, NotFoundError
from modelreg.registry.references import ModelReference
from modelreg.registry.target_order import target_key

if TYPE_CHECKING:
    from modelreg.registry.golden_sets import Replacement
    from modelreg.registry.leases import LeaseList
    from modelreg.registry.pins import Pin
    from modelreg.registry.pointers import Pointer
    from modelreg.registry.promotion import Candidate
    from modelreg.registry.records import (
        BenchmarkRecord,
        EngineRecord,
        GoldenSetRecord,
        ValidationRecord,
        VersionRecord,
    )
    from modelreg.registry.words import Json


@make_command(
    "show",
    help_line="Show a version, or what a model's channels serve.",
    examples="""
    modelreg show lenet
    modelreg show lenet:2
    modelreg show lenet:2 --log 4
    modelreg show lenet@production --json
    """,
)
@click.argument("reference", type=read_reference, metavar="REF")
@click.option("--log", "log_of", type=whole_number(1), metavar="ENGINE", help="Print the build log of this engine.")
@click.pass_obj
def command(invocation: Invocation, *, reference: ModelReference, log_of: int | None) -> None:
    """Show a version: its source, signature, engines, gates and channels; with a bare NAME, what its channels serve.

    With -v, every gate of every engine is shown, and what became of its nodes. A verdict is `stale` where promote would
    not go by it: it was reached against another golden set, or under a looser policy than the registry has now.
    """
    registry = invocation.open_registry()
    if log_of is not None:
        _show_log(invocation, registry, reference, log_of)
    elif reference == ModelReference(model=reference.model):
        _show_model(invocation, registry, reference.model)
    else:
        _show_version(invocation, registry, reference)


def _show_log(invocation: Invocation, registry: Registry, reference: ModelReference, engine_id: int) -> None:
    """Print what the build of an engine, failed or not, left behind."""
    from modelreg.registry import engines, versions

    with registry.database.read() as connection:
        version = versions.get_version(connection, reference)
        engine = engines.get_engine(connection, engine_id)
    is_any_version = reference == ModelReference(model=reference.model)
    if engine.model != version.model or not (is_any_version or engine.version_id == version.id):
        raise NotFoundError(
            f"engine {engine_id} is not one of {reference}",
            hint=f"It is one of {engine.model}:{engine.version}.",
        )
    if not engine.log_digest:
        raise NotFoundError(f"engine {engine_id} has no build log")
    text = registry.storage.read_blob(engine.log_digest).decode("utf-8", errors="replace")
    if invocation.as_json:
        print_document({"engine": engine_id, "log_digest": engine.log_digest, "log": text})
    else:
        print_text(text.rstrip("\n"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """All that is shown of a version."""

    version: VersionRecord
    golden: GoldenSetRecord | None
    replacement: Replacement | None
    candidates: list[Candidate]
    validations: dict[int, ValidationRecord]
    benchmarks: dict[int, list[BenchmarkRecord]]
    pointers: list[Pointer]
    pin: Pin | None
    leases: LeaseList
    served: dict[str, frozenset[str]]
    """By channel: the plans that it serves, by digest."""

    def engines_of(self, pointer: Pointer) -> list[EngineRecord]:
        """Return the engines that a channel serves; a plan built twice is the newest."""
        plans = self.served.get(pointer.channel, frozenset())
        found = {each.engine.plan_digest: each.engine for each in self.candidates if each.engine.plan_digest in plans}
        return sorted(found.values(), key=lambda engine: target_key(engine.target.name))


def _read_pointers(registry: Registry, model: str) -> list[Pointer]:
    """Return what the channels of a model serve, asked of the store, which knows."""
    found = [
        registry.storage.read_pointer(name, channel)
        for name, channel in registry.storage.list_channels()
        if name == model
    ]
    return [pointer for pointer in found if pointer is not None]


def _read_facts(registry: Registry, reference: ModelReference) -> _Facts:
    from modelreg.cli.policies_in_force import policies_in_force
    from modelreg.registry import benchmarks, engines, golden_sets, validations, versions
    from modelreg.registry.leases import read_leases
    from modelreg.registry.pins import find_pin
    from modelreg.registry.standings import judge_engines

    with registry.database.read() as connection:
        version = versions.get_version(connection, reference)
        golden = golden_sets.newest_golden_set(connection, version_id=version.id)
        replacement = golden_sets.find_replacement(connection, version=version, golden=golden)
        built = engines.current_engines(connection, version_id=version.id)
        judged = validations.newest_validations(connection, version_id=version.id)
        measured = benchmarks.newest_benchmarks(connection, version_id=version.id)
    pointers = [pointer for pointer in _read_pointers(registry, version.model) if pointer.version == version.number]
    policies = policies_in_force(registry.home, registry.database, model=version.model)
    candidates = judge_engines(
        built, judged, golden, accepts=policies.object_or_say_why_not, can_pass_now=policies.could_pass_now
    )
    leases = read_leases(registry.storage, model=version.model)
    return _Facts(
        version=version,
        golden=golden,
        replacement=replacement,
        candidates=candidates,
        validations=judged,
        benchmarks=measured,
        pointers=pointers,
        pin=find_pin(registry.storage, version),
        leases=replace(leases, live=tuple(lease for lease in leases.live if lease.version == version.number)),
        served={pointer.channel: _plans_of(registry, pointer) for pointer in pointers},
    )


def _plans_of(registry: Registry, pointer: Pointer) -> frozenset[str]:
    """Return the plans of a release; none where its manifest is lost or damaged, which `doctor` tells."""
    from modelreg.registry.manifest import parse_manifest

    try:
        manifest = parse_manifest(registry.storage.read_manifest(pointer.release), where=short(pointer.release))
    except ModelregError:
        return frozenset()
    return frozenset(engine.plan.digest for engine in manifest.engines)


def _show_version(invocation: Invocation, registry: Registry, reference: ModelReference) -> None:
    facts = _read_facts(registry, reference)
    if invocation.as_json:
        print_document(_version_document(facts))
        return
    _print_source(facts)
    for pointer in facts.pointers:
        _print_fact(
            f"@{pointer.channel}",
            f"active since {when(pointer.at)} UTC, generation {pointer.generation}, by {pointer.actor}"
            + (f": {pointer.message}" if pointer.message else ""),
        )
        serving = ", ".join(f"{each.id} ({each.target.name} {each.precision})" for each in facts.engines_of(pointer))
        if serving:
            _print_fact("", f"serves engine {serving}")
        for overridden in pointer.overridden:
            _print_fact("", f"gates overridden: {overridden}")
    _print_holders(facts)
    print_line()
    if not facts.candidates:
        print_line(f"no engines yet: modelreg build {facts.version.reference}")
        return
    print_engines(facts.candidates, facts.validations, no_color=invocation.no_color)
    _print_troubles(facts)
    _print_figures(facts)
    if invocation.verbose:
        print_line()
        engines = [candidate.engine for candidate in facts.candidates]
        for engine in engines:
            if told := explain_realised(engine):
                print_line(f"engine {engine.id} ({engine.target.name} {engine.precision}): {told}")
        judged = [(engine, facts.validations[engine.id].gates) for engine in engines if engine.id in facts.validations]
        print_gates(judged, no_color=invocation.no_color)


def _print_holders(facts: _Facts) -> None:
    """Say who keeps a version from `gc` beside its channels: a pin, and hosts that serve it."""
    if facts.pin is not None:
        pin = facts.pin
        _print_fact("pinned", f"{when(pin.at)} UTC by {pin.actor}" + (f": {pin.message}" if pin.message else ""))
    for lease in facts.leases.live:
        _print_fact(
            "served by",
            f"{lease.holder.host} ({lease.holder.instance}) for @{lease.channel}, generation {lease.generation},"
            f" since {when(lease.since)} UTC",
        )
    warn_of_time(facts.leases)


def _print_fact(name: str, value: str) -> None:
    print_line(f"{name:<12} {value}")


def _print_source(facts: _Facts) -> None:
    from modelreg.registry.differences import describe_tensor

    version, source = facts.version, facts.version.source
    _print_fact("version", version.reference)
    if version.message:
        _print_fact("message", version.message)
    _print_fact("registered", f"{when(version.created_at)} UTC by {version.created_by}")
    _print_fact("source", f"sha256:{source.digest}")
    _print_fact("", f"{count(len(source.files), 'file')}, {size(sum(file.size_bytes for file in source.files))}")
    opsets = ", ".join(f"{domain or 'ai.onnx'} {opset}" for domain, opset in sorted(source.opsets.items()))
    _print_fact("opset", f"{opsets}; IR {source.ir_version}; producer {source.producer or 'unknown'}")
    _print_fact("nodes", ", ".join(f"{name} {count}" for name, count in sorted(source.node_counts.items())) or "none")
    for spec in source.signature.inputs:
        _print_fact("input", f"{spec.name} {describe_tensor(spec)}")
    for spec in source.signature.outputs:
        _print_fact("output", f"{spec.name} {describe_tensor(spec)}")
    for key, value in sorted(version.tags.items()):
        _print_fact("tag", f"{key}={value}")
    golden = facts.golden
    said = f"{short(golden.digest)}, {say_samples(golden.samples, golden.contents)}" if golden else "none"
    _print_fact("golden set", said)
    if (before := facts.replacement) is not None:
        _print_fact(
            "", f"replaced {short(before.replaced)} on {when(before.at)} UTC by {before.actor}: {before.message}"
        )
    for reason in source.unbuildable:
        _print_fact("cannot build", reason)
    for warning in source.warnings:
        _print_fact("warning", warning)


def _print_troubles(facts: _Facts) -> None:
    """Say below the table why an engine failed or does not pass, and which were not built here."""
    lines: list[str] = []
    apart = tell_apart([candidate.engine for candidate in facts.candidates if not candidate.engine.error])
    for candidate in facts.candidates:
        engine = candidate.engine
        name = f"engine {engine.id} ({engine.target.name} {engine.precision})"
        if origin := explain_import(engine):
            lines.append(f"{name}: {origin}")
        if engine.id in apart:
            lines.append(f"{name}: {apart[engine.id]}")
        if engine.is_swept:
            lines.append(f"{name}: {candidate.reason}; `modelreg build {facts.version.reference}` makes it again")
            continue
        if engine.error:
            lines.append(f"{name}: {engine.error}; `modelreg show {facts.version.reference} --log {engine.id}`")
        validation = facts.validations.get(engine.id)
        if candidate.is_stale:
            lines.append(f"{name}: {candidate.reason}; validate it again")
            continue
        lines += [
            f"{name}: {explain_gate(gate)}"
            for gate in (validation.gates if validation else ())
            if gate.outcome in ("fail", "error")
        ]
    if lines:
        print_line()
    for line in lines:
        print_line(line)


def _print_figures(facts: _Facts) -> None:
    """Say what engines took when they were last measured."""
    from modelreg.cli.bench_history import say_figures

    lines = say_figures([candidate.engine for candidate in facts.candidates], facts.benchmarks)
    if lines:
        print_line()
    for line in lines:
        print_line(line)


def _version_document(facts: _Facts) -> Json:
    from modelreg.cli.bench_documents import stored_document

    return {
        **version_document(facts.version, facts.golden),
        "engines": [
            {
                **engine_document(candidate.engine),
                "usable": candidate.usable,
                "reason": candidate.reason,
                "stale": candidate.is_stale,
                "served_by": [each.channel for each in facts.pointers if candidate.engine in facts.engines_of(each)],
                "validation": validation_document(facts.validations[candidate.engine.id])
                if candidate.engine.id in facts.validations
                else None,
                "benchmarks": [stored_document(each) for each in facts.benchmarks.get(candidate.engine.id, ())],
            }
            for candidate in facts.candidates
        ],
        "channels": [pointer_document(pointer) for pointer in facts.pointers],
        "pinned": None if facts.pin is None else facts.pin.to_json(),
        "leases": [lease.to_json() for lease in facts.leases.live],
    }


def _show_model(invocation: Invocation, registry: Registry, model: str) -> None:
    from modelreg.registry.leases import read_leases
    from modelreg.registry.manifest import parse_manifest
    from modelreg.registry.pins import list_pins
    from modelreg.registry.versions import list_versions

    with registry.database.read() as connection:
        newest = list_versions(connection, model=model, limit=1)
    served = [
        (pointer, parse_manifest(registry.storage.read_manifest(pointer.release), where=short(pointer.release)))
        for pointer in _read_pointers(registry, model)
    ]
    leases = read_leases(registry.storage, model=model)
    pins = list_pins(registry.storage, model=model)
    if invocation.as_json:
        channels = [
            {**pointer_document(pointer), "engines": [engine.to_json() for engine in manifest.engines]}
            for pointer, manifest in served
        ]
        print_document(
            {
                "model": model,
                "newest": newest[0].number if newest else None,
                "channels": channels,
                "pins": [pin.to_json() for pin in pins],
                "leases": [lease.to_json() for lease in leases.live],
            }
        )
        return
    print_line(f"{model}: newest version {newest[0].number if newest else 'none'}")
    if pins:
        print_line(f"pinned: version {', '.join(str(pin.version) for pin in pins)}")
    if not served:
        print_line(f"no channel serves it: modelreg promote {model}:VERSION --to CHANNEL")
        return
    print_line()
    columns = (
        Column(header="CHANNEL"),
        Column(header="VERSION", right=True),
        Column(header="GEN", right=True),
        Column(header="ENGINES", folds=True),
        Column(header="SINCE (UTC)"),
        Column(header="BY", folds=True),
    )
    rows = [
        (
            pointer.channel,
            str(pointer.version),
            str(pointer.generation),
            ", ".join(f"{engine.target} {engine.precision}" for engine in manifest.listed),
            when(pointer.at),
            pointer.actor,
        )
        for pointer, manifest in served
    ]
    print_table(columns, rows, no_color=invocation.no_color)
    for pointer, _ in served:
        for overridden in pointer.overridden:
            print_line(f"{pointer.channel}: gates overridden: {overridden} ({pointer.message})")
    if leases.live:
        print_line()
        print_leases(leases.live, no_color=invocation.no_color)
    warn_of_time(leases)
