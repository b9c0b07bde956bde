"""`modelreg init`: make a registry; its settings file, written last, is what makes a folder one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from modelreg.cli.context import Invocation, locate_database
from modelreg.cli.options import dry_run_option, make_command
from modelreg.cli.render import print_document, print_line, print_note, print_warning
from modelreg.config.settings import Home, create_home, new_home_path
from modelreg.registry.database_url import check_database_url, has_password, mask_secrets
from modelreg.registry.errors import DatabaseError, StorageError, StoreAbsentError, UsageError
from modelreg.registry.sqlite import refuse_network

if TYPE_CHECKING:
    from modelreg.cli.progress import Reporter
    from modelreg.registry.storage.interface import Storage


@make_command(
    "init",
    help_line="Create a registry.",
    examples="""
    modelreg init
    modelreg --home /srv/models init --store /mnt/store
    modelreg init --store s3://bucket/prefix
    modelreg init --store s3://bucket/prefix --endpoint-url https://s3.example.com
    modelreg init --store s3://bucket/prefix --database postgresql://user@host/models
    """,
)
@click.option(
    "--store",
    metavar="URL",
    help="Where bytes live: a folder (default: `store` in the registry), or s3://BUCKET/PREFIX.",
)
@click.option("--endpoint-url", metavar="URL", help="The S3 server of the store, where it is not AWS itself.")
@click.option(
    "--database",
    metavar="URL",
    help="Where intent and history live: a file (default: `registry.db` in the registry), or postgresql://…",
)
@dry_run_option
@click.pass_obj
def command(
    invocation: Invocation, *, store: str | None, endpoint_url: str | None, database: str | None, dry_run: bool
) -> None:
    """Create a registry in .modelreg, or where --home says: settings, database and store.

    A registry that is already there is kept, and what it lacks is made. A store in S3 is made only on a server that
    passes `modelreg store check`. A database on a server must exist, empty or with a registry's tables.
    """
    if endpoint_url is not None and store is None:
        raise UsageError("--endpoint-url belongs to a store", hint="Add --store s3://BUCKET/PREFIX.")
    from modelreg.registry.storage.open import locate_storage

    database_url = None if database is None else _locate_database(database)
    flags = (*invocation.flags, *([("database.url", database_url)] if database_url else []))
    home = Home(new_home_path(invocation.home), flags)
    invocation.warn_of_variables()
    existed = home.config_path.exists()
    if existed and database_url is not None and home.database_url != Home(home.path, invocation.flags).database_url:
        kept = mask_secrets(Home(home.path, invocation.flags).database_url)
        raise UsageError(
            f"{home.path} is a registry already, with the database {kept}",
            hint="Choose another --home for another database.",
        )
    if home.database_path is not None:
        refuse_network(home.database_path)
    wanted = None if store is None else locate_storage(store, endpoint_url=endpoint_url)
    if existed and wanted is not None and wanted != home.store_url:
        raise UsageError(
            f"{home.path} is a registry already, with the store {home.store_url}",
            hint="Choose another --home for another store.",
        )
    store_url = wanted or home.store_url
    _require_nothing_lost(home, store_url=store_url)
    storage = _find_store(store_url)
    if storage is not None and not existed:
        _warn_of_what_is_served(storage)
    if not dry_run:
        home.path.mkdir(parents=True, exist_ok=True)
        if storage is None:
            _make_store(store_url, reporter=invocation.reporter())
        _create(home, store_url=wanted, database_url=database_url)
    if invocation.as_json:
        print_document(
            {
                "home": str(home.path),
                "store": store_url,
                "database": mask_secrets(home.database_url),
                "created": not existed,
                "dry_run": dry_run,
            }
        )
        return
    did = "is a registry already" if existed else "would be made a registry" if dry_run else "is a registry now"
    server = f", database {mask_secrets(home.database_url)}" if home.database_path is None else ""
    print_line(f"{home.path} {did}, store {store_url}{server}")
    if not existed and not dry_run:
        print_note("next: modelreg register NAME MODEL.onnx")


def _require_nothing_lost(home: Home, *, store_url: str) -> None:
    """Refuse to put something new beside the half of a registry that is left: the two would not know each other."""
    known = _count_known_blobs(home)
    if known:
        _require_no_lost_store(store_url, known=known)
    elif known is None and home.config_path.exists():
        _require_no_lost_database(home)


def _count_known_blobs(home: Home) -> int | None:
    """Return how many blobs the database names, or None where there is no database or an empty one."""
    from modelreg.registry.blobs import count_blobs
    from modelreg.registry.database import Database

    if home.database_path is not None and not home.database_path.exists():
        return None
    with Database(locate_database(home), timeout_s=home.settings.lock_timeout_s) as database:
        if database.revision() is None:
            return None
        with database.read() as connection:
            return count_blobs(connection)


def _require_no_lost_store(url: str, *, known: int) -> None:
    from modelreg.registry.storage.open import open_storage

    try:
        open_storage(url)
    except StorageError as error:
        raise StorageError(
            f"{error}, and the database names {known} blobs",
            hint="Mount the store or restore it. To start over, use another --home.",
        ) from None


def _require_no_lost_database(home: Home) -> None:
    from modelreg.registry.database import Database
    from modelreg.registry.storage.open import open_storage

    try:
        channels = open_storage(home.store_url).list_channels()
    except StorageError:
        return
    if channels:
        served = ", ".join(f"{model}@{channel}" for model, channel in channels[:3])
        path = home.database_path
        state = "gone" if path is not None and not path.exists() else "empty"
        raise DatabaseError(
            f"database {Database(locate_database(home)).name} is {state}, and the store serves {served}",
            hint="Restore its backup; `which` and `rollback` work without. To start over, use another --home.",
        )


def _find_store(url: str) -> Storage | None:
    """Return the store at `url`, or None where one can be made; a server or bucket that cannot be read is an error."""
    from modelreg.registry.storage.open import S3_SCHEME, open_storage

    try:
        return open_storage(url)
    except StorageError as error:
        if url.startswith(S3_SCHEME) and not isinstance(error, StoreAbsentError):
            raise
        return None


def _warn_of_what_is_served(storage: Storage) -> None:
    served = storage.list_channels()
    if served:
        names = ", ".join(f"{model}@{channel}" for model, channel in served[:3])
        more = f" and {len(served) - 3} more" if len(served) > 3 else ""
        print_warning(
            f"the store is in use: it serves {names}{more}, of versions that another registry knows and this one does"
            " not, so it cannot promote to these channels; for a store of its own, use another folder or prefix"
        )


def _locate_database(url: str) -> str:
    """Return what `--database` names, as it is kept: a file's path is one from here, not from the registry's folder."""
    url = check_database_url(url)
    return url if "://" in url else str(Path(url).absolute())


def _create(home: Home, *, store_url: str | None, database_url: str | None) -> None:
    from modelreg.migrations.runner import create_database

    create_database(locate_database(home), timeout_s=home.settings.lock_timeout_s)
    if database_url is not None and has_password(database_url) and not home.config_path.exists():
        print_warning(
            f"{home.config_path} holds a password, and is closed to other users; better keep that in ~/.pgpass"
        )
    create_home(home.path, store_url=store_url, database_url=database_url)


def _make_store(url: str, *, reporter: Reporter) -> None:
    """Make the store at `url`; of several `init` at once, one makes it."""
    from modelreg.registry.storage.open import S3_SCHEME, create_storage, open_storage

    is_remote = url.startswith(S3_SCHEME)
    try:
        if is_remote:
            with reporter.step(f"trying what {url} can be trusted with") as tell:
                create_storage(url, trying=lambda name: tell(None, name))
        else:
            create_storage(url)
    except StorageError as refused:
        try:
            open_storage(url)
        except StorageError as unopened:
            hint = refused.hint() if is_remote else f"{unopened}."
            raise StorageError(str(refused), hint=hint) from None
