"""The README's session is run, its help block is compared, and every command is in its table."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from modelreg.cli.failures import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE
from modelreg.cli.main import EXIT_CODES, SECTIONS
from modelreg.cli.progress import HangUp
from modelreg.registry.errors import ModelregError
from modelreg_testing.cli import run_cli

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block_after(marker: str) -> str:
    """Return the fenced block that follows the comment `<!-- marker: …`."""
    found = re.search(rf"<!-- {marker}:.*?-->\n```\w+\n(.*?)```", README, re.DOTALL)
    assert found is not None, f"the README has no block {marker!r}"
    return found.group(1)


def read_session() -> list[tuple[str, list[str]]]:
    """Return each command of the session with the lines it is said to print."""
    session: list[tuple[str, list[str]]] = []
    for line in block_after("session").splitlines():
        if line.startswith("$ "):
            session.append((line[2:], []))
        else:
            session[-1][1].append(line)
    return session


def normalise(line: str) -> str:
    """Blank what differs from run to run and host to host: digests, numbers, paths, names, and the padding around."""
    line = re.sub(r"\S*/\.modelreg", "HOME", line)
    line = re.sub(r"\b[0-9a-f]{12,64}\b", "DIGEST", line)
    line = re.sub(r"\d+(\.\d+)*(e-\d+)?", "#", line)
    line = re.sub(r"\S+@host\b|tester@readme", "WHO", line)
    return " ".join(line.split())


@pytest.mark.slow
@pytest.mark.installed
def test_the_session_does_what_the_readme_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("MODELREG_ACTOR", "tester@readme")
    monkeypatch.setenv("COLUMNS", "200")
    session = read_session()
    assert len(session) >= 7
    for command, shown in session:
        words = shlex.split(command)
        assert words[0] == "modelreg"
        result = run_cli(*words[1:], home=tmp_path / ".modelreg")
        assert result.code == 0, f"{command}: {result.err}"
        printed = [normalise(line) for line in result.out.rstrip("\n").splitlines()]
        assert printed == [normalise(line) for line in shown], command


def test_the_help_block_is_what_the_program_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = run_cli("--help")
    assert result.out.strip() == block_after("help").strip()


@pytest.mark.parametrize("command", [name for section in SECTIONS.values() for name in section])
def test_every_command_is_in_the_table(command: str) -> None:
    assert re.search(rf"^\| `modelreg {command}\b", README, re.MULTILINE)


def every_error(kind: type[ModelregError] = ModelregError) -> Iterator[type[ModelregError]]:
    """Yield the class and all below it, of the modules that are imported."""
    yield kind
    for each in kind.__subclasses__():
        yield from every_error(each)


def test_every_exit_code_is_in_the_table_and_no_other() -> None:
    section = README.split("### Exit codes")[1].split("###")[0]
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)}
    ours = {each.exit_code for each in every_error()}
    assert listed == {0, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED, HangUp.exit_code} | ours
    assert set(map(int, re.findall(r"\b(\d+)\b", EXIT_CODES))) == listed


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("http") or (ROOT / target).exists(), target
