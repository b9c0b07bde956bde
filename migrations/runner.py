"""Making, upgrading and downgrading a database: one transaction each, under the write lock, after a backup.

Two commands at once give one winner: the second waits for the write lock and then finds nothing left to do. A killed
one leaves the schema as it was.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

from modelreg.registry.database import Database
from modelreg.registry.errors import DatabaseError, SchemaVersionError, UsageError
from modelreg.registry.revisions import check_revision, read_revision, require_schema

_HERE = Path(__file__).parent
_KEPT_BACKUPS = 3
_BACKUP = re.compile(r"[0-9]{6}-[0-9a-z]+")  # counted: names in order of time would trust the clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """What a migration did: revisions before and after (None: no schema), and the backup made first, if any."""

    before: str | None
    after: str | None
    backup: Path | None

    @property
    def is_change(self) -> bool:
        """Return whether anything was done."""
        return self.before != self.after


def create_database(url: str | sa.URL, *, timeout_s: float = 30.0) -> Migration:
    """
    Make a database with the newest schema; one that is there already is upgraded.

    Raises:
        DatabaseError: The file cannot be made or written.
        SchemaVersionError: It is there and newer than this program.
    """
    with Database(url, timeout_s=timeout_s) as database:
        if database.path is not None:
            _make_file(database.path)
        head = _head(_HERE)
        return _upgrade(database, _HERE, is_done=lambda found: found == head)


def upgrade_database(url: str | sa.URL, *, timeout_s: float = 30.0, scripts: Path = _HERE) -> Migration:
    """
    Bring a database to the newest schema, after a backup beside it; the three newest backups are kept.

    Args:
        url: As `Database` takes it.
        timeout_s: How long to wait for other writers.
        scripts: Where the revisions are; another folder is for tests of revisions to come.

    Raises:
        SchemaVersionError: The database is newer than this program.
        DatabaseError: It does not exist, is empty, cannot be written, or rows would be lost; nothing was changed.
    """
    head = _head(scripts)
    with Database(url, timeout_s=timeout_s) as database:
        return _upgrade(database, scripts, is_done=lambda found: require_schema(found, name=database.name) == head)


def downgrade_database(
    url: str | sa.URL, *, revision: str, timeout_s: float = 30.0, scripts: Path = _HERE
) -> Migration:
    """
    Bring a database back to `revision` (`base` removes every table), after a backup beside it.

    Raises:
        UsageError: There is no such revision.
        SchemaVersionError: The database is newer than this program, or older than `revision`.
        DatabaseError: It does not exist, cannot be written, or rows would be lost; nothing was changed.
    """
    script = ScriptDirectory(str(scripts))
    known = [entry.revision for entry in script.walk_revisions()]
    if revision != "base" and revision not in known:
        raise UsageError(f"there is no schema revision {revision!r}", hint=f"Known: base, {', '.join(known[::-1])}.")

    def is_done(found: str | None) -> bool:
        if revision == "base":
            return found is None
        if found is None or known.index(found) > known.index(revision):
            raise SchemaVersionError(f"database {database.name} is older than schema {revision}")
        return found == revision

    with Database(url, timeout_s=timeout_s) as database:
        return _run(database, scripts, is_done=is_done, action=lambda config: command.downgrade(config, revision))


def _upgrade(database: Database, scripts: Path, *, is_done: Callable[[str | None], bool]) -> Migration:
    return _run(database, scripts, is_done=is_done, action=lambda config: command.upgrade(config, "head"))


def _head(scripts: Path) -> str | None:
    return ScriptDirectory(str(scripts)).get_current_head()


def _run(
    database: Database,
    scripts: Path,
    *,
    is_done: Callable[[str | None], bool],
    action: Callable[[Config], None],
) -> Migration:
    with database.migrate() as connection:
        before = read_revision(connection)
        _require_known(before, scripts=scripts, name=database.name)
        if is_done(before):
            return Migration(before=before, after=before, backup=None)
        backup = _back_up(database, before) if before is not None else None
        config = Config()
        config.set_main_option("script_location", str(scripts).replace("%", "%%"))
        config.attributes["connection"] = connection
        action(config)
        return Migration(before=before, after=read_revision(connection), backup=backup)


def _require_known(found: str | None, *, scripts: Path, name: str) -> None:
    known = {entry.revision for entry in ScriptDirectory(str(scripts)).walk_revisions()}
    if found is not None and found not in known:
        check_revision(found, name=name)


def _back_up(database: Database, revision: str) -> Path | None:
    # The write lock is held: this reads the last committed state on a connection of its own.
    if database.path is None:
        return None
    stem = f"{database.path.name}.backup-"
    backups = [path for path in database.path.parent.iterdir() if path.name.startswith(stem)]
    older = sorted(path for path in backups if _BACKUP.fullmatch(path.name[len(stem) :]))
    number = 1 + (int(older[-1].name[len(stem) :][:6]) if older else 0)
    destination = database.path.with_name(f"{stem}{number:06d}-{revision}")
    database.backup(destination)
    for path in [*older, destination][:-_KEPT_BACKUPS]:
        path.unlink(missing_ok=True)
    return destination


def _make_file(path: Path) -> None:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644))
    except OSError as error:
        raise DatabaseError(
            f"database {path} cannot be made: {error.strerror}", hint="Check the folder and its permissions."
        ) from None
