"""`modelreg unpin`: let `gc` have a version's engines again, where nothing else needs them."""

from __future__ import annotations

import click

from modelreg.cli.context import Invocation
from modelreg.cli.options import dry_run_option, make_command, message_option, read_reference
from modelreg.cli.render import print_document, print_line
from modelreg.cli.versions import find_version
from modelreg.registry.references import ModelReference


@make_command("unpin", help_line="Lift the pin of a version.", examples="modelreg unpin lenet:3")
@click.argument("reference", type=read_reference, metavar="NAME:VERSION")
@message_option
@dry_run_option
@click.pass_obj
def command(invocation: Invocation, *, reference: ModelReference, message: str, dry_run: bool) -> None:
    """Lift the pin of a version: `gc` may remove its engines where nothing else needs them, after the grace period."""
    from modelreg.registry.events import append_event
    from modelreg.registry.pins import find_pin, lift_pin

    registry = invocation.open_registry()
    registry.open()
    version = find_version(registry, reference)
    pin = find_pin(registry.storage, version) if dry_run else lift_pin(registry.storage, version)
    if pin is not None and not dry_run:
        with registry.database.write() as connection:
            append_event(
                connection,
                kind="version.unpinned",
                subject=version.reference,
                details={"message": message},
                actor=registry.actor,
            )
    if invocation.as_json:
        body = {"dry_run": dry_run, "model": version.model, "version": version.number}
        print_document({**body, "changed": pin is not None})
        return
    did = "would no longer be pinned" if dry_run else "is no longer pinned"
    print_line(f"{version.reference} {did if pin is not None else 'is not pinned'}")
