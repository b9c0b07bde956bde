"""`modelreg list`: the models of the registry, or the versions of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from modelreg.cli.activations import warn_of_drift
from modelreg.cli.context import Invocation, Registry
from modelreg.cli.options import make_command, read_model_name, whole_number
from modelreg.cli.render import print_document, print_note, print_warning, short, when
from modelreg.cli.tables import Column, print_table
from modelreg.registry.clock import iso
from modelreg.registry.errors import IntegrityError, ModelregError

if TYPE_CHECKING:
    from modelreg.registry.records import VersionRecord
    from modelreg.registry.words import Json


_Channels = dict[str, tuple[int, int]]
"""Version and generation of each channel of a model."""
_NEVER_MOVED = (0, 0)
_DETAILS = ("BY", "TAGS")
"""The columns that -v adds to a model's versions."""


@make_command(
    "list",
    help_line="List the models, or the versions of one.",
    examples="""
    modelreg list
    modelreg list lenet --limit 20
    """,
)
@click.argument("name", type=read_model_name, required=False)
@click.option("--limit", type=whole_number(1), default=100, show_default=True, help="At most this many versions.")
@click.option("--before", type=whole_number(1), metavar="VERSION", help="Only versions before this one.")
@click.pass_obj
def command(invocation: Invocation, *, name: str | None, limit: int, before: int | None) -> None:
    """List the models, or with NAME the versions of one model, newest first.

    What is active is read from the store; where that is away, the database's word is shown with a warning.

    With -v, whole digests, who registered a version, its tags, and the generations of channels are shown.
    """
    registry = invocation.open_registry()
    if name is None:
        _list_models(invocation, registry)
    else:
        _list_versions(invocation, registry, name, limit=limit, before=before)


def _list_models(invocation: Invocation, registry: Registry) -> None:
    from modelreg.registry.versions import list_models

    with registry.database.read() as connection:
        models = list_models(connection)
    served = _read_served(registry, {model.name: model.channels for model in models})
    if invocation.as_json:
        print_document(
            {
                "models": [
                    {
                        "name": model.name,
                        "versions": model.versions,
                        "newest": model.newest,
                        "channels": {
                            channel: {"version": version, "generation": generation}
                            for channel, (version, generation) in sorted(served[model.name].items())
                        },
                    }
                    for model in models
                ]
            }
        )
        return
    if not models:
        print_note("no models yet; register one: modelreg register NAME MODEL.onnx")
        return
    columns = (
        Column(header="MODEL", folds=True),
        Column(header="VERSIONS", right=True),
        Column(header="NEWEST", right=True),
        Column(header="ACTIVE", folds=True),
    )
    rows = [
        (
            model.name,
            str(model.versions),
            str(model.newest),
            _say_channels(served[model.name], verbose=invocation.verbose),
        )
        for model in models
    ]
    print_table(columns, rows, no_color=invocation.no_color)


def _read_served(registry: Registry, recorded: dict[str, _Channels]) -> dict[str, _Channels]:
    """Return what the channels of these models serve, asked of the store, which knows; what differs is warned of."""
    if not recorded:
        return {}
    served: dict[str, _Channels] = {model: {} for model in recorded}
    try:
        for model, channel in registry.storage.list_channels():
            pointer = registry.storage.read_pointer(model, channel) if model in recorded else None
            if pointer is not None:
                served[model][channel] = pointer.version, pointer.generation
    except ModelregError as error:
        print_warning(f"{error}; what is active is shown as the database knows it")
        return recorded
    for model, channels in recorded.items():
        for channel in sorted(channels.keys() | served[model].keys()):
            _, known = channels.get(channel, _NEVER_MOVED)
            warn_of_drift(model, channel, served=served[model].get(channel, _NEVER_MOVED)[1], known=known)
    return served


def _say_channels(channels: _Channels, *, verbose: bool) -> str:
    said = [
        f"{name} {version}" + (f" (generation {generation})" if verbose else "")
        for name, (version, generation) in sorted(channels.items())
    ]
    return ", ".join(said) or "-"


def _list_versions(invocation: Invocation, registry: Registry, name: str, *, limit: int, before: int | None) -> None:
    from modelreg.registry.versions import list_models, list_versions

    with registry.database.read() as connection:
        versions = list_versions(connection, model=name, limit=limit, before=before)
        recorded = next((model.channels for model in list_models(connection) if model.name == name), {})
    channels = _read_served(registry, {name: recorded})[name]
    pinned = _read_pinned(registry, name)
    active: dict[int, list[str]] = {}
    for channel, (number, _) in sorted(channels.items()):
        active.setdefault(number, []).append(channel)
    full = len(versions) == limit and versions[-1].number > 1
    if invocation.as_json:
        print_document(
            {
                "model": name,
                "versions": [_version_document(version, active, pinned) for version in versions],
                "next_before": versions[-1].number if full else None,
            }
        )
        return
    details = _DETAILS if invocation.verbose else ()
    columns = (
        Column(header="VERSION", right=True),
        Column(header="SOURCE"),
        Column(header="REGISTERED (UTC)"),
        Column(header="ACTIVE ON", folds=True),
        *([Column(header="PIN")] if pinned else []),
        Column(header="MESSAGE", folds=True),
        *(Column(header=header, folds=True) for header in details),
    )
    rows = [
        (
            str(version.number),
            version.source.digest if details else short(version.source.digest),
            when(version.created_at),
            ", ".join(active.get(version.number, [])) or "-",
            *(("pinned" if version.number in pinned else "-",) if pinned else ()),
            version.message or "-",
            *((version.created_by, _say_tags(version)) if details else ()),
        )
        for version in versions
    ]
    print_table(columns, rows, no_color=invocation.no_color)
    if full:
        print_note(f"older ones: modelreg list {name} --before {versions[-1].number}")


def _say_tags(version: VersionRecord) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(version.tags.items())) or "-"


def _read_pinned(registry: Registry, name: str) -> set[int]:
    """Return the versions of a model that are pinned; where the store is away, that is warned of already."""
    from modelreg.registry.pins import list_pins

    try:
        return {pin.version for pin in list_pins(registry.storage, model=name)}
    except IntegrityError as error:
        print_warning(str(error))
    except ModelregError:
        pass
    return set()


def _version_document(version: VersionRecord, active: dict[int, list[str]], pinned: set[int]) -> Json:
    return {
        "version": version.number,
        "source": version.source.digest,
        "created_at": iso(version.created_at),
        "created_by": version.created_by,
        "message": version.message,
        "tags": version.tags,
        "channels": active.get(version.number, []),
        "pinned": version.number in pinned,
    }
