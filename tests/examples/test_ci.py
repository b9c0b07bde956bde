"""What is ready to copy for a nightly: read as its programs read it, with commands and options that exist."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from modelreg.cli.main import cli
from modelreg_testing.checkout import ROOT

GITHUB = ROOT / "examples" / "ci" / "github-actions.yml"
GITLAB = ROOT / "examples" / "ci" / "gitlab-ci.yml"
UNITS = ROOT / "examples" / "systemd"


def read_yaml(path: Path) -> dict[Any, Any]:
    body = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(body, dict)
    return body


def github_steps() -> list[dict[str, Any]]:
    (job,) = read_yaml(GITHUB)["jobs"].values()
    steps = job["steps"]
    assert isinstance(steps, list)
    return steps


def gitlab_scripts() -> list[str]:
    (job,) = read_yaml(GITLAB).values()
    return [line for part in ("before_script", "script", "after_script") for line in job[part]]


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNITS / name, encoding="utf-8")
    return parser


def commands() -> Iterator[str]:
    for step in github_steps():
        yield from step.get("run", "").splitlines()
    yield from gitlab_scripts()
    yield unit("modelreg-nightly.service")["Service"]["ExecStart"]


def test_every_command_of_modelreg_is_understood() -> None:
    found = [line for line in commands() if re.match(r"(\S*/)?modelreg ", line.strip())]
    assert len(found) == 3
    for line in found:
        _, name, *words = shlex.split(line)
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        command.make_context(name, words, resilient_parsing=False)  # a UsageError otherwise


def test_the_scripts_are_shell() -> None:
    for script in [step["run"] for step in github_steps() if "run" in step] + ["\n".join(gitlab_scripts())]:
        subprocess.run(["bash", "-n"], input=re.sub(r"\$\{\{.*?\}\}", "x", script), text=True, check=True)


def test_reports_are_kept_when_the_night_found_something() -> None:
    nightly, *others = github_steps()
    assert "modelreg nightly" in nightly["run"]
    assert [step["if"] for step in others] == ["${{ !cancelled() }}", "${{ !cancelled() }}", "${{ failure() }}"]
    (job,) = read_yaml(GITLAB).values()
    assert job["artifacts"]["when"] == "always"
    assert job["artifacts"]["reports"]["junit"] == "nightly/nightly.xml"


@pytest.mark.parametrize("is_new", [True, False], ids=["of this run", "of an earlier run"])
def test_the_reports_of_this_run_alone_are_taken(tmp_path: Path, is_new: bool) -> None:
    night = tmp_path / "home" / "nights" / "20261130T020000Z"
    night.mkdir(parents=True)
    (night.parent / "latest").symlink_to(night.name)
    for name in ("nightly.json", "nightly.md", "nightly.xml"):
        (night / name).write_text("of a night")
    started = tmp_path / "started"
    started.touch()
    stamp = (night / "nightly.json").stat().st_mtime + (-60 if is_new else 60)
    os.utime(started, (stamp, stamp))
    environment = {"PATH": os.environ["PATH"], "MODELREG_HOME": str(tmp_path / "home")}
    environment["GITHUB_STEP_SUMMARY"] = str(tmp_path / "summary")
    take = next(step["run"] for step in github_steps() if step["name"] == "Take the reports")
    subprocess.run(["bash", "-e", "-c", take], cwd=tmp_path, env=environment, check=True)
    assert ((tmp_path / "summary").read_text() == "of a night") == is_new
    assert (tmp_path / "nightly" / "nightly.xml").exists() == is_new
    shutil.rmtree(tmp_path / "nightly")
    (job,) = read_yaml(GITLAB).values()
    subprocess.run(["bash", "-e", "-c", "\n".join(job["after_script"])], cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "nightly" / "nightly.xml").exists() == is_new


def test_the_units_belong_together_and_give_the_nightly_time_to_end_by_itself() -> None:
    service, timer = unit("modelreg-nightly.service")["Service"], unit("modelreg-nightly.timer")
    assert service["Type"] == "oneshot"
    timeout = int(shlex.split(service["ExecStart"])[3])
    assert timeout < int(service["TimeoutStartSec"].removesuffix("h")) * 3600
    assert timer["Install"]["WantedBy"] == "timers.target"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here to check units with")
def test_systemd_understands_the_units(tmp_path: Path) -> None:
    for name in ("modelreg-nightly.service", "modelreg-nightly.timer"):
        text = (UNITS / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace("/opt/modelreg/bin/modelreg", "/bin/true"), encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", *map(str, sorted(tmp_path.iterdir()))],
        capture_output=True,
        text=True,
        check=False,
    )
    complaints = [line for line in done.stderr.splitlines() if "modelreg-nightly" in line]
    assert complaints == [], done.stderr
