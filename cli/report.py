"""`modelreg report`: reports from stored verdicts, without running anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from modelreg.cli.context import Invocation, Registry
from modelreg.cli.next_steps import ask_this_host, say_validate
from modelreg.cli.no_engines import no_engine, require_engine
from modelreg.cli.options import list_option, make_command, read_precisions, read_reference, read_targets, whole_number
from modelreg.cli.render import print_document, print_note
from modelreg.cli.report_documents import assemble
from modelreg.cli.report_files import ReportFiles, report_options
from modelreg.cli.verdicts import print_verdicts
from modelreg.cli.versions import read_version
from modelreg.registry.errors import NotFoundError
from modelreg.registry.references import ModelReference

if TYPE_CHECKING:
    import sqlalchemy as sa

    from modelreg.registry.records import EngineRecord, GoldenSetRecord, ValidationRecord, VersionRecord
    from modelreg.registry.words import Json, Precision
    from modelreg.validators.reports.document import Judged


_NEVER = "it was never validated"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """The newest verdicts of a version's engines, and which have none."""

    version: VersionRecord
    golden: GoldenSetRecord | None
    judged: list[tuple[EngineRecord, ValidationRecord]]
    skipped: list[tuple[EngineRecord, str]]


@make_command(
    "report",
    help_line="Write reports from stored verdicts.",
    examples="""
    modelreg report lenet:2
    modelreg report lenet@production --html report.html --junit report.xml
    modelreg report lenet:2 --precision int8 --markdown - | gh pr comment --body-file -
    """,
)
@click.argument("reference", type=read_reference, metavar="REF")
@click.option("--engine", "engine_id", type=whole_number(1), metavar="ID", help="Only this engine.")
@list_option("--precision", "precisions", type=read_precisions, metavar="P,...", help="Only these precisions.")
@list_option("--target", "targets", type=read_targets, metavar="T,...", help="Only these targets.")
@report_options
@click.pass_obj
def command(
    invocation: Invocation,
    *,
    reference: ModelReference,
    engine_id: int | None,
    precisions: tuple[Precision, ...],
    targets: tuple[str, ...],
    reports: ReportFiles,
) -> int:
    """Show the newest verdict of each engine of REF with its gates, and write it in the forms that are asked for.

    Nothing is run. NAME@CHANNEL means the engines that the channel serves. An engine that has no verdict is in the
    report as not validated, and makes it incomplete. FILE `-` is stdout. The exit code is 0 whatever the verdicts are:
    `validate` and `promote` are the ones that refuse.
    """
    reports.require_writable(as_json=invocation.as_json)
    registry = invocation.open_registry()
    stored = _read_stored(registry, reference, engine_id)
    chosen = [
        (engine, validation)
        for engine, validation in stored.judged
        if (not precisions or engine.precision in precisions) and (not targets or engine.target.name in targets)
    ]
    skipped = [
        (engine, reason)
        for engine, reason in stored.skipped
        if (not precisions or engine.precision in precisions) and (not targets or engine.target.name in targets)
    ]
    if not chosen and not skipped:
        built = [engine for engine, _ in (*stored.judged, *stored.skipped)]
        raise no_engine(stored.version, built, precisions=precisions, targets=targets)
    if reports or invocation.as_json:
        document = assemble(
            registry,
            version=stored.version,
            golden=stored.golden,
            channel=reference.channel,
            judged=_fetch(registry, stored, chosen, channel=reference.channel),
            skipped=skipped,
        )
        reports.write(document)
        if invocation.as_json:
            print_document(document)
    if not invocation.as_json and not reports.uses_stdout:
        print_verdicts(chosen, skipped, no_color=invocation.no_color)
    for kind, place in reports.places.items():
        print_note(f"{kind}: {place}")
    if skipped:
        here = [engine for engine, reason in skipped if reason == _NEVER]
        print_note(f"next: {say_validate(stored.version.reference, [engine for engine, _ in skipped], here)}")
    return 0


def _read_stored(registry: Registry, reference: ModelReference, engine_id: int | None) -> _Stored:
    from modelreg.registry import golden_sets, validations

    with registry.database.read() as connection:
        version = read_version(connection, reference)
        newest = validations.newest_validations(connection, version_id=version.id)
        golden = golden_sets.newest_golden_set(connection, version_id=version.id)
        built = _find_engines(connection, reference, version, engine_id)
    why_not_here = ask_this_host()
    return _Stored(
        version=version,
        golden=golden,
        judged=[(engine, newest[engine.id]) for engine in built if engine.id in newest],
        skipped=[(engine, _say_never(why_not_here(engine))) for engine in built if engine.id not in newest],
    )


def _find_engines(
    connection: sa.Connection, reference: ModelReference, version: VersionRecord, engine_id: int | None
) -> list[EngineRecord]:
    """Return the built engines that are meant: the one with that id, those of a channel, or the present ones."""
    from modelreg.registry import engines, releases

    named = None if engine_id is None else require_engine(connection, engine_id, version=version)
    if reference.channel is None:
        found = engines.current_engines(connection, version_id=version.id) if named is None else [named]
        return [engine for engine in found if engine.files]
    channel_id = releases.find_channel(connection, model=version.model, name=reference.channel)
    served = set() if channel_id is None else {*releases.active_engines(connection, channel_id=channel_id).values()}
    if named is not None and named.id not in served:
        raise NotFoundError(
            f"engine {named.id} is not one that {reference} serves",
            hint=f"It is one of {version.reference}: `modelreg report {version.reference} --engine {named.id}`.",
        )
    known = engines.list_engines(connection, version_id=version.id)
    return [engine for engine in known if engine.files and engine.id in served and named in (None, engine)]


def _say_never(why_not_here: str) -> str:
    """Return that an engine has no verdict and, where this host cannot give it one, why."""
    return f"{_NEVER}, and cannot be here: {why_not_here}" if why_not_here else _NEVER


def _fetch(
    registry: Registry,
    stored: _Stored,
    chosen: list[tuple[EngineRecord, ValidationRecord]],
    *,
    channel: str | None,
) -> list[Judged]:
    """Return the verdicts with their reports from the store; raises IntegrityError for one that is damaged."""
    from modelreg.cli.policies_in_force import policies_in_force
    from modelreg.registry.promotion import EngineStanding, judge_engine
    from modelreg.validators.reports.document import Judged, parse_stored_report

    policies = policies_in_force(registry.home, registry.database, model=stored.version.model, channel=channel)
    judged = []
    for engine, validation in chosen:
        candidate = judge_engine(
            EngineStanding(engine=engine, validation=validation),
            golden_digest=stored.golden.digest if stored.golden else None,
            accepts=policies.object_or_say_why_not,
            can_pass_now=policies.could_pass_now,
        )
        report: Json = parse_stored_report(registry.storage.read_blob(validation.report_digest), validation=validation)
        judged.append(
            Judged(validation=validation, report=report, objection=candidate.reason if candidate.is_stale else "")
        )
    return judged
