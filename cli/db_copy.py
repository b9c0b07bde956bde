"""`modelreg db copy`: the registry into another database, from a file to a server for example."""

from __future__ import annotations

from collections.abc import Mapping

import click

from modelreg.cli.context import Invocation, locate_given_database
from modelreg.cli.options import dry_run_option, make_command
from modelreg.cli.render import count, print_document, print_line, print_note
from modelreg.registry.errors import UsageError


@make_command(
    "copy",
    help_line="Copy the registry into another database.",
    examples="""
    modelreg db copy --to postgresql://user@host/models
    modelreg db copy --to backup.db --dry-run
    """,
)
@click.option("--to", "url", required=True, metavar="URL", help="An empty database, or a file that is not there yet.")
@dry_run_option
@click.pass_obj
def copy(invocation: Invocation, *, url: str, dry_run: bool) -> None:
    """Copy the registry into another database, whole or not at all: from a file to a server, for example.

    Nobody writes to the registry meanwhile. It stays as it is and goes on using its own database until `database.url`
    in config.toml, or MODELREG_DATABASE_URL, names the other one: stop what writes before you copy.
    """
    from modelreg.cli.context import open_database
    from modelreg.migrations.runner import create_database
    from modelreg.registry.database import Database
    from modelreg.registry.database_copy import copy_database, require_empty

    home = invocation.find_home()
    place, timeout_s = locate_given_database(url), home.settings.lock_timeout_s
    with open_database(home) as source, Database(place, timeout_s=timeout_s) as destination:
        if source.name == destination.name:
            raise UsageError(f"{source.name} is the registry's own database", hint="Name another one to copy to.")
        is_new = destination.path is not None and not destination.path.exists()
        if not is_new and destination.revision() is not None:
            with destination.read() as connection:
                require_empty(connection, name=destination.name)
        counts: Mapping[str, int] = {}
        if not dry_run:
            create_database(place, timeout_s=timeout_s)
            counts = copy_database(source, destination)
        rows = sum(counts.values())
        if invocation.as_json:
            names = {"from": source.name, "to": destination.name}
            print_document({**names, "rows": rows, "tables": dict(counts), "dry_run": dry_run})
            return
        did = "would be copied" if dry_run else f"{count(rows, 'row')} copied"
        print_line(f"{source.name}: {did} to {destination.name}")
        if not dry_run:
            print_note("next: set database.url in config.toml, then: modelreg doctor && modelreg verify --events")
