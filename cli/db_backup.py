"""`modelreg db backup` and `db restore`: a checked copy of a database in use, and the way back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from modelreg.cli.context import Invocation, locate_database, open_store
from modelreg.cli.options import dry_run_option, make_command
from modelreg.cli.render import count, print_document, print_line, print_note, print_warning, size
from modelreg.registry.errors import StorageError

if TYPE_CHECKING:
    from modelreg.config.settings import Home
    from modelreg.registry.backups import Backup
    from modelreg.registry.restoring import Gap, RestorePlan
    from modelreg.registry.storage.interface import Storage
    from modelreg.registry.words import Json

_FILE = click.argument("file", type=click.Path(path_type=Path))


@make_command(
    "backup",
    help_line="Copy the database to a file, in use or not.",
    examples="""
    modelreg db backup /backups/registry.db
    modelreg db backup /backups/registry.db --force
    """,
)
@_FILE
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
@dry_run_option
@click.pass_obj
def backup(invocation: Invocation, *, file: Path, force: bool, dry_run: bool) -> None:
    """Copy the database's last committed state to FILE, while other commands go on.

    The copy is checked before it gets its name; its SHA-256 is written to FILE.sha256, for `sha256sum -c` and for
    `db restore`. A FILE that is there is not replaced without --force.
    """
    from modelreg.registry.backups import check_destination, make_backup, require_file
    from modelreg.registry.database import Database

    home = invocation.find_home()
    if home.database_path is None:
        require_file(home.database_url, file)
    with Database(locate_database(home), timeout_s=home.settings.lock_timeout_s) as database:
        check_destination(database, file, replace=force)
        made = None if dry_run else make_backup(database, file, replace=force)
        name = database.name
    if invocation.as_json:
        body = {"path": str(file)} if made is None else _backup_document(made)
        print_document({"database": name, "backup": body, "dry_run": dry_run})
    elif made is None:
        print_line(f"{name} would be copied to {file}")
    else:
        print_line(f"{made.path}: {size(made.size_bytes)}, {count(made.events, 'event')}, whole")
        print_line(f"sha256 {made.sha256}")


@make_command(
    "restore",
    help_line="Put a backup in the place of the database.",
    examples="""
    modelreg db restore /backups/registry.db --dry-run
    modelreg db restore /backups/registry.db
    modelreg doctor
    """,
)
@_FILE
@click.option("--force", is_flag=True, help="Even if the database knows what FILE does not.")
@dry_run_option
@click.pass_obj
def restore(invocation: Invocation, *, file: Path, force: bool, dry_run: bool) -> None:
    """Put the backup FILE in the place of the database, which is kept beside it.

    FILE is checked first, against FILE.sha256 too where that is there. Refused (exit 4) while the database knows what
    FILE does not, unless --force says so. No channel moves: where the store knows later generations than FILE, they are
    named, and `modelreg doctor --fix` records what the store's history says.
    """
    from modelreg.registry.actor import current_actor
    from modelreg.registry.restoring import plan_restore
    from modelreg.registry.restoring import restore as carry_out

    home = invocation.find_home()
    name, storage = _name_database(home), _open_store_if_there(home)
    plan = plan_restore(file, database=home.database_path, name=name, storage=storage)
    kept = None
    if not force:
        plan.require_nothing_hidden(name)
    if not dry_run:
        assert home.database_path is not None
        kept = carry_out(
            plan,
            database=home.database_path,
            storage=storage,
            actor=current_actor(),
            timeout_s=home.settings.lock_timeout_s,
            force=force,
        )
    if invocation.as_json:
        body = {"kept": None if kept is None else str(kept), "gaps": [_gap_document(gap) for gap in plan.gaps]}
        hidden = {"newer_events": len(plan.current.newer), "fault": plan.current.fault}
        backup_body = {"backup": _backup_document(plan.backup)}
        print_document({"database": name, **backup_body, **body, "replaced": hidden, "dry_run": dry_run})
        return
    did = "would be restored" if dry_run else "is restored"
    print_line(f"{name} {did} from {file}: {count(plan.backup.events, 'event')}, sha256 {plan.backup.sha256}")
    _explain(plan, kept)


def _explain(plan: RestorePlan, kept: Path | None) -> None:
    if kept is not None:
        print_line(f"what was there is kept as {kept}")
    if not plan.current.exists:
        print_note("no database was there before")
    elif plan.current.fault:
        print_note(plan.current.fault)
    elif plan.current.newer:
        print_warning(f"newer events of the database that the backup does not have: {len(plan.current.newer)}")
    for gap in plan.gaps:
        print_warning(f"{gap.place}: the store serves generation {gap.served}, the backup knows {gap.known}")
    if plan.gaps:
        print_note("next: modelreg doctor says what the store knows, --fix records it; what is served stays as it is")
    _note_schema(plan)


def _note_schema(plan: RestorePlan) -> None:
    from modelreg.registry.schema import SCHEMA_REVISION

    if plan.backup.revision != SCHEMA_REVISION:
        print_note(f"next: modelreg db upgrade: the backup has schema {plan.backup.revision}")


def _name_database(home: Home) -> str:
    """Return what messages call the database; without its driver, so that a server can be refused in words."""
    import sqlalchemy as sa

    path = home.database_path
    return str(path) if path is not None else sa.make_url(home.database_url).render_as_string(hide_password=True)


def _open_store_if_there(home: Home) -> Storage | None:
    """Return the store, or None with a warning: a database can be restored without."""
    try:
        return open_store(home)
    except StorageError as error:
        print_warning(f"{error}; what it serves is not compared")
        return None


def _backup_document(made: Backup) -> Json:
    return {
        "path": str(made.path),
        "size_bytes": made.size_bytes,
        "sha256": made.sha256,
        "revision": made.revision,
        "events": made.events,
        "head": None if made.head is None else made.head.hash,
    }


def _gap_document(gap: Gap) -> Json:
    return {"channel": gap.place, "known_generation": gap.known, "served_generation": gap.served}
