"""`modelreg db`: the database's schema, its backup, its restoring and its copy.

`upgrade` imports Alembic, which no other command does but `init`.
"""

from __future__ import annotations

import click

from modelreg.cli.context import Invocation, locate_database
from modelreg.cli.db_backup import backup, restore
from modelreg.cli.db_copy import copy
from modelreg.cli.options import CONTEXT, add_global_options, dry_run_option, make_command
from modelreg.cli.render import print_document, print_line


@click.group(
    "db",
    short_help="Back up, restore, upgrade or copy the database.",
    epilog="\b\nExamples:\n  modelreg db backup /backups/registry.db\n  modelreg db restore /backups/registry.db\n"
    "  modelreg db current\n  modelreg db upgrade\n  modelreg db copy --to URL",
    context_settings=CONTEXT,
    no_args_is_help=False,
)
def command() -> None:
    """Back up, restore, upgrade or copy the database. What is in the store is no part of it: back that up by itself."""


@make_command("current", help_line="Tell the database's revision.", examples="modelreg db current")
@click.pass_obj
def current(invocation: Invocation) -> None:
    """Tell which schema revision the database has, and which one this program needs."""
    from modelreg.registry.database import Database
    from modelreg.registry.schema import SCHEMA_REVISION

    home = invocation.find_home()
    with Database(locate_database(home), timeout_s=home.settings.lock_timeout_s) as database:
        revision = database.revision()
    if invocation.as_json:
        print_document({"revision": revision, "needed": SCHEMA_REVISION, "database": database.name})
        return
    state = "up to date" if revision == SCHEMA_REVISION else f"this modelreg needs {SCHEMA_REVISION}"
    print_line(f"{database.name}: revision {revision or 'none'}, {state}")


@make_command("upgrade", help_line="Bring the database to this program's revision.", examples="modelreg db upgrade")
@dry_run_option
@click.pass_obj
def upgrade(invocation: Invocation, *, dry_run: bool) -> None:
    """Bring the database to the revision that this program needs, whole or not at all.

    Beside a file, a backup is kept; of a database on a server, make one first, with pg_dump.
    """
    from modelreg.registry.database import Database
    from modelreg.registry.revisions import check_revision
    from modelreg.registry.schema import SCHEMA_REVISION

    home = invocation.find_home()
    url, timeout_s = locate_database(home), home.settings.lock_timeout_s
    with Database(url, timeout_s=timeout_s) as database:
        before = database.revision()
    if before is None or before > SCHEMA_REVISION:
        check_revision(before, name=database.name)
    if not dry_run:
        from modelreg.migrations.runner import upgrade_database

        upgrade_database(url, timeout_s=timeout_s)
    changed = before != SCHEMA_REVISION
    if invocation.as_json:
        body = {"from": before, "to": SCHEMA_REVISION, "changed": changed, "dry_run": dry_run}
        print_document({"database": database.name, **body})
    elif not changed:
        print_line(f"{database.name}: revision {before} already, nothing to do")
    else:
        did = "would be upgraded" if dry_run else "upgraded"
        print_line(f"{database.name}: {did} from revision {before} to {SCHEMA_REVISION}")


add_global_options(command)
command.add_command(backup)
command.add_command(restore)
command.add_command(current)
command.add_command(upgrade)
command.add_command(copy)
