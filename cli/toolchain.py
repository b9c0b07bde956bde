"""`modelreg toolchain`: the interpreters that engines are built with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from modelreg.cli.context import Invocation
from modelreg.cli.options import CONTEXT, add_global_options, dry_run_option, make_command
from modelreg.cli.render import print_document, print_line
from modelreg.cli.tables import Column, print_table
from modelreg.registry.references import check_name

if TYPE_CHECKING:
    from modelreg.registry.toolchains.probing import Probe, ToolchainStanding
    from modelreg.registry.words import Backend, Json


def _read_name(value: str) -> str:
    return check_name(value, what="toolchain")


def _read_backend(value: str) -> Backend:
    from modelreg.registry.words import Backend

    try:
        return Backend(value.strip().lower())
    except ValueError:
        raise click.BadParameter(f"{value!r} is not one of {', '.join(Backend)}") from None


@click.group(
    "toolchain",
    short_help="Add, list or remove what engines are built with.",
    epilog="\b\nExamples:\n  modelreg toolchain add rtx17 --python /opt/rtx17/bin/python\n  modelreg toolchain list",
    context_settings=CONTEXT,
    no_args_is_help=False,
)
def command() -> None:
    """Add, list or remove toolchains: Python interpreters that have TensorRT, TensorRT-RTX or ONNX Runtime.

    Several versions live side by side, each in an environment of its own.
    """


@make_command(
    "add",
    help_line="Register an interpreter that has a backend.",
    examples="""
    modelreg toolchain add rtx17 --python /opt/rtx17/bin/python
    modelreg toolchain add rtx16 --python ~/venvs/rtx16
    """,
)
@click.argument("name", type=_read_name)
@click.option("--python", required=True, metavar="PATH", help="The interpreter, or its virtual environment.")
@click.option("--backend", type=_read_backend, metavar="B", help="Which one is meant, where it has several.")
@dry_run_option
@click.pass_obj
def add(invocation: Invocation, *, name: str, python: str, backend: Backend | None, dry_run: bool) -> None:
    """Look what the interpreter has, in a process of its own, and keep that under NAME.

    Adding a NAME again after an upgrade makes it mean what is there now.
    """
    from modelreg.registry.toolchains.catalogue import register_toolchain
    from modelreg.registry.toolchains.probing import locate_python, probe_python

    registry = invocation.open_registry()
    path = locate_python(python)
    if not dry_run:
        registry.require_writable_database()
    with invocation.reporter().step(f"probing {path}"):
        probe = probe_python(path, backend=backend)
    is_new = True
    if not dry_run:
        with registry.database.write() as connection:
            _, is_new = register_toolchain(connection, name=name, probe=probe, actor=registry.actor)
    if invocation.as_json:
        body = {**_document(name, probe), "lacks": list(probe.lacks)}
        print_document({"toolchain": body, "changed": is_new, "dry_run": dry_run})
        return
    did = "would be added" if dry_run else ("added" if is_new else "is registered already")
    print_line(f"toolchain {name} {did}: {probe.backend} {probe.version}")
    print_line(f"  {_say_details(probe.details)}")
    if probe.lacks:
        print_line(f"  {probe.say_lack()}")


@make_command("list", help_line="List the toolchains and their state.", examples="modelreg toolchain list")
@click.pass_obj
def list_(invocation: Invocation) -> None:
    """List the toolchains, each looked at again: usable, missing, changed (since it was added) or unusable."""
    from modelreg.registry.toolchains.catalogue import list_toolchains
    from modelreg.registry.toolchains.probing import look_again

    with invocation.open_registry().database.read() as connection:
        known = list_toolchains(connection)
    standings = [_embedded()]
    with invocation.reporter().step("probing toolchains") as tell:
        for index, toolchain in enumerate(known):
            tell(index / len(known), toolchain.name)
            standings.append(look_again(toolchain))
    if invocation.as_json:
        print_document({"toolchains": [_standing_document(standing) for standing in standings]})
    else:
        _print(standings, no_color=invocation.no_color)


@make_command("remove", help_line="Take a toolchain out of use.", examples="modelreg toolchain remove rtx16")
@click.argument("name", type=_read_name)
@dry_run_option
@click.pass_obj
def remove(invocation: Invocation, *, name: str, dry_run: bool) -> None:
    """Take a toolchain out of use; adding it again brings it back. What was built with it keeps saying so."""
    from modelreg.registry.toolchains.catalogue import get_toolchain, retire_toolchain

    registry = invocation.open_registry()
    if dry_run:
        with registry.database.read() as connection:
            record = get_toolchain(connection, name)
    else:
        with registry.database.write() as connection:
            record = retire_toolchain(connection, name=name, actor=registry.actor)
    if invocation.as_json:
        body = {"name": name, "backend": str(record.backend), "version": record.version, "dry_run": dry_run}
        print_document({"removed": body})
        return
    did = "would be taken" if dry_run else "is taken"
    print_line(f"toolchain {name} ({record.backend} {record.version}) {did} out of use")


def _embedded() -> ToolchainStanding:
    """Return the ONNX Runtime that modelreg runs with: it is there, or modelreg would not be."""
    from modelreg.builders.backends import embedded_toolchain
    from modelreg.registry.records import ToolchainRecord
    from modelreg.registry.toolchains.probing import ToolchainStanding, ToolchainState

    spec = embedded_toolchain()
    record = ToolchainRecord(
        id=0, name=spec.name, backend=spec.backend, version=spec.version, python=spec.python, details=spec.details
    )
    return ToolchainStanding(toolchain=record, state=ToolchainState.USABLE)


def _document(name: str, probe: Probe) -> Json:
    return {
        "name": name,
        "backend": str(probe.backend),
        "version": probe.version,
        "python": probe.python,
        "details": probe.details,
    }


def _standing_document(standing: ToolchainStanding) -> Json:
    toolchain = standing.toolchain
    return {
        "name": toolchain.name,
        "backend": str(toolchain.backend),
        "version": toolchain.version,
        "python": toolchain.python,
        "details": toolchain.details,
        "state": str(standing.state),
        "reason": standing.reason,
    }


def _print(standings: list[ToolchainStanding], *, no_color: bool) -> None:
    columns = (
        Column(header="NAME"),
        Column(header="BACKEND"),
        Column(header="VERSION"),
        Column(header="BUILDS FOR", folds=True),
        Column(header="STATE"),
    )
    rows = [
        (
            standing.toolchain.name,
            str(standing.toolchain.backend),
            standing.toolchain.version,
            _say_targets(standing),
            str(standing.state),
        )
        for standing in standings
    ]
    print_table(columns, rows, no_color=no_color)
    for standing in standings:
        if standing.reason:
            print_line(f"{standing.toolchain.name}: {standing.reason}")


def _say_targets(standing: ToolchainStanding) -> str:
    targets = standing.toolchain.details.get("targets")
    return ", ".join(targets) if targets else ("cpu" if standing.toolchain.backend == "onnxruntime" else "-")


def _say_details(details: Json) -> str:
    parts = [f"Python {details.get('python_version', 'of an unknown version')}"]
    if details.get("cuda"):
        parts.append(f"CUDA {details['cuda']}")
    if details.get("targets"):
        parts.append(f"builds for {', '.join(details['targets'])}")
    return ", ".join(parts)


add_global_options(command)
for each in (add, list_, remove):
    command.add_command(each)
