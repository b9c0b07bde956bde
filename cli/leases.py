"""`modelreg leases`: which serving hosts hold which releases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from modelreg.cli.context import Invocation, open_store
from modelreg.cli.options import CONTEXT, add_global_options, dry_run_option, make_command, read_model_name
from modelreg.cli.render import print_document, print_line, print_note, print_warning, when
from modelreg.cli.tables import Column, print_table
from modelreg.registry.errors import NotFoundError

if TYPE_CHECKING:
    from modelreg.registry.leases import Lease, LeaseList


@click.group(
    "leases",
    short_help="List the serving hosts' leases, or drop one.",
    epilog="\b\nExamples:\n  modelreg leases list\n  modelreg leases list lenet\n  modelreg leases drop 3f2a",
    context_settings=CONTEXT,
    no_args_is_help=False,
)
def command() -> None:
    """List the leases that serving hosts hold on releases, or drop one."""


@make_command(
    "list",
    help_line="List who holds which release.",
    examples="""
    modelreg leases list
    modelreg leases list lenet
    """,
)
@click.argument("name", type=read_model_name, required=False)
@click.option("--all", "with_expired", is_flag=True, help="Also those that ran out.")
@click.pass_obj
def list_leases(invocation: Invocation, *, name: str | None, with_expired: bool) -> None:
    """List which host holds which release, since when, and when it last said so. No database is needed."""
    from modelreg.registry.leases import read_leases

    found = read_leases(open_store(invocation.find_home()), model=name)
    warn_of_time(found)
    shown = [*found.live, *(found.expired if with_expired else ())]
    if invocation.as_json:
        live = set(found.live)
        print_document(
            {
                "leases": [{**lease.to_json(), "live": lease in live} for lease in shown],
                "unreadable": list(found.unreadable),
            }
        )
        return
    if not shown:
        print_note("no serving host holds a lease")
    else:
        print_leases(shown, no_color=invocation.no_color)
    for note in found.unreadable:
        print_warning(f"{note} of the store is no lease that this modelreg can read")


@make_command(
    "drop",
    help_line="Remove leases of hosts that are no more.",
    examples="""
    modelreg leases drop 3f2a
    """,
)
@click.argument("ids", nargs=-1, required=True, metavar="ID…")
@dry_run_option
@click.pass_obj
def drop_leases(invocation: Invocation, *, ids: tuple[str, ...], dry_run: bool) -> None:
    """Remove leases by their IDs, or the beginnings of them; or notes that are no leases, by their names.

    Those that ran out need no help: they do not count, and `gc` removes them. A host that lives renews its lease.
    """
    from modelreg.registry.leases import read_leases

    storage = open_store(invocation.find_home())
    found = read_leases(storage)
    known = [*found.live, *found.expired]
    names: dict[str, None] = {}
    for wanted in ids:
        matches = [lease.name for lease in known if lease.holder.key.startswith(wanted)]
        matches += [name for name in found.unreadable if name == wanted]
        if not matches:
            raise NotFoundError(f"there is no lease {wanted!r}", hint="Run `modelreg leases list --all`.")
        names |= dict.fromkeys(matches)
    if not dry_run:
        for name in names:
            storage.remove_note(name)
    if invocation.as_json:
        print_document({"dry_run": dry_run, "dropped": list(names)})
        return
    for name in names:
        print_line(f"{name} {'would be dropped' if dry_run else 'dropped'}")


def warn_of_time(found: LeaseList) -> None:
    """Say where leases were judged by this host's clock."""
    if not found.is_time_known:
        print_warning("the store cannot tell its time: which leases ran out is judged by this host's clock")


def print_leases(leases: Sequence[Lease], *, no_color: bool) -> None:
    """Print one line for each lease, without what its generation says already: the release is in the JSON."""
    has_instances = any(lease.holder.instance for lease in leases)
    columns = (
        Column(header="LEASE"),
        Column(header="CHANNEL", folds=True),
        Column(header="VERSION", right=True),
        Column(header="GEN", right=True),
        Column(header="HOST", folds=True),
        *([Column(header="INSTANCE", folds=True)] if has_instances else []),
        Column(header="SINCE (UTC)", folds=True, least=10, leaves=1),
        Column(header="RENEWED (UTC)", folds=True, least=10, leaves=2),
    )
    rows = [
        (
            lease.holder.key[:8],
            f"{lease.model}@{lease.channel}",
            str(lease.version),
            str(lease.generation),
            f"{lease.holder.host} pid {lease.holder.pid}",
            *([lease.holder.instance] if has_instances else []),
            when(lease.since),
            when(lease.renewed_at),
        )
        for lease in leases
    ]
    print_table(columns, rows, no_color=no_color)


add_global_options(command)
command.add_command(list_leases)
command.add_command(drop_leases)
