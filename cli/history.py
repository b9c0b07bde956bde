"""`modelreg history`: every generation of a model's channels, the newest first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from modelreg.cli.activations import warn_of_drift
from modelreg.cli.context import Invocation, open_database_if_usable, open_store
from modelreg.cli.options import choose_channel, make_command, read_channel_name, read_reference, whole_number
from modelreg.cli.render import print_document, print_note, when
from modelreg.cli.tables import Column, print_table
from modelreg.registry.clock import iso
from modelreg.registry.errors import NotFoundError
from modelreg.registry.references import ModelReference

if TYPE_CHECKING:
    from datetime import datetime

    from modelreg.registry.database import Database
    from modelreg.registry.records import ActivationRecord
    from modelreg.registry.storage.interface import Storage
    from modelreg.registry.words import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class _Generation:
    channel: str
    generation: int
    version: int
    release: str
    kind: str
    rolls_back_to: int | None
    actor: str
    message: str
    at: datetime
    overridden: tuple[str, ...]
    active: bool

    def to_json(self) -> Json:
        return {
            "channel": self.channel,
            "generation": self.generation,
            "version": self.version,
            "release": self.release,
            "kind": self.kind,
            "rolls_back_to": self.rolls_back_to,
            "active": self.active,
            "actor": self.actor,
            "at": iso(self.at),
            "message": self.message,
            "overridden": list(self.overridden),
        }


@make_command(
    "history",
    help_line="Show who made what active, when and why.",
    examples="""
    modelreg history lenet
    modelreg history lenet --channel production --limit 10
    """,
)
@click.argument("reference", type=read_reference, metavar="NAME[@CHANNEL]")
@click.option("--channel", type=read_channel_name, metavar="CHANNEL", help="Only this channel.")
@click.option("--limit", type=whole_number(1), default=50, show_default=True, help="At most this many per channel.")
@click.option("--before", type=whole_number(1), metavar="GENERATION", help="Only generations before this one.")
@click.pass_obj
def command(
    invocation: Invocation, *, reference: ModelReference, channel: str | None, limit: int, before: int | None
) -> None:
    """Show every promotion and rollback of a model, newest first: who, when, why, and which one is active.

    Where the database is gone, the store's own history is shown. With -v, the release's whole digest too.
    """
    wanted = choose_channel(reference, channel)
    home = invocation.find_home()
    storage = open_store(home)
    database = open_database_if_usable(home, doing="history is read")
    model = reference.model
    channels = _find_channels(storage, database, model)
    if wanted is not None and wanted not in channels:
        raise NotFoundError(
            f"model {model!r} has no channel {wanted!r}",
            hint=f"It has: {', '.join(channels)}." if channels else "Nothing of it was ever promoted.",
        )
    rows: list[_Generation] = []
    for name in [wanted] if wanted is not None else channels:
        read = _read_store(storage, model, name, limit=limit, before=before)
        if database is not None:
            read = _read_database(database, storage, model, name, limit=limit, before=before)
        rows += read
    if invocation.as_json:
        print_document({"model": model, "generations": [row.to_json() for row in rows]})
        return
    if not rows:
        print_note(_say_nothing(model, channels, before))
        return
    _print(rows, verbose=invocation.verbose, no_color=invocation.no_color)


def _say_nothing(model: str, channels: list[str], before: int | None) -> str:
    if channels and before is not None:
        return f"no generation before {before}"
    return f"nothing of {model} was promoted yet: modelreg promote {model}:VERSION --to CHANNEL"


def _find_channels(storage: Storage, database: Database | None, model: str) -> list[str]:
    channels = {channel for name, channel in storage.list_channels() if name == model}
    if database is not None:
        from modelreg.registry import releases, versions

        with database.read() as connection:
            versions.get_version(connection, ModelReference(model=model))  # raises for an unknown model
            channels |= {channel for name, channel in releases.list_channels(connection) if name == model}
    return sorted(channels)


def _read_store(storage: Storage, model: str, channel: str, *, limit: int, before: int | None) -> list[_Generation]:
    pointer = storage.read_pointer(model, channel)
    served = 0 if pointer is None else pointer.generation
    numbers = [g for g in storage.list_generations(model, channel) if g <= served and g < (before or g + 1)]
    documents = [storage.read_history(model, channel, number) for number in sorted(numbers)[-limit:]]
    return [
        _Generation(
            channel=channel,
            generation=document.generation,
            version=document.version,
            release=document.release,
            kind=str(document.kind),
            rolls_back_to=document.rolls_back_to,
            actor=document.actor,
            message=document.message,
            at=document.at,
            overridden=document.overridden,
            active=document.generation == served,
        )
        for document in reversed(documents)
    ]


def _read_database(
    database: Database, storage: Storage, model: str, channel: str, *, limit: int, before: int | None
) -> list[_Generation]:
    from modelreg.registry import releases

    with database.read() as connection:
        channel_id = releases.find_channel(connection, model=model, name=channel)
        if channel_id is None:
            records: list[ActivationRecord] = []
        else:
            records = releases.list_activations(connection, channel_id=channel_id, limit=limit, before=before)
        newest = None if channel_id is None else releases.newest_activation(connection, channel_id=channel_id)
    pointer = storage.read_pointer(model, channel)
    served = 0 if pointer is None else pointer.generation
    known = 0 if newest is None else newest.generation
    warn_of_drift(model, channel, served=served, known=known)
    return [
        _Generation(
            channel=channel,
            generation=record.generation,
            version=record.version,
            release=record.release_digest,
            kind=str(record.kind),
            rolls_back_to=record.rolls_back_to,
            actor=record.actor,
            message=record.message,
            at=record.created_at,
            overridden=record.overridden,
            active=pointer is not None and record.txn == pointer.txn,
        )
        for record in records
    ]


def _print(rows: list[_Generation], *, verbose: bool, no_color: bool) -> None:
    columns = [
        Column(header=""),
        Column(header="CHANNEL"),
        Column(header="GEN", right=True),
        Column(header="VERSION", right=True),
        Column(header="KIND"),
        Column(header="WHEN (UTC)", folds=True, least=10),
        Column(header="WHO", folds=True),
        Column(header="WHY", folds=True, least=30, below=True),
        *([Column(header="RELEASE", below=True)] if verbose else []),
    ]
    print_table(
        columns,
        [
            [
                "*" if row.active else "",
                row.channel,
                str(row.generation),
                str(row.version),
                row.kind,
                when(row.at),
                row.actor,
                _say_why(row),
                *([row.release] if verbose else []),
            ]
            for row in rows
        ],
        no_color=no_color,
    )


def _say_why(row: _Generation) -> str:
    overridden = f"gates overridden: {'; '.join(row.overridden)}" if row.overridden else ""
    return "; ".join(part for part in (row.message, overridden) if part) or "-"
