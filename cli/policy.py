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
    """Show the rules of a precision: what is measured, on which outputs, and the limit."""
    from modelreg.config.policy import load_policy

    try:
        home = invocation.find_home().path
    except HomeNotFoundError:
        if invocation.home is not None:
            raise
        home = None  # outside a registry, the shipped policy is shown
    policy = load_policy(precision, override=override, home=home, model=model)
    if invocation.as_json:
        print_document({"digest": policy.digest, "origins": list(policy.origins), "policy": policy.to_json()})
        return
    print_line(f"{policy.precision}: policy {short(policy.digest)} from {policy.name}")
    print_line()
    columns = (Column(header="METRIC"), Column(header="OUTPUTS"), Column(header="LIMIT", right=True))
    rows = [(str(r.metric), str(r.applies_to), f"{r.comparison} {number(r.limit)}") for r in policy.rules]
    print_table(columns, rows, no_color=invocation.no_color)


add_global_options(command)
command.add_command(show)
