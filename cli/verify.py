"""`modelreg verify`: re-hash what the registry keeps; exit 6 with the list of what is damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from modelreg.cli.context import Invocation
from modelreg.cli.failures import report_after_result
from modelreg.cli.options import make_command, read_reference
from modelreg.cli.render import count, print_document, print_line, shorten_digests, size
from modelreg.cli.tables import Column, print_table
from modelreg.cli.versions import find_version
from modelreg.registry.errors import IntegrityError
from modelreg.registry.references import ModelReference, parse_reference

if TYPE_CHECKING:
    from modelreg.registry.verification import VerificationReport


@make_command(
    "verify",
    help_line="Re-hash what the registry holds.",
    examples="""
    modelreg verify
    modelreg verify lenet:1
    modelreg verify --events
    """,
)
@click.argument("reference", type=read_reference, required=False, metavar="[REF]")
@click.option("--events", is_flag=True, help="Check the hash chain of the event log too.")
@click.pass_obj
def command(invocation: Invocation, *, reference: ModelReference | None, events: bool) -> int:
    """Re-hash every blob, release, pointer and history document, or with REF those of one version.

    Exits with 6 and lists what is damaged.
    """
    if reference is not None and events:
        raise click.UsageError("--events belongs to the whole registry, leave REF out")
    from modelreg.registry.verification import verify_registry, verify_version

    registry = invocation.open_registry()
    with invocation.reporter().counting_bytes("verifying") as progress:
        if reference is None:
            report = verify_registry(registry.database, registry.storage, with_events=events, progress=progress)
        else:
            found = parse_reference(find_version(registry, reference).reference)
            report = verify_version(registry.database, registry.storage, found, progress=progress)
    if invocation.as_json:
        print_document(
            {
                "blobs": report.blobs,
                "releases": report.releases,
                "pointers": report.pointers,
                "events": report.events,
                "size_bytes": report.size_bytes,
                "damages": [
                    {
                        "kind": damage.kind,
                        "subject": damage.subject,
                        "problem": damage.problem,
                        "hint": damage.hint,
                    }
                    for damage in report.damages
                ],
            }
        )
    else:
        _print(report, no_color=invocation.no_color)
    if not report.damages:
        return 0
    damaged = "1 thing is" if len(report.damages) == 1 else f"{len(report.damages)} things are"
    hints = dict.fromkeys(damage.hint for damage in report.damages if damage.hint)
    return report_after_result(IntegrityError(f"{damaged} damaged", hint=" ".join(hints)))


def _print(report: VerificationReport, *, no_color: bool) -> None:
    if report.damages:
        columns = (
            Column(header="KIND"),
            Column(header="WHAT", folds=True),
            Column(header="PROBLEM", folds=True),
        )
        rows = [
            (damage.kind, shorten_digests(damage.subject), shorten_digests(damage.problem)) for damage in report.damages
        ]
        print_table(columns, rows, no_color=no_color)
        print_line()
    events = "" if report.events is None else f", {count(report.events, 'event')}"
    read = ", ".join(
        (count(report.blobs, "blob"), count(report.releases, "release"), count(report.pointers, "pointer"))
    )
    print_line(f"read {read}{events} ({size(report.size_bytes)}): {len(report.damages) or 'nothing'} damaged")
