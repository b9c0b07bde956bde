"""What is killed and failed, a row each: the command, what of the state it changes, and how it is begun again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from alembic.script import ScriptDirectory

from modelreg.config.settings import Home
from modelreg.migrations import runner
from modelreg.registry.database import sqlite_url
from modelreg.registry.storage.open import open_storage
from modelreg_testing.campaign.checker import (
    DatabaseState,
    StoreState,
    check_database,
    check_objects,
    check_pulled,
    sha256,
)
from modelreg_testing.campaign.homes import CHANNEL, MODEL, Place, must


@dataclass(frozen=True)
class Look:
    """A registry and a serving host, read from outside and found whole."""

    store: StoreState
    database: DatabaseState
    pulled: int

    @property
    def generation(self) -> int:
        return self.store.channels[f"{MODEL}@{CHANNEL}"].generation


def look(place: Place) -> Look:
    """Check I1, I4 and the database of a registry, and return what it says."""
    return Look(check_objects(place.objects()), check_database(place.database), check_pulled(place.served))


def nothing(_place: Place) -> None:
    """Leave the template as it is."""


@dataclass(frozen=True)
class Command:
    """
    One command of the campaign.

    Args:
        name: Its word in the tables.
        words: Its command line.
        seen: What it changes: the value before is *old*, the one after an undisturbed run is *new*.
        before: Brings a template into the state in which the command has work to do.
        moves_on: Done again when it is done, it does more: a rollback goes one further back.
        repeat_first: Nothing else works before it is done: recovery begins with it.
        waits_in_s3: What a dead one has begun there is left to it for a quarter of an hour: it may still have its way.
        is_slow: It starts processes of its own; fewer points by default.
    """

    name: str
    words: Callable[[Place], tuple[object, ...]]
    seen: Callable[[Look], object]
    before: Callable[[Place], None] = nothing
    moves_on: bool = False
    repeat_first: bool = False
    waits_in_s3: bool = False
    is_slow: bool = False


def _downgrade(place: Place) -> None:
    """Bring the database back by one revision, with all its rows."""
    scripts = ScriptDirectory(str(Path(runner.__file__).parent))
    revisions = [entry.revision for entry in scripts.walk_revisions()]
    runner.downgrade_database(sqlite_url(place.database), revision=revisions[1])
    for backup in place.home.glob("registry.db.backup-*"):
        backup.unlink()


_GARBAGE, _YOUNGER_GARBAGE = b"garbage that is marked", b"garbage that is not marked yet"


def _leave_garbage(place: Place) -> None:
    """Leave a blob that nothing needs and an earlier run has marked, and one that no run has seen."""
    storage = open_storage(Home(place.home).store_url)
    storage.put_bytes(_GARBAGE)
    must(place, *_collect(place))
    storage.put_bytes(_YOUNGER_GARBAGE)


def _collect(_place: Place) -> tuple[object, ...]:
    """Return a collection without grace, of what no version needs: the engines of all are kept."""
    return "gc", "--keep-versions", 100, "--set", "gc.grace_s=0.001"


def _rows(look: Look) -> object:
    state = look.database
    return state.revision, dict(state.versions), state.built, dict(state.activations), state.blobs


COMMANDS = (
    Command(
        "register",
        lambda place: ("register", "mlp", place.folder / "network" / "large" / "mlp.onnx"),
        lambda look: look.database.versions["mlp"],
    ),
    Command("build", lambda _place: ("build", "mlp:1"), lambda look: look.database.built, is_slow=True),
    Command(
        "promote",
        lambda _place: ("promote", f"{MODEL}:4", "--to", CHANNEL),
        lambda look: look.generation,
    ),
    Command(
        "rollback",
        lambda _place: ("rollback", f"{MODEL}@{CHANNEL}"),
        lambda look: look.generation,
        moves_on=True,
    ),
    Command(
        "pull",
        lambda place: ("pull", f"{MODEL}@{CHANNEL}", "--into", place.served, "--target", "cpu"),
        lambda look: look.pulled,
    ),
    Command(
        "gc",
        _collect,
        lambda look: sha256(_GARBAGE) in look.store.blobs,
        before=_leave_garbage,
        waits_in_s3=True,
    ),
    Command("migrate", lambda _place: ("db", "upgrade"), _rows, before=_downgrade, repeat_first=True),
)


def command_named(name: str) -> Command:
    """Return one row."""
    return next(command for command in COMMANDS if command.name == name)


def database_is_away(place: Place) -> Path:
    """Move the database away, its log included, and return where it is."""
    away = place.database.with_suffix(".away")
    import sqlite3

    with closing(sqlite3.connect(place.database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    place.database.rename(away)
    for suffix in ("-wal", "-shm"):
        place.database.with_name(place.database.name + suffix).unlink(missing_ok=True)
    return away
