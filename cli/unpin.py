"""`modelreg unpin`: let `gc` have a version's engines again, where nothing else needs them."""

from __future__ import annotations

import click

from modelreg.cli.context import Invocation, Registry
from modelreg.cli.options import dry_run_option, make_command, message_option, read_reference
from modelreg.cli.render import print_document, print_line
from modelreg.cli.versions import find_version
from modelreg.registry.errors import NotFoundError
from modelreg.registry.references import ModelReference


@make_command("unpin", help_line="Lift the pin of a version.", examples="modelreg unpin lenet:3")
@click.argument("reference", type=read_reference, metavar="NAME:VERSION")
@message_option
@dry_run_option
@click.pass_obj
def command(invocation: Invocation, *, reference: ModelReference, message: str, dry_run: bool) -> None:
    """Lift the pin of a version: `gc` may remove its engines where nothing else needs them, after the grace period.

    A pin that cannot be read, or whose version the database has lost, is lifted by its number.
    """
    from modelreg.registry.events import append_event
    from modelreg.registry.pins import is_pinned, lift_pin

    registry = invocation.open_registry()
    registry.open()
    model, number = _locate(registry, reference)
    name = f"{model}:{number}"
    was_pinned = (is_pinned if dry_run else lift_pin)(registry.storage, model, number)
    if was_pinned and not dry_run:
        with registry.database.write() as connection:
            append_event(
                connection,
                kind="version.unpinned",
                subject=name,
                details={"message": message},
                actor=registry.actor,
            )
    if invocation.as_json:
        body = {"dry_run": dry_run, "model": model, "version": number}
        print_document({**body, "changed": was_pinned})
        return
    did = "would no longer be pinned" if dry_run else "is no longer pinned"
    print_line(f"{name} {did if was_pinned else 'is not pinned'}")


def _locate(registry: Registry, reference: ModelReference) -> tuple[str, int]:
    """Return model and number; of a version that the database does not have, if there is a pin of it."""
    from modelreg.registry.pins import is_pinned

    number = reference.version
    try:
        version = find_version(registry, reference)
    except NotFoundError:
        if number is None or not is_pinned(registry.storage, reference.model, number):
            raise
        return reference.model, number
    return version.model, version.number
