"""`modelreg promote`: make a version's engines active on a channel, all targets or none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from modelreg.cli.activations import print_activation, warn_of_doubts
from modelreg.cli.context import Invocation, open_database, open_releases, open_store
from modelreg.cli.engine_traits import say_traits, traits_document
from modelreg.cli.options import (
    dry_run_option,
    expect_current_option,
    list_option,
    make_command,
    message_option,
    read_channel_name,
    read_precision,
    read_reference,
    read_targets,
    read_whole_numbers,
)
from modelreg.cli.render import print_document, print_line
from modelreg.registry.errors import GateFailedError, UsageError
from modelreg.registry.references import ModelReference

if TYPE_CHECKING:
    from modelreg.config.settings import Home
    from modelreg.registry.database import Database
    from modelreg.registry.promotion import PromotionPlan, PromotionRequest
    from modelreg.registry.words import Json, Precision


@make_command(
    "promote",
    help_line="Make a version's engines active on a channel.",
    examples="""
    modelreg promote lenet:2 --to production -m "better on sevens"
    modelreg promote lenet@staging --to production --expect-current 3
    modelreg promote lenet:2 --to production --engine 7,9 --dry-run
    """,
)
@click.argument("reference", type=read_reference, metavar="REF")
@click.option(
    "--to",
    "--channel",
    "channel",
    type=read_channel_name,
    required=True,
    metavar="CHANNEL",
    help="The channel to move.",
)
@list_option(
    "--target",
    "targets",
    type=read_targets,
    metavar="T,...",
    help="The targets to serve (default: what the channel requires, else all that are built or active).",
)
@list_option(
    "--engine",
    "engine_ids",
    type=read_whole_numbers,
    metavar="ID,...",
    help="Take these engines, one for a target; other targets only where --target, channel or release want them.",
)
@click.option("--precision", type=read_precision, metavar="P", help="Choose engines of this precision only.")
@expect_current_option
@click.option(
    "--override-gates", is_flag=True, help="Go over gates that do not pass; needs --message, and stays visible."
)
@message_option
@dry_run_option
@click.pass_obj
def command(
    invocation: Invocation,
    *,
    reference: ModelReference,
    channel: str,
    targets: tuple[str, ...],
    engine_ids: tuple[int, ...],
    precision: Precision | None,
    expect_current: int | None,
    override_gates: bool,
    message: str,
    dry_run: bool,
) -> int:
    """Make the engines of REF active on a channel: one per target, all or none.

    REF is NAME:VERSION, NAME@CHANNEL or NAME@sha256:DIGEST. Among the engines whose newest validation passes, the
    precision that the settings prefer is chosen for each target, of several such engines the newest; --engine names
    another.

    A validation counts if it was no looser than what the registry's policies demand of the channel now, and as new and
    from where the channel's settings demand.
    """
    if reference == ModelReference(model=reference.model):
        raise UsageError(
            f"{reference} names no version, and the newest one is never promoted by itself",
            hint=f"Write {reference}:VERSION; `modelreg list {reference}` shows them.",
        )
    if override_gates and not message.strip():
        raise UsageError("--override-gates needs --message", hint="Say why; the history keeps it.")
    home = invocation.find_home()
    storage, database = open_store(home), open_database(home)
    request = _make_request(
        home,
        database,
        reference,
        channel,
        targets=targets,
        engine_ids=engine_ids,
        precision=precision,
        expect_current=expect_current,
        override_gates=override_gates,
        message=message,
    )
    with invocation.reporter().counting_bytes("verifying plans") as progress:
        releases = open_releases(home, storage=storage, database=database, progress=progress)
        if dry_run:
            plan = releases.preview_promotion(reference, channel=channel, request=request)
        else:
            activation = releases.promote(reference, channel=channel, request=request)
    if dry_run:
        return _preview(invocation, plan, channel)
    print_activation(activation, storage=storage, as_json=invocation.as_json)
    return 0


def _make_request(
    home: Home,
    database: Database,
    reference: ModelReference,
    channel: str,
    *,
    targets: tuple[str, ...],
    engine_ids: tuple[int, ...],
    precision: Precision | None,
    expect_current: int | None,
    override_gates: bool,
    message: str,
) -> PromotionRequest:
    from modelreg.cli.policies_in_force import policies_in_force
    from modelreg.config.policy_files import has_channel_policies
    from modelreg.registry.promotion import PromotionRequest

    has_own = has_channel_policies(home.path, model=reference.model, channel=channel)
    policies = policies_in_force(home, database, model=reference.model, channel=channel)
    return PromotionRequest(
        preference=home.settings.preference_for,
        targets=targets,
        engine_ids=engine_ids,
        configured_targets=home.settings.channel_targets(channel),
        accepts=policies.object_to,
        can_pass_now=policies.can_pass_now,
        precision=precision,
        expect_current=expect_current,
        override_gates=override_gates,
        message=message,
        validate_options=f"--channel {channel}" if has_own else "",
    )


def _preview(invocation: Invocation, plan: PromotionPlan, channel: str) -> int:
    from modelreg.registry.promotion import require_complete

    warn_of_doubts(plan)
    if invocation.as_json:
        print_document(_plan_document(plan, channel))
    else:
        _print_plan(plan, channel)
    try:
        require_complete(plan)
    except GateFailedError as error:
        from modelreg.cli.failures import report_after_result

        return report_after_result(error)
    return 0


def _print_plan(plan: PromotionPlan, channel: str) -> None:
    print_line(f"would promote {plan.version.reference} to {channel}:")
    for choice in plan.choices:
        for candidate in choice.candidates:
            engine = candidate.engine
            mark = "->" if choice.engine is engine else "  "
            traits = say_traits(engine, plan.version.source.signature)
            name = f"engine {engine.id}" + (f" ({traits})" if traits else "")
            print_line(f"{mark} {choice.target:<8} {engine.precision!s:<5} {name}: {candidate.reason}")
        if not choice.candidates:
            print_line(f"   {choice.target:<8} no engine")
    for overridden in plan.overridden:
        print_line(f"   gates overridden: {overridden}")


def _plan_document(plan: PromotionPlan, channel: str) -> Json:
    return {
        "dry_run": True,
        "model": plan.version.model,
        "version": plan.version.number,
        "channel": channel,
        "missing": list(plan.missing),
        "overridden": list(plan.overridden),
        "warnings": list(plan.doubts),
        "targets": [
            {
                "target": choice.target,
                "engine": None if choice.engine is None else choice.engine.id,
                "candidates": [
                    {
                        "engine": candidate.engine.id,
                        "precision": str(candidate.engine.precision),
                        "plan": candidate.engine.plan_digest,
                        **traits_document(candidate.engine),
                        "usable": candidate.usable,
                        "reason": candidate.reason,
                    }
                    for candidate in choice.candidates
                ],
            }
            for choice in plan.choices
        ],
    }
