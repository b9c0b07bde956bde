from __future__ import annotations

import importlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import click
import pytest

import modelreg.cli
from modelreg.cli.main import SECTIONS, cli, run
from modelreg.cli.version import __version__
from modelreg_testing.cli import Shop, run_cli

COMMANDS = {name: line for commands in SECTIONS.values() for name, line in commands.items()}
MUTATING = (
    "init",
    "register",
    "build",
    "register-engine",
    "validate",
    "bench",
    "repair",
    "layers",
    "promote",
    "pull",
    "export triton",
    "export onnx",
    "export bundle",
    "import",
    "rollback",
    "doctor",
    "nightly",
    "leases drop",
    "gc",
    "pin",
    "unpin",
    "db copy",
    "db backup",
    "db restore",
    "db upgrade",
    "toolchain add",
    "policy accept",
    "toolchain remove",
)


def walk() -> Iterator[tuple[str, click.Command]]:
    """Yield every command and subcommand with what a user types."""
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            for child, subcommand in command.commands.items():
                yield f"{name} {child}", subcommand


ALL = dict(walk())


def test_the_help_page_lists_every_command_without_importing_one() -> None:
    script = (
        "import sys; from modelreg.cli.main import run; run(['--help']); print(sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    for name, line in COMMANDS.items():
        assert f"  {name} " in done.stdout
        assert line in done.stdout
        assert f"'modelreg.cli.{name.replace('-', '_')}'" not in done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_of_commands_says_what_each_command_says_of_itself(name: str) -> None:
    assert ALL[name].get_short_help_str(limit=200) == COMMANDS[name]
    assert ALL[name].name == name


def test_no_module_of_a_command_is_missing_in_the_table() -> None:
    folder = Path(str(modelreg.cli.__file__)).parent
    modules = [path.stem for path in folder.glob("*.py") if path.stem not in ("__init__", "__main__", "main")]
    with_command = {name for name in modules if hasattr(importlib.import_module(f"modelreg.cli.{name}"), "command")}
    assert with_command == {name.replace("-", "_") for name in COMMANDS}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_every_command_has_help_with_an_example_of_itself(name: str, option: str) -> None:
    result = run_cli(*name.split(), option)
    assert result.code == 0
    assert result.err == ""
    examples = result.out.split("Examples:\n")[1].splitlines()
    assert examples
    assert all(line.startswith("    modelreg ") for line in examples)
    assert any(f" {name}" in line for line in examples)
    for shared in ("--home", "--json", "--verbose", "--no-color"):
        assert shared in result.out


@pytest.mark.parametrize("name", ALL)
def test_every_help_page_fits_into_80_columns(name: str) -> None:
    lines = run_cli(*name.split(), "--help").out.splitlines()
    assert max(len(line) for line in lines if not line.startswith("    modelreg ")) <= 80


@pytest.mark.parametrize("name", ALL)
def test_a_command_has_dry_run_exactly_if_it_changes_something(name: str) -> None:
    assert any("--dry-run" in parameter.opts for parameter in ALL[name].params) == (name in MUTATING)


@pytest.mark.parametrize("name", ALL)
def test_every_option_has_help_and_kebab_case(name: str) -> None:
    for parameter in ALL[name].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.opts
            assert not any("_" in option for option in parameter.opts)


def test_underscores_are_accepted_in_options() -> None:
    result = run_cli("promote", "lenet:1", "--to", "production", "--override_gates")
    assert "--override-gates needs --message" in result.err


def test_the_version_is_printed() -> None:
    assert run_cli("--version").out == f"modelreg {__version__}\n"


def test_without_a_command_help_goes_to_stderr_with_exit_2() -> None:
    result = run_cli()
    assert result.code == 2
    assert result.out == ""
    assert "Usage: modelreg" in result.err


def test_global_options_count_before_and_after_the_command(shop: Shop) -> None:
    before = run_cli("--json", "--home", shop.path, "list")
    after = run_cli("list", "--home", shop.path, "--json")
    assert before.code == after.code == 0
    assert before.document == after.document == {"schema": 1, "models": []}


def test_the_home_is_found_upward_and_by_the_environment(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_cli("list").code == 1
    monkeypatch.setenv("MODELREG_HOME", str(shop.path))
    assert run_cli("list").code == 0
    monkeypatch.delenv("MODELREG_HOME")
    shop.path.rename(tmp_path / ".modelreg")
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    assert run_cli("list").code == 0


def test_python_dash_m_runs_the_command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "modelreg.cli", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"modelreg {__version__}\n"


@pytest.mark.slow
def test_a_reader_that_has_enough_is_no_error(shop: Shop) -> None:
    for word in range(40):
        shop.add_version(word=word, verdict=None)
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "modelreg.cli", "--home", str(shop.path), "list", "lenet"],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    assert done.stderr == ""


def test_a_stream_of_a_narrow_encoding_is_no_error(shop: Shop) -> None:
    shop.add_version(model="lenet")
    assert shop.cli("promote", "lenet:1", "--to", "qa", "-m", "bigger \u2192 better").code == 0
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    with redirect_stdout(narrow):
        assert run(["--home", str(shop.path), "history", "lenet"]) == 0
    narrow.seek(0)
    assert "bigger \\u2192 better" in narrow.read()
