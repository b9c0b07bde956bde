from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from modelreg.runtime.programs import Answer, ask_program
from modelreg_testing.workers import wait_until_gone


def test_what_a_program_prints_is_its_answer() -> None:
    assert ask_program(["sh", "-c", "echo $WORD; pwd"], timeout_s=10, environment={"WORD": "x"}) == Answer("x\n/\n")


@pytest.mark.parametrize("last", ["", "; sleep 60"])
def test_what_it_started_ends_with_it(tmp_path: Path, last: str) -> None:
    began = time.monotonic()
    answer = ask_program(["sh", "-c", f"sleep 60 & echo $! >{tmp_path}/pid; echo done{last}"], timeout_s=1)
    assert time.monotonic() - began < 10
    assert answer == (Answer("", "it did not answer within 1 s") if last else Answer("done\n"))
    assert wait_until_gone(int((tmp_path / "pid").read_text()))


def test_a_program_that_leaves_its_session_and_holds_the_pipe_keeps_nobody_waiting() -> None:
    script = "import subprocess; print(subprocess.Popen(['sleep', '60'], start_new_session=True).pid)"
    began = time.monotonic()
    answer = ask_program([sys.executable, "-c", script], timeout_s=30)
    os.kill(int(answer.text), 9)
    assert time.monotonic() - began < 15


def test_a_program_that_cannot_be_started_is_a_problem(tmp_path: Path) -> None:
    assert ask_program([str(tmp_path / "none")], timeout_s=1) == Answer("", "No such file or directory")
    assert ask_program(["a\0b"], timeout_s=1) == Answer("", "embedded null byte")
