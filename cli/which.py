"""`modelreg which`: the plan this host would load. Reads the store alone; no database, no heavy import."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from modelreg.cli.context import Invocation, open_store
from modelreg.cli.options import make_command, read_reference
from modelreg.cli.render import print_document, print_line, short, when
from modelreg.registry.clock import iso
from modelreg.registry.errors import NotFoundError
from modelreg.registry.references import ModelReference

if TYPE_CHECKING:
    from modelreg.registry.words import Json
    from modelreg.runtime.resolver import Resolution


@make_command(
    "which",
    help_line="Show the engine that this host would load.",
    examples="""
    modelreg which lenet@production
    modelreg which lenet@production --path-only
    """,
)
@click.argument("reference", type=read_reference, metavar="NAME@CHANNEL")
@click.option("-q", "--path-only", is_flag=True, help="Print the path of the plan and nothing else.")
@click.option("--explain", is_flag=True, help="Say of every engine why it would load or not (the default).")
@click.pass_obj
def command(invocation: Invocation, *, reference: ModelReference, path_only: bool, explain: bool) -> int:
    """Show which engine of the active release this host would load, and why the others not.

    Only the store is read: it works on a server that has no database. With -v, whole digests, who promoted it and why.
    """
    if reference.channel is None:
        raise click.UsageError(f"{reference} names no channel, write {reference.model}@CHANNEL")
    if path_only and explain:
        raise click.UsageError("--path-only and --explain exclude each other")
    from modelreg.runtime.host import describe_host
    from modelreg.runtime.resolver import resolve

    resolution = resolve(open_store(invocation.find_home()), reference.model, reference.channel, describe_host())
    if invocation.as_json:
        print_document(_document(resolution))
    elif path_only:
        if resolution.path is None and resolution.chosen is not None:
            raise NotFoundError(
                f"{reference} has no file on this host: the store is not a folder",
                hint=f"Bring it here: modelreg pull {reference} --into DIR",
            )
        if resolution.path is not None:
            click.echo(str(resolution.path))
    else:
        _explain(resolution, verbose=invocation.verbose)
    if resolution.chosen is not None:
        return 0
    version = f"{reference.model}:{resolution.pointer.version}"
    from modelreg.cli.failures import report_after_result

    return report_after_result(
        NotFoundError(
            f"no engine of {reference} runs on this host",
            hint=f"Build one for it and promote it: modelreg build {version} --target TARGET",
        )
    )


def _document(resolution: Resolution) -> Json:
    pointer = resolution.pointer
    return {
        "model": pointer.model,
        "channel": pointer.channel,
        "version": pointer.version,
        "generation": pointer.generation,
        "release": pointer.release,
        "activated_at": iso(pointer.at),
        "activated_by": pointer.actor,
        "overridden": list(pointer.overridden),
        "path": None if resolution.path is None else str(resolution.path),
        "engines": [
            {
                **found.engine.to_json(),
                "usable": found.usable,
                "chosen": found.engine is resolution.chosen,
                "reason": found.reason,
            }
            for found in resolution.candidates
        ],
    }


def _explain(resolution: Resolution, *, verbose: bool) -> None:
    pointer = resolution.pointer
    print_line(
        f"{pointer.model}@{pointer.channel} is version {pointer.version}, generation {pointer.generation},"
        f" release {short(pointer.release)}, since {when(pointer.at)} UTC"
    )
    for overridden in pointer.overridden:
        print_line(f"  gates overridden: {overridden}")
    if verbose:
        print_line(f"  release {pointer.release}")
        print_line(f"  by {pointer.actor}" + (f": {pointer.message}" if pointer.message else ""))
    for found in resolution.candidates:
        mark = "->" if found.engine is resolution.chosen else "  "
        engine = found.engine
        print_line(f"{mark} {engine.target:<8} {engine.precision!s:<5} {engine.backend}: {found.reason}")
        if verbose:
            print_line(f"   plan {engine.plan.digest}, recipe {engine.recipe_digest}")
    if resolution.path is not None:
        print_line(f"   {resolution.path}")
