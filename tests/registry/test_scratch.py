from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from modelreg.registry.scratch import scratch_folder, sweep_scratch

HOLD = """
import sys
from modelreg.registry.scratch import scratch_folder, sweep_scratch
with scratch_folder("work") as folder:
    (folder / "inner").mkdir()
    (folder / "inner" / "file").write_bytes(b"x")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def hold() -> tuple[subprocess.Popen[str], Path]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    )
    assert child.stdout is not None
    return child, Path(child.stdout.readline().strip())


def end(child: subprocess.Popen[str], *, by: signal.Signals) -> None:
    child.send_signal(by)
    child.wait(30)
    for pipe in (child.stdin, child.stdout):
        assert pipe is not None
        pipe.close()


def test_the_folder_is_gone_in_the_end_whatever_happens(place: Path) -> None:
    with suppress(KeyError), scratch_folder("work") as folder:
        assert folder.parent == place
        (folder / "file").write_bytes(b"x")
        raise KeyError
    assert list(place.iterdir()) == []


def test_the_folder_of_a_killed_owner_is_swept_and_that_of_a_living_one_is_not(place: Path) -> None:
    (dead, dead_folder), (living, living_folder) = hold(), hold()
    try:
        end(dead, by=signal.SIGKILL)
        assert dead_folder.parent == place
        assert dead_folder.exists()
        with scratch_folder("work"):
            assert not dead_folder.exists()
            assert (living_folder / "inner" / "file").exists()
    finally:
        end(living, by=signal.SIGKILL)


def test_other_purposes_other_hosts_files_and_links_are_left_alone(place: Path, tmp_path: Path) -> None:
    with scratch_folder("work") as folder:
        prefix = folder.name.partition(".")[0]
    others = [place / "modelreg-other-host.abc", place / "modelreg-work-elsewhere.abc"]
    for each in others:
        each.mkdir()
    target = tmp_path / "target"
    target.mkdir()
    link, file = place / f"{prefix}.link", place / f"{prefix}.file"
    link.symlink_to(target)
    file.write_bytes(b"")
    with scratch_folder("work"):
        pass
    assert sorted(place.iterdir()) == sorted([*others, link, file])
    assert target.exists()


def test_a_folder_swept_before_it_was_locked_is_made_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = tempfile.mkdtemp
    made: list[str] = []

    def make_and_lose_the_first(*, prefix: str) -> str:
        made.append(make(prefix=prefix))
        if len(made) == 1:
            Path(made[0]).rmdir()
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", make_and_lose_the_first)
    with scratch_folder("work") as folder:
        assert [str(folder)] == made[1:]


def test_without_locks_the_folder_is_made_and_nothing_is_swept(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with scratch_folder("work") as first, scratch_folder("work") as second:
        assert first.exists()
        assert second.exists()


def test_what_the_dead_left_is_swept_whatever_it_was_for_and_the_living_and_other_hosts_are_not(place: Path) -> None:
    child, left = hold()
    end(child, by=signal.SIGKILL)
    elsewhere = place / "modelreg-work-another-host.x"
    elsewhere.mkdir()
    with scratch_folder("other") as living:
        assert sweep_scratch() == 1
        assert not left.exists()
        assert living.exists()
    assert elsewhere.exists()
    assert sweep_scratch() == 0
