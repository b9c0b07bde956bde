"""`modelreg policy`: what an engine must measure up to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from modelreg.cli.context import Invocation, open_database
from modelreg.cli.options import (
    CONTEXT,
    add_global_options,
    make_command,
    read_channel_name,
    read_model_name,
    read_precision,
)
from modelreg.cli.policies_in_force import warn_of_unknown_channel
from modelreg.cli.policy_accept import accept
from modelreg.cli.policy_check import check
from modelreg.cli.policy_diff import diff
from modelreg.cli.policy_homes import find_home_if_any, require_model
from modelreg.cli.render import limit, print_document, print_line, short
from modelreg.cli.tables import Column, print_table

if TYPE_CHECKING:
    from modelreg.config.channel_demands import ChannelDemands
    from modelreg.config.policy import Policy, Rule
    from modelreg.registry.words import Precision


@click.group(
    "policy",
    short_help="Show, compare, check or accept policies.",
    epilog="\b\nExamples:\n  modelreg policy show int8\n  modelreg policy diff shipped/int8 lenet@production/int8\n"
    "  modelreg policy check",
    context_settings=CONTEXT,
    no_args_is_help=False,
)
def command() -> None:
    """Show the gates that an engine of a precision must pass, compare and check them, accept a loosened one.

    A registry changes them in policies/PRECISION.toml, for one model in policies/MODEL/PRECISION.toml, for one channel
    in policies/@CHANNEL/PRECISION.toml or policies/MODEL/@CHANNEL/PRECISION.toml; default.toml is for every precision.
    """


@make_command(
    "show",
    help_line="Show the policy of a precision.",
    examples="""
    modelreg policy show fp16
    modelreg policy show int8 --model lenet
    modelreg policy show int8 --model lenet --channel production
    """,
)
@click.argument("precision", type=read_precision, metavar="PRECISION")
@click.option("--model", type=read_model_name, metavar="NAME", help="The policy for this model.")
@click.option("--channel", type=read_channel_name, metavar="CHANNEL", help="The policy for this channel.")
@click.option(
    "--policy", "override", type=click.Path(path_type=Path), metavar="FILE", help="As changed by this TOML file."
)
@click.pass_obj
def show(
    invocation: Invocation,
    *,
    precision: Precision,
    model: str | None,
    channel: str | None,
    override: Path | None,
) -> None:
    """Show the rules of a precision: what is measured, on which outputs, the limit, and the file that it comes from.

    The gates below the table apply always, whatever a policy says.
    """
    from modelreg.config.channel_demands import ChannelDemands
    from modelreg.config.policy import ALWAYS, load_policy

    home = find_home_if_any(invocation, is_required=model is not None or channel is not None)
    if home is not None and model is not None:
        require_model(home, model)
    if home is not None and channel is not None:
        warn_of_unknown_channel(home, open_database(home), model=model, channel=channel)
    policy = load_policy(
        precision, override=override, home=None if home is None else home.path, model=model, channel=channel
    )
    demands = ChannelDemands() if home is None or channel is None else home.settings.channel_demands(channel)
    if invocation.as_json:
        print_document(
            {
                "precision": str(precision),
                "judged_as": str(policy.precision),
                "digest": policy.digest,
                "origins": list(policy.origins),
                "policy": policy.to_json(),
                "sources": [{**rule.to_json(), "source": policy.source_of(rule)} for rule in policy.rules],
                "channel": None if channel is None else {"name": channel, **demands.to_json()},
                "always": dict(ALWAYS),
            }
        )
        return
    _print(policy, precision, no_color=invocation.no_color)
    if channel is not None:
        _print_demands(channel, demands)


def _print(policy: Policy, precision: Precision, *, no_color: bool) -> None:
    from modelreg.config.policy import ALWAYS

    if policy.precision is not precision:
        print_line(f"{precision} is judged by the policy of {policy.precision}")
    print_line(f"{policy.precision}: policy {short(policy.digest)} from {policy.name}")
    print_line()
    columns = (
        Column(header="METRIC"),
        Column(header="OUTPUTS"),
        Column(header="LIMIT", right=True),
        Column(header="FROM", folds=True),
    )
    rows = [
        (str(r.metric), str(r.applies_to), f"{r.comparison} {limit(r.limit)}", _say_source(policy, r))
        for r in policy.rules
    ]
    print_table(columns, rows, no_color=no_color)
    print_line()
    for gate, demand in ALWAYS.items():
        print_line(f"always: {gate}: {demand}")


def _say_source(policy: Policy, rule: Rule) -> str:
    """Return which file a limit comes from; the shipped one has no path that a user could open or change."""
    from modelreg.config.policy import load_shipped_policy

    source, shipped = policy.source_of(rule), load_shipped_policy(policy.precision)
    return "shipped" if source == shipped.name and rule in shipped.rules else source


def _print_demands(channel: str, demands: ChannelDemands) -> None:
    if demands.max_verdict_age is not None:
        print_line(f"{channel}: a verdict counts for {demands.max_verdict_age} (config.toml, max_verdict_age)")
    if demands.verdicts_from != "anywhere":
        print_line(f"{channel}: a verdict counts from the {demands.verdicts_from} (config.toml, verdicts_from)")


add_global_options(command)
for _command in (show, diff, check, accept):
    command.add_command(_command)
