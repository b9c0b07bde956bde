"""`modelreg which`: the plan this host would load. Reads the store alone; no database, no heavy import."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from modelreg.cli.context import Invocation, open_store
from modelreg.cli.naming_channels import advise_channel
from modelreg.cli.options import make_command, read_reference
from modelreg.cli.render import echo, print_document, print_line, print_note, print_warning, short, when
from modelreg.registry.clock import iso
from modelreg.registry.errors import NotFoundError, ToolchainError, UsageError
from modelreg.registry.references import ModelReference

if TYPE_CHECKING:
    from collections.abc import Callable

    from modelreg.registry.words import Json
    from modelreg.runtime.host import Host
    from modelreg.runtime.resolver import Resolution
    from modelreg.runtime.suitability import Suitability


@make_command(
    "which",
    help_line="Show the engine that this host would load.",
    examples="""
    modelreg which lenet@production
    modelreg which lenet@production --explain
    modelreg which lenet@production --path-only --python /opt/trt86/bin/python
    """,
)
@click.argument("reference", type=read_reference, metavar="NAME@CHANNEL")
@click.option("-q", "--path-only", is_flag=True, help="Print the path of the plan and nothing else.")
@click.option("--explain", is_flag=True, help="Show every check of every engine, and what they are ranked by.")
@click.option(
    "--python",
    "pythons",
    multiple=True,
    metavar="PATH",
    help="What loads plans here, if not the Python that modelreg runs in; may be repeated.",
)
@click.pass_obj
def command(
    invocation: Invocation,
    *,
    reference: ModelReference,
    path_only: bool,
    explain: bool,
    pythons: tuple[str, ...],
) -> int:
    """Show which engine of the active release this host would load, and why the others not.

    Only the store is read: it works on a server that has no database. What the host has is asked of its driver and of
    Python: of this one, or of those that --python or serve.python in config.toml name. With -v, whole digests, who
    promoted it and why.
    """
    if reference.channel is None:
        raise UsageError(f"{reference} names no channel", hint=advise_channel(invocation, reference.model))
    if path_only and explain:
        raise click.UsageError("--path-only and --explain exclude each other")
    from modelreg.runtime.host import describe_serving_host
    from modelreg.runtime.resolver import resolve

    home = invocation.find_home()
    host = describe_serving_host(pythons or home.serving_pythons)
    if host.driver_problem:
        print_warning(host.driver_problem)
    for problem in (each.problem for each in host.interpreters if each.problem):
        if pythons:
            raise ToolchainError(problem, hint="Name the interpreter that loads plans here with --python.")
        print_warning(problem)  # another one may serve
    resolution = resolve(
        open_store(home),
        reference.model,
        reference.channel,
        host,
        preference=home.settings.preference_for,
    )
    if invocation.as_json:
        print_document(_document(resolution, host))
    elif path_only:
        if resolution.path is None and resolution.chosen is not None:
            raise NotFoundError(
                f"{reference} has no file on this host: the store is not a folder",
                hint=f"Bring it here: modelreg pull {reference} --into DIR",
            )
        if resolution.path is not None:
            echo(str(resolution.path))
    else:
        _print(resolution, verbose=invocation.verbose, show=_print_checks if explain else _print_reason)
    if resolution.chosen is not None:
        return 0
    from modelreg.cli.failures import report_after_result
    from modelreg.cli.which_advice import advise_engine

    return report_after_result(
        NotFoundError(f"no engine of {reference} runs on this host", hint=advise_engine(home, resolution.pointer, host))
    )


def _document(resolution: Resolution, host: Host) -> Json:
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
        "host": host.to_json(),
        "engines": [
            {
                **found.engine.to_json(),
                "usable": found.usable,
                "chosen": found is resolution.best,
                "reason": found.reason,
                "runs_on": found.runs_on or None,
                "python": found.python or None,
                "checks": [
                    {"check": check.name, "outcome": str(check.outcome), "finding": check.finding}
                    for check in found.checks
                ],
            }
            for found in resolution.candidates
        ],
    }


def _print(resolution: Resolution, *, verbose: bool, show: Callable[[Suitability, Resolution], None]) -> None:
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
        show(found, resolution)
        if verbose:
            print_line(f"   plan {found.engine.plan.digest}, recipe {found.engine.recipe_digest}")
    if resolution.path is not None:
        print_line(f"   {resolution.path}")
    elif resolution.chosen is not None:
        name = f"{pointer.model}@{pointer.channel}"
        print_note(f"it has no file on this host; bring it here: modelreg pull {name} --into DIR")


def _print_reason(found: Suitability, resolution: Resolution) -> None:
    """Print an engine on one line: whether it loads, and why."""
    engine = found.engine
    mark = "->" if found is resolution.best else "  "
    where = f", in {found.python}" if found.usable and found.python else ""
    print_line(f"{mark} {engine.target:<8} {engine.precision!s:<5} {engine.backend}: {found.reason}{where}")


def _print_checks(found: Suitability, resolution: Resolution) -> None:
    """Print an engine with its rank and every check."""
    from modelreg.runtime.resolver import why_behind

    _print_reason(found, resolution)
    best = resolution.best
    if best is not None and found is not best and found.usable:
        print_line(f"     rank     behind {best.engine.target} {best.engine.precision}: {why_behind(best, found)}")
    for check in found.checks:
        mark = "" if check.outcome == "ok" else f"{check.outcome}: "
        print_line(f"     {check.name:<8} {mark}{check.finding}")
