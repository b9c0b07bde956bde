"""`modelreg policy accept`: why a registry's policy may be looser than the shipped one; an event."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from modelreg.cli.context import Invocation, open_database
from modelreg.cli.options import (
    dry_run_option,
    make_command,
    message_option,
    read_channel_name,
    read_model_name,
    read_precision,
)
from modelreg.cli.policies_in_force import ask_acknowledged, warn_of_unknown_channel
from modelreg.cli.policy_homes import require_model
from modelreg.cli.render import print_document, print_line, short
from modelreg.registry.errors import UsageError

if TYPE_CHECKING:
    from modelreg.config.policy import Policy
    from modelreg.registry.words import Precision


@make_command(
    "accept",
    help_line="Give the reason for a loosened policy.",
    examples="""
    modelreg policy accept int8 --model lenet -m "one percent is what the product allows"
    modelreg policy accept int8 --model lenet --channel staging -m "a trial until Friday"
    """,
)
@click.argument("precision", type=read_precision, metavar="PRECISION")
@click.option("--model", type=read_model_name, metavar="NAME", help="For this model (default: for all models).")
@click.option("--channel", type=read_channel_name, metavar="CHANNEL", help="For this channel (default: for all).")
@message_option
@dry_run_option
@click.pass_obj
def accept(
    invocation: Invocation, *, precision: Precision, model: str | None, channel: str | None, message: str, dry_run: bool
) -> None:
    """Say why the registry's policy of a precision may let more pass than the shipped one.

    It becomes an event of the log. From then on `validate` needs no --message for this policy or one that is nowhere
    looser, and `promote` goes by its verdicts; a later change that loosens more needs another reason.
    """
    from modelreg.config.acknowledgements import is_acknowledged
    from modelreg.config.policy import load_policy, load_shipped_policy, loosened_rules
    from modelreg.registry.policy_events import EVERY_MODEL

    home = invocation.find_home()
    if model is not None:
        require_model(home, model)
    policy = load_policy(precision, home=home.path, model=model, channel=channel)
    rules = loosened_rules(policy, base=load_shipped_policy(policy.precision))
    if not rules:
        raise UsageError(
            f"the policy of {precision} is nowhere looser than the shipped one: there is nothing to accept",
            hint="`modelreg policy show` says where each limit comes from.",
        )
    if not message.strip() and not dry_run:
        raise UsageError("a loosened policy needs a reason", hint="Say it with --message; the event log keeps it.")
    database = open_database(home)
    if channel is not None:
        warn_of_unknown_channel(home, database, model=model, channel=channel)
    known = is_acknowledged(policy, ask_acknowledged(database)(), model=model or EVERY_MODEL, channel=channel)
    if not dry_run and not known:
        from modelreg.registry.actor import current_actor
        from modelreg.registry.policy_events import accept_policy

        with database.write() as connection:
            accept_policy(
                connection,
                model=model,
                channel=channel,
                digest=policy.digest,
                demands=policy.to_json(),
                rules=rules,
                message=message,
                actor=current_actor(),
            )
    if invocation.as_json:
        print_document({"dry_run": dry_run, "policy": policy.digest, "rules": rules, "accepted_before": known})
        return
    _print(policy, rules, known=known, dry_run=dry_run)


def _print(policy: Policy, rules: list[str], *, known: bool, dry_run: bool) -> None:
    done = "was accepted before" if known else "would be accepted" if dry_run else "is accepted"
    print_line(f"{policy.precision}: policy {short(policy.digest)} {done}")
    for rule in rules:
        print_line(f"  {rule}")
