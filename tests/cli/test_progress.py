from __future__ import annotations

import io
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from modelreg.cli.progress import Reporter


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def become_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Put a terminal in the place of stderr; inside the test, since pytest sets stderr anew for each of its parts."""
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    return made


def test_without_a_terminal_each_step_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Reporter().board(total=2) as board:
        with board.step("one") as tell:
            tell(0.5, "half")
        with board.step("two"):
            pass
    assert capsys.readouterr().err == "one ...\ntwo ...\n"


def test_with_verbose_each_part_is_a_line_once(capsys: pytest.CaptureFixture[str]) -> None:
    with Reporter(verbose=True).step("one") as tell:
        tell(0.1, "parsing")
        tell(0.2, "parsing")
        tell(None, "compiling")
    assert capsys.readouterr().err == "one ...\none: parsing\none: compiling\n"


def test_on_a_terminal_steps_of_several_threads_share_one_view(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = become_terminal(monkeypatch)
    both = threading.Barrier(2)
    with Reporter(no_color=True).board(total=2) as board:

        def work(name: str) -> None:
            with board.step(name) as tell:
                tell(None, f"starting {name}")
                both.wait(timeout=30)
                tell(0.5, f"halfway {name}")
                both.wait(timeout=30)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(work, ("first cell", "second cell")))
    shown = terminal.getvalue()
    assert all(name in shown for name in ("2 engines", "first cell", "second cell"))


def test_one_step_alone_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = become_terminal(monkeypatch)
    with Reporter(no_color=True).step("a step") as tell:
        tell(1.0, "done")
    assert "engines" not in terminal.getvalue()
