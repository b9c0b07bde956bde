"""The `modelreg` command: finds the command, runs it, and turns every error into one line and an exit code.

Nothing heavy is imported here, and no command's module before that command runs: `--help` needs none of them.
"""

from __future__ import annotations

import gc
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from modelreg.cli.context import Invocation
from modelreg.cli.options import CONTEXT, add_global_options
from modelreg.cli.version import __version__
from modelreg.registry.errors import ModelregError

if TYPE_CHECKING:
    from typing import NoReturn

SECTIONS: dict[str, dict[str, str]] = {
    "Release": {
        "init": "Create a registry.",
        "register": "Register an ONNX model as a new version.",
        "build": "Build engines of a version.",
        "register-engine": "Take in a plan that was built elsewhere.",
        "validate": "Compare engines with the reference, gate by gate.",
        "bench": "Time engines, alone or in turns with others.",
        "repair": "Find the nodes to keep in a high precision.",
        "promote": "Make a version's engines active on a channel.",
        "rollback": "Bring back the release that was active before.",
        "pull": "Bring what a channel serves to this host.",
        "serve": "Answer inference requests over HTTP.",
        "export": "Write a Triton model, an ONNX or a bundle.",
        "import": "Take in a bundle of another registry.",
    },
    "Look": {
        "list": "List the models, or the versions of one.",
        "show": "Show a version, or what a model's channels serve.",
        "history": "Show who made what active, when and why.",
        "diff": "Compare two versions or two releases.",
        "report": "Write reports from stored verdicts.",
        "which": "Show the engine that this host would load.",
        "leases": "List the serving hosts' leases, or drop one.",
        "top": "Watch what serves: load, latencies, GPUs, health.",
    },
    "Maintain": {
        "verify": "Re-hash what the registry holds.",
        "doctor": "Check that database, store and pointers agree.",
        "nightly": "Validate what is active again, and look for drift.",
        "gc": "Remove what no release, lease or pin needs.",
        "pin": "Keep a version's engines from gc.",
        "unpin": "Lift the pin of a version.",
        "toolchain": "Add, list or remove what engines are built with.",
        "policy": "Show, compare, check or accept policies.",
        "layers": "Show which module of the reference is which tensor.",
        "store": "Check what a store's server can be trusted with.",
        "config": "Show the settings, and where each comes from.",
        "db": "Back up, restore, upgrade or copy the database.",
    },
}
"""Every command and its one line of help; each lives in the module of its name, with underscores for dashes."""

_INSIDE = {"backup": ["db backup"], "restore": ["db restore"], "upgrade": ["db upgrade"]}
"""What is looked for at the top and lives in a group."""

_NAME_WIDTH = max(len(name) for commands in SECTIONS.values() for name in commands)

_GC_THRESHOLD = 100_000

EXIT_CODES = """\b
Exit codes: 0 done, 1 failed, 2 usage, 3 gate failed, 4 conflict,
            5 outcome unknown, 6 integrity, 129 and 130 interrupted"""


class CommandGroup(click.Group):
    """A group that imports a command's module when the command is called, not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return every command's name, in the order of the help page."""
        del ctx
        return [name for commands in SECTIONS.values() for name in commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command."""
        if cmd_name not in self.list_commands(ctx):
            return None
        command = importlib.import_module(f"modelreg.cli.{cmd_name.replace('-', '_')}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or name the one that was probably meant."""
        name = args[0]
        if not name.startswith("-") and name not in self.list_commands(ctx):
            import difflib

            close = _INSIDE.get(name) or difflib.get_close_matches(name, self.list_commands(ctx), n=1)
            ctx.fail(f"no such command {name!r}" + (f", did you mean {close[0]!r}?" if close else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands from `SECTIONS`, importing none of them."""
        del ctx
        for section, commands in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name.ljust(_NAME_WIDTH), line) for name, line in commands.items()])


def _print_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"modelreg {__version__}")
        ctx.exit()


@click.group(
    cls=CommandGroup,
    invoke_without_command=True,
    context_settings=CONTEXT,
    epilog=EXIT_CODES,
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Print the version."
)
@click.pass_context
def cli(ctx: click.Context) -> int | None:
    """Release models as TensorRT and ONNX Runtime engines: build, validate, promote, roll back."""
    if ctx.invoked_subcommand is not None:
        return None
    click.echo(ctx.get_help(), err=True)
    return 2


add_global_options(cli)


def main() -> NoReturn:
    """Run the command line of this process and exit.

    Half of a short command would be the garbage collector's, walking what imports have made again and again and a
    last time at exit: it is told to wait, and to leave the rest to the end of the process.
    """
    gc.set_threshold(_GC_THRESHOLD)
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # the reader had enough; let the interpreter's own flush at exit succeed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    gc.freeze()
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; results go to stdout, everything else to stderr."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    invocation = Invocation()
    try:
        outcome: Any = cli.main(list(arguments), prog_name="modelreg", standalone_mode=False, obj=invocation)
    except ModelregError as error:
        from modelreg.cli.failures import report, tell

        return report(tell(error), error, as_json=invocation.as_json, verbose=invocation.verbose)
    except (Exception, KeyboardInterrupt) as error:
        from modelreg.cli.failures import report, tell_foreign

        as_json = invocation.as_json or _asks_for_json(arguments)
        return report(tell_foreign(error), error, as_json=as_json, verbose=invocation.verbose)
    return outcome if isinstance(outcome, int) else 0


def _asks_for_json(arguments: Sequence[str]) -> bool:
    """Return whether `--json` is on a command line that could not be parsed to its end."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in options
