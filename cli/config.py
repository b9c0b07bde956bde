"""`modelreg config`: what the settings are, and where each comes from."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from modelreg.cli.context import Invocation
from modelreg.cli.options import CONTEXT, add_global_options, make_command
from modelreg.cli.render import count, print_document, print_line, print_note
from modelreg.cli.tables import Column, print_table
from modelreg.config.keys import ACTOR_VARIABLE, HOME_VARIABLE, variable_of
from modelreg.config.layers import OriginKind, locate_origin, resolve
from modelreg.registry.actor import current_actor
from modelreg.registry.errors import HomeNotFoundError, NotFoundError

if TYPE_CHECKING:
    from modelreg.config.layers import Resolved
    from modelreg.config.settings import Home

Value = str | float | list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One setting as it is shown; `place` and `line` say where it comes from."""

    key: str
    value: Value
    kind: OriginKind
    place: str = ""
    line: int | None = None

    @property
    def origin(self) -> str:
        """Return the origin for people: `FILE:LINE`, a variable, a flag, or `default`."""
        place = f"{self.place}:{self.line}" if self.line else self.place
        return place or str(self.kind)

    @property
    def text(self) -> str:
        """Return the value as it is written in a variable, or after `--set KEY=`."""
        if isinstance(self.value, list):
            return ",".join(self.value)
        return f"{self.value:g}" if isinstance(self.value, float) else str(self.value)


@click.group(
    "config",
    short_help="Show the settings, and where each comes from.",
    epilog="\b\nExamples:\n  modelreg config show\n  modelreg config get store.url\n  modelreg config check",
    context_settings=CONTEXT,
    no_args_is_help=False,
)
def command() -> None:
    """Show the settings, and where each comes from.

    A setting has the value that --set KEY=VALUE gives it; else its environment variable, MODELREG_ and the key in
    capitals; else the registry's config.toml; else its default.
    """


@make_command(
    "show",
    help_line="List every setting with its value and its origin.",
    examples="""
    modelreg config show
    modelreg config show --set limits.lock_timeout_s=5 --json
    """,
)
@click.pass_obj
def show(invocation: Invocation) -> None:
    """List every setting, what it is set to, and where that comes from: the line of a file, a variable, a flag, or the
    default. With -v, the variable of each is named too. Passwords are not shown.

    Outside of a registry, this is what a new one would have.
    """
    rows = _read(invocation)
    if invocation.as_json:
        print_document({"settings": [_document(row) for row in rows]})
        return
    columns = [Column(header="KEY"), Column(header="VALUE", folds=True), Column(header="ORIGIN", folds=True)]
    cells = [[row.key, row.text or "-", row.origin] for row in rows]
    if invocation.verbose:
        columns.append(Column(header="VARIABLE"))
        cells = [[*each, variable_of(row.key)] for each, row in zip(cells, rows, strict=True)]
    print_table(columns, cells, no_color=invocation.no_color)


@make_command(
    "get",
    help_line="Print the value of one setting.",
    examples="""
    modelreg config get store.url
    modelreg config get promote.preference.cpu --json
    """,
)
@click.argument("key")
@click.pass_obj
def get(invocation: Invocation, *, key: str) -> None:
    """Print the value of one setting; of a list, its words with commas between them. Passwords are not shown."""
    rows = {row.key: row for row in _read(invocation)}
    if key not in rows:
        from modelreg.config.keys import find_key
        from modelreg.registry.suggestions import say_close

        if find_key(key) is not None:
            raise NotFoundError(f"{key} is not set", hint=f"Set it in config.toml, or with {variable_of(key)}.")
        raise NotFoundError(
            f"there is no setting {key[:80]!r}", hint=say_close(key, rows) or "Run `modelreg config show`."
        )
    if invocation.as_json:
        print_document(_document(rows[key]))
    else:
        print_line(rows[key].text)


@make_command("check", help_line="Check that settings and policies are understood.", examples="modelreg config check")
@click.pass_obj
def check(invocation: Invocation) -> int:
    """Check that every setting and every policy of the registry is understood, without opening database or store.

    Exits with 2 where one is not, and says which. `modelreg doctor` examines all the rest too.
    """
    from modelreg.config.examination import examine_policies
    from modelreg.registry.errors import ConfigError
    from modelreg.registry.storage.open import locate_storage

    home = invocation.find_home()
    locate_storage(home.store_url)
    problems = examine_policies(home, models=None)
    if problems:
        raise ConfigError(f"{problems[0].subject}: {problems[0].message}", hint=problems[0].hint)
    if invocation.as_json:
        print_document({"home": str(home.path), "understood": len(home.resolved.values)})
    else:
        print_line(f"{home.config_path}: {count(len(home.resolved.values), 'setting')} and all policies are understood")
    return 0


def _read(invocation: Invocation) -> list[Row]:
    try:
        home = invocation.find_home()
    except HomeNotFoundError:
        if invocation.home is not None or os.environ.get(HOME_VARIABLE):
            raise
        print_note("there is no registry here: these are the settings that a new one would have")
        invocation.warn_of_variables()
        return [_actor_row(), *_rows(resolve(None, environment=os.environ, flags=invocation.flags))]
    return [_home_row(invocation, home), _actor_row(), *_rows(home.resolved)]


def _home_row(invocation: Invocation, home: Home) -> Row:
    if invocation.home is not None:
        return Row(key="home", value=str(home.path), kind=OriginKind.FLAG, place="--home")
    if os.environ.get(HOME_VARIABLE):
        return Row(key="home", value=str(home.path), kind=OriginKind.VARIABLE, place=HOME_VARIABLE)
    return Row(key="home", value=str(home.path), kind=OriginKind.DEFAULT, place=f"found from {Path.cwd()}")


def _actor_row() -> Row:
    if os.environ.get(ACTOR_VARIABLE, "").strip():
        return Row(key="actor", value=current_actor(), kind=OriginKind.VARIABLE, place=ACTOR_VARIABLE)
    return Row(key="actor", value=current_actor(), kind=OriginKind.DEFAULT)


def _rows(resolved: Resolved) -> list[Row]:
    from modelreg.registry.database_url import mask_secrets

    made = []
    for key, value in sorted(resolved.values.items()):
        place, line = locate_origin(resolved.origins[key], key)
        plain: Value = [str(each) for each in value] if isinstance(value, tuple) else value
        shown = mask_secrets(plain) if isinstance(plain, str) else plain
        made.append(Row(key=key, value=shown, kind=resolved.origins[key].kind, place=place, line=line))
    return made


def _document(row: Row) -> dict[str, object]:
    origin: dict[str, object] = {"kind": str(row.kind), "place": row.place, "line": row.line}
    return {"key": row.key, "value": row.value, "origin": origin, "variable": variable_of(row.key)}


add_global_options(command)
command.add_command(show)
command.add_command(get)
command.add_command(check)
