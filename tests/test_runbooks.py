"""The commands of every runbook are run in a real registry that has the trouble, and print what the page says."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from modelreg.registry.storage.local import LocalStorage
from modelreg_testing.checkout import ROOT
from modelreg_testing.cli import run_cli
from modelreg_testing.nights import copy_of_lenet_after_a_night, plant_nights
from modelreg_testing.released_lenet import LENET, copy_of_released_lenet
from modelreg_testing.storage_faults import counting_ops, in_child, killing_ops
from modelreg_testing.toolchains import needs_rtx

RUNBOOKS = ROOT / "docs" / "runbooks"
PAGES = sorted(path.stem for path in RUNBOOKS.glob("*.md") if path.stem != "README")
SECTIONS = ["Symptom", "Check", "Command", "Verify", "Undo"]
WITH_A_NIGHT = "nightly-drift"
STRICT = '[[rules]]\nmetric = "sqnr_db"\nlimit = 90\n'

pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command of a page, the exit code that it is meant to have, and what it is said to print."""

    section: str
    command: str
    exit_code: int
    prints: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A registry in trouble; `paths` stands in for paths of the page, `before` happens before a section."""

    home: Path
    paths: dict[str, str] = field(default_factory=dict)
    before: dict[str, Callable[[], object]] = field(default_factory=dict)


def read_steps(page: str) -> list[Step]:
    steps: list[Step] = []
    section, is_code = "", False
    for line in (RUNBOOKS / f"{page}.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif line.startswith("```"):
            is_code = line == "```console"
        elif is_code and line.startswith("$ "):
            command, _, comment = line[2:].partition("     #")
            code = re.search(r"exit (\d+)", comment)
            steps.append(Step(section=section, command=command, exit_code=int(code[1]) if code else 0))
        elif is_code:
            steps[-1].prints.append(line)
    return steps


def run_step(command: str, scene: Scene) -> tuple[int, str]:
    for shown, real in scene.paths.items():
        command = command.replace(shown, real)
    words = shlex.split(command)
    if words[0] == "modelreg":
        done = run_cli(*words[1:], home=scene.home)
        return done.code, done.out + done.err
    shell = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    return shell.returncode, shell.stdout + shell.stderr


# -- scenes ----------------------------------------------------------------------------------------------------
@pytest.fixture
def home(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """Two versions, FP32 and INT8, as .modelreg in the present folder, with the calibration set beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MODELREG_ACTOR", "ada@lab")
    monkeypatch.delenv("MODELREG_HOME", raising=False)
    shutil.copy(LENET / "calibration.npz", tmp_path)
    if request.node.callspec.params["page"] == WITH_A_NIGHT:
        return copy_of_lenet_after_a_night(tmp_path_factory, tmp_path / ".modelreg")
    return copy_of_released_lenet(tmp_path_factory, tmp_path / ".modelreg")


def with_stricter_policy(home: Path) -> None:
    policy = home / "policies" / "lenet" / "int8.toml"
    policy.parent.mkdir(parents=True)
    policy.write_text(STRICT)


def with_leftovers(home: Path) -> None:
    """Kill a command that has written a blob and not yet named it."""
    place = home / "store"
    ops, steps = counting_ops()
    LocalStorage(place, ops=ops).put_bytes(b"a log")
    at = steps.index("replace") + 1
    killed = in_child(lambda: LocalStorage(place, ops=killing_ops(at)).put_bytes(b"half of a plan"))
    assert killed == -signal.SIGKILL


def with_a_corrupt_plan(home: Path) -> None:
    engines = run_cli("show", "lenet:2", "--json", home=home).document["engines"]
    digest = next(engine["plan"] for engine in engines if engine["precision"] == "fp32")
    (blob,) = (path for path in (home / "store" / "blobs").rglob(digest))
    blob.chmod(0o644)
    content = bytearray(blob.read_bytes())
    content[len(content) // 2] ^= 1
    blob.write_bytes(content)


def with_rtx(home: Path) -> None:
    assert run_cli("toolchain", "add", "rtx", "--python", sys.executable, home=home).code == 0


def with_a_release_for_another_gpu(home: Path) -> None:
    with_rtx(home)
    words = ("build", "lenet:2", "--target", "sm_89", "--precision", "fp16")
    assert run_cli(*words, home=home).code == 0
    promote = (
        "promote",
        "lenet:2",
        "--to",
        "production",
        "--target",
        "sm_89",
        "--override-gates",
        "-m",
        "no sm_89 here",
    )
    assert run_cli(*promote, home=home).code == 0


def with_a_lost_database(home: Path) -> None:
    """Lose it after a rollback that the last backup does not know."""
    backups = home.parent / "backups"
    backups.mkdir()
    for words in (
        ("db", "backup", backups / "registry.db"),
        ("rollback", "lenet@production", "--message", "after the backup"),
    ):
        assert run_cli(*words, home=home).code == 0
    (home / "registry.db").unlink()


def with_nights_of_a_better_engine(home: Path) -> None:
    """Let it have been right in all samples in nine nights before a real one."""
    plant_nights(home / "nights", {"accuracy": [1.0] * 9})


TROUBLES: dict[str, Callable[[Path], object]] = {
    "failed-gate": with_stricter_policy,
    "disk-full": with_leftovers,
    "corrupt-blob": with_a_corrupt_plan,
    "adding-a-gpu": with_rtx,
    "new-gpu": with_a_release_for_another_gpu,
    "database-restore": with_a_lost_database,
    WITH_A_NIGHT: with_nights_of_a_better_engine,
}
NEEDS_RTX = ("adding-a-gpu", "new-gpu", "tensorrt-upgrade")
NEEDS_S3 = "s3-away"


def play(page: str, scene: Scene) -> None:
    reached = ""
    for step in read_steps(page):
        if step.section != reached:
            reached = step.section
            if reached in scene.before:
                scene.before[reached]()
        code, printed = run_step(step.command, scene)
        assert code == step.exit_code, f"{page}: {step.command}\n{printed}"
        for words in step.prints:
            assert words in printed, f"{page}: {step.command}: {words!r} is not in\n{printed}"


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=needs_rtx) if page in NEEDS_RTX else page for page in PAGES if page != NEEDS_S3],
)
def test_the_commands_of_a_runbook_do_what_it_says(page: str, home: Path) -> None:
    if page in TROUBLES:
        TROUBLES[page](home)
    play(page, Scene(home=home, paths={"/opt/trt-next": sys.executable, "/backups": str(home.parent / "backups")}))


@pytest.fixture
def in_s3(s3_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """The same in S3, version 2 in FP32 alone, pulled to `served`; away until the section Command."""
    from modelreg_testing.s3_server import BUCKET

    monkeypatch.chdir(tmp_path)
    home, prefix = tmp_path / ".modelreg", s3_server.location().prefix
    init = ("init", "--store", f"s3://{BUCKET}/{prefix}", "--endpoint-url", s3_server.endpoint_url)
    assert run_cli(*init, home=home).code == 0
    for words in (
        ("register", "lenet", LENET / "lenet-v1.onnx", "--golden", LENET / "golden-v1.npz"),
        ("register", "lenet", LENET / "lenet-v2.onnx", "--golden", LENET / "golden-v2.npz"),
        ("build", "lenet:2"),
        ("validate", "lenet:2"),
        ("promote", "lenet:2", "--to", "production"),
        ("pull", "lenet@production", "--into", "served"),
    ):
        done = run_cli(*words, home=home)
        assert done.code == 0, done.err
    config = home / "config.toml"
    there = config.read_text()
    config.write_text(there.replace(s3_server.endpoint_url, "http://127.0.0.1:9"))
    return Scene(home=home, before={"Command": lambda: config.write_text(there)})


def test_the_commands_of_the_runbook_for_s3_do_what_it_says(in_s3: Scene) -> None:
    play(NEEDS_S3, in_s3)


# -- pages -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("page", PAGES)
def test_a_runbook_has_every_section_in_order_and_commands_in_each_but_the_symptom(page: str) -> None:
    text = (RUNBOOKS / f"{page}.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    assert {step.section for step in read_steps(page)} == set(SECTIONS[1:])
    assert len(text.splitlines()) <= 80


@pytest.mark.parametrize("page", PAGES)
def test_every_runbook_is_in_the_list_with_its_title(page: str) -> None:
    title = (RUNBOOKS / f"{page}.md").read_text(encoding="utf-8").splitlines()[0][2:]
    assert f"[{title}]({page}.md)" in (RUNBOOKS / "README.md").read_text(encoding="utf-8")
