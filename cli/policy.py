"""`modelreg policy`: what an engine must measure up to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from modelreg.cli.context import Invocation
from modelreg.cli.options import CONTEXT, add_global_options, make_command, read_model_name, read_precision
from modelreg.cli.render import number, print_document, print_line, short
from modelreg.cli.tables import Column, print_table
from modelreg.registry.errors import HomeNotFoundError

if TYPE_CHECKING:
    from modelreg.config.policy import Policy
    from modelreg.config.settings import Home
    from modelreg.registry.words import Precision


@click.group(
    "policy",
    short_help="Show the gates that a precision must pass.",
    epilog="\b\nExamples:\n  modelreg policy show int8",
    context_settings=CONTEXT,
    no_args_is_help=False,
)
def command() -> None:
    """Show the gates that an engine of a precision must pass.

    A registry changes them in policies/PRECISION.toml, and for one model in policies/MODEL/PRECISION.toml.
    """


@make_command(
    "show",
    help_line="Show the policy of a precision.",
    examples="""
    modelreg policy show fp16
    modelreg policy show int8 --model lenet
    """,
)
@click.argument("precision", type=read_precision, metavar="PRECISION")
@click.option("--model", type=read_model_name, metavar="NAME", help="The policy for this model.")
@click.option(
    "--policy", "override", type=click.Path(path_type=Path), metavar="FILE", help="As changed by this TOML file."
)
@click.pass_obj
def show(invocation: Invocation, *, precision: Precision, model: str | None, override: Path | None) -> None:
    """Show the rules of a precision: what is measured, on which outputs, and the limit.

    The gates below the table apply always, whatever a policy says.
    """
    from modelreg.config.policy import ALWAYS, load_policy

    home = _find_home(invocation, model)
    if home is not None and model is not None:
        _require_model(home, model)
    policy = load_policy(precision, override=override, home=None if home is None else home.path, model=model)
    if invocation.as_json:
        print_document(
            {
                "precision": str(precision),
                "judged_as": str(policy.precision),
                "digest": policy.digest,
                "origins": list(policy.origins),
                "policy": policy.to_json(),
                "always": dict(ALWAYS),
            }
        )
        return
    _print(policy, precision, no_color=invocation.no_color)


def _find_home(invocation: Invocation, model: str | None) -> Home | None:
    """Return the registry; outside one, None: the shipped policy is shown then, but no model is known."""
    try:
        return invocation.find_home()
    except HomeNotFoundError:
        if invocation.home is not None or model is not None:
            raise
        return None


def _require_model(home: Home, model: str) -> None:
    """Refuse a model that the registry does not have: a typo must not show another policy than is in force."""
    from modelreg.cli.context import open_database
    from modelreg.registry.versions import list_versions

    with open_database(home).read() as connection:
        list_versions(connection, model=model, limit=1)


def _print(policy: Policy, precision: Precision, *, no_color: bool) -> None:
    from modelreg.config.policy import ALWAYS

    if policy.precision is not precision:
        print_line(f"{precision} is judged by the policy of {policy.precision}")
    print_line(f"{policy.precision}: policy {short(policy.digest)} from {policy.name}")
    print_line()
    columns = (Column(header="METRIC"), Column(header="OUTPUTS"), Column(header="LIMIT", right=True))
    rows = [(str(r.metric), str(r.applies_to), f"{r.comparison} {number(r.limit)}") for r in policy.rules]
    print_table(columns, rows, no_color=no_color)
    print_line()
    for gate, demand in ALWAYS.items():
        print_line(f"always: {gate}: {demand}")


add_global_options(command)
command.add_command(show)
