"""`modelreg rollback`: bring back an earlier release; needs the store alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from modelreg.cli.activations import pointer_document, print_activation, print_released_engines, read_released
from modelreg.cli.context import Invocation, open_database_if_usable, open_releases, open_store
from modelreg.cli.naming_channels import advise_channel
from modelreg.cli.options import (
    choose_channel,
    dry_run_option,
    expect_current_option,
    make_command,
    message_option,
    read_channel_name,
    read_reference,
    whole_number,
)
from modelreg.cli.render import print_document, print_line, short, size
from modelreg.registry.errors import UsageError
from modelreg.registry.references import ModelReference

if TYPE_CHECKING:
    from modelreg.registry.manifest import Manifest
    from modelreg.registry.pointers import Pointer
    from modelreg.registry.releasing import DrillReport


@make_command(
    "rollback",
    help_line="Bring back the release that was active before.",
    examples="""
    modelreg rollback lenet --channel production -m "too many wrong sevens"
    modelreg rollback lenet@production --to-generation 3
    modelreg rollback lenet@production --drill
    """,
)
@click.argument("reference", type=read_reference, metavar="NAME[@CHANNEL]")
@click.option(
    "--channel",
    "--to",
    "channel",
    type=read_channel_name,
    metavar="CHANNEL",
    help="The channel to move.",
)
@click.option(
    "--to-generation",
    type=whole_number(1),
    metavar="N",
    help="Bring back this generation (default: what was active when the current release was promoted).",
)
@expect_current_option
@click.option("--drill", is_flag=True, help="Do all but the swap, and say how long it takes.")
@message_option
@dry_run_option
@click.pass_obj
def command(
    invocation: Invocation,
    *,
    reference: ModelReference,
    channel: str | None,
    to_generation: int | None,
    expect_current: int | None,
    drill: bool,
    message: str,
    dry_run: bool,
) -> None:
    """Bring back an earlier release of a channel as a new generation, after re-hashing all of it.

    Again goes one further back. It works with the database gone.
    """
    model, channel = reference.model, choose_channel(reference, channel)
    if channel is None:
        raise UsageError(f"no channel of {model} is named", hint=advise_channel(invocation, model))
    if drill and dry_run:
        raise UsageError("--drill and --dry-run exclude each other", hint="--drill re-hashes, --dry-run does not.")
    from modelreg.registry.promotion import RollbackRequest

    home = invocation.find_home()
    storage = open_store(home)
    database = open_database_if_usable(home, doing="rolling back")
    request = RollbackRequest(to_generation=to_generation, expect_current=expect_current, message=message)
    with invocation.reporter().counting_bytes("verifying the release") as progress:
        releases = open_releases(home, storage=storage, database=database, progress=progress)
        if dry_run:
            target = releases.preview_rollback(model, channel=channel, request=request)
        elif drill:
            report = releases.drill_rollback(model, channel=channel, request=request)
        else:
            activation = releases.rollback(model, channel=channel, request=request)
    if dry_run:
        _print_preview(target, read_released(storage, target), as_json=invocation.as_json)
    elif drill:
        _print_drill(report, read_released(storage, report.target), as_json=invocation.as_json)
    else:
        print_activation(activation, storage=storage, as_json=invocation.as_json)


def _print_preview(target: Pointer, manifest: Manifest | None, *, as_json: bool) -> None:
    if as_json:
        print_document({"dry_run": True, "target": pointer_document(target)})
        return
    print_line(
        f"would bring back version {target.version} on {target.model}@{target.channel}:"
        f" generation {target.generation}, release {short(target.release)}"
    )
    if manifest is not None:
        print_released_engines(manifest)


def _print_drill(report: DrillReport, manifest: Manifest | None, *, as_json: bool) -> None:
    target, current = report.target, report.current
    if as_json:
        print_document(
            {
                "drill": True,
                "target": pointer_document(target),
                "current": pointer_document(current),
                "verified_bytes": report.verified_bytes,
                "seconds": report.seconds,
            }
        )
        return
    print_line(
        f"{target.model}@{target.channel} can go back from version {current.version} to {target.version}"
        f" (generation {target.generation}): {size(report.verified_bytes)} match, {report.seconds:.3f} s"
    )
    if manifest is not None:
        print_released_engines(manifest)
