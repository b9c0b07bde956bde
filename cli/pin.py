"""`modelreg pin`: keep a version's engines, whatever becomes of its releases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from modelreg.cli.context import Invocation, Registry
from modelreg.cli.options import dry_run_option, make_command, message_option, read_reference
from modelreg.cli.render import print_document, print_line, print_warning
from modelreg.cli.versions import find_version
from modelreg.registry.references import ModelReference

if TYPE_CHECKING:
    from modelreg.registry.records import EngineRecord, VersionRecord


@make_command(
    "pin",
    help_line="Keep a version's engines from gc.",
    examples="""
    modelreg pin lenet:3 -m "certified for customer X"
    """,
)
@click.argument("reference", type=read_reference, metavar="NAME:VERSION")
@message_option
@dry_run_option
@click.pass_obj
def command(invocation: Invocation, *, reference: ModelReference, message: str, dry_run: bool) -> None:
    """Keep all engines of a version, and its releases, from `gc`, until `unpin`.

    `list` and `show` say what is pinned. An engine that `gc` removed before does not come back: it is named.
    """
    registry = invocation.open_registry()
    registry.open()
    version = find_version(registry, reference)
    changed = _would_pin(registry, version) if dry_run else _pin(registry, version, message)
    gone = _find_gone(registry, version, claim=not dry_run)
    if invocation.as_json:
        print_document(
            {
                "dry_run": dry_run,
                "model": version.model,
                "version": version.number,
                "changed": changed,
                "swept_engines": [engine.id for engine in gone],
            }
        )
        return
    did = "would be pinned" if dry_run else "is pinned"
    print_line(f"{version.reference} {did if changed else 'is pinned already'}")
    for engine in gone:
        print_warning(f"engine {engine.id} ({engine.target.name} {engine.precision}) was removed by gc: build it again")


def _would_pin(registry: Registry, version: VersionRecord) -> bool:
    from modelreg.registry.pins import find_pin

    return find_pin(registry.storage, version) is None


def _pin(registry: Registry, version: VersionRecord, message: str) -> bool:
    from modelreg.registry.clock import utc_now
    from modelreg.registry.events import append_event
    from modelreg.registry.pins import set_pin

    pin, changed = set_pin(registry.storage, version, message=message, actor=registry.actor, at=utc_now())
    if changed:
        with registry.database.write() as connection:
            append_event(
                connection,
                kind="version.pinned",
                subject=version.reference,
                details={"source": pin.source, "message": message},
                actor=registry.actor,
            )
    return changed


def _find_gone(registry: Registry, version: VersionRecord, *, claim: bool) -> list[EngineRecord]:
    """Return the engines that no pin can keep any more; the others are taken back from a collector at work."""
    from modelreg.registry import engines

    with registry.database.read() as connection:
        built = [engine for engine in engines.current_engines(connection, version_id=version.id) if engine.files]
    look = registry.storage.keep_blob if claim else registry.storage.has_blob
    return [engine for engine in built if engine.is_swept or not all(look(file.digest) for file in engine.files)]
