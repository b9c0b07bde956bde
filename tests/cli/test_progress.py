from __future__ import annotations

import io
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr

import pytest

from modelreg.cli import progress
from modelreg.cli.progress import HangUp, Reporter, interrupted_by_signals


class Terminal(io.StringIO):
    """A stderr that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_without_a_terminal_a_step_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Reporter().step("building") as tell:
        tell(0.5, "calibrating")
    assert capsys.readouterr().err == "building ...\n"


def test_verbose_says_each_part_of_a_step_once(capsys: pytest.CaptureFixture[str]) -> None:
    with Reporter(verbose=True).step("building") as tell:
        for fraction in (0.1, 0.2, None):
            tell(fraction, "calibrating")
        tell(0.9, "storing")
    assert capsys.readouterr().err == "building ...\nbuilding: calibrating\nbuilding: storing\n"


def test_only_many_bytes_are_worth_a_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with Reporter().counting_bytes("storing") as count:
        count(1024)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "_WORTH_SAYING_BYTES", 2048)
    with Reporter().counting_bytes("storing") as count:
        count(1024)
        count(1024)
    assert capsys.readouterr().err.startswith("storing: 2.0 KiB in ")


def test_on_a_terminal_a_bar_moves_and_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    with redirect_stderr(terminal), Reporter().step("building [x]") as tell:
        tell(None, "starting")
        tell(0.5, "calibrating")
    shown = terminal.getvalue()
    assert "building [x]" in shown
    assert shown.endswith("\x1b[2K")


def test_on_a_terminal_bytes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    with redirect_stderr(terminal), Reporter(no_color=True).counting_bytes("storing", total=2048) as count:
        count(2048)
    assert "2.0" in terminal.getvalue()
    assert "\x1b[3" not in terminal.getvalue()


def test_a_long_text_leaves_the_bar_its_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    terminal = Terminal()
    with redirect_stderr(terminal), Reporter(no_color=True).step("building lenet:1 int8 for cpu") as tell:
        tell(1.0, "calibrating, pass 1 of 2: 32 of 32 samples")
    lines = [line for line in terminal.getvalue().splitlines() if "calibrating" in line]
    assert "━" * 20 in lines[-1]
    assert lines[-1].rstrip().endswith("…")


def test_bars_count_in_the_units_of_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for total in (4096, None):
        terminal = Terminal()
        with redirect_stderr(terminal), Reporter(no_color=True).counting_bytes("storing", total=total) as count:
            count(2048)
        assert ("2.0 KiB of 4.0 KiB" if total else "2.0 KiB") in terminal.getvalue()
        assert "kB" not in terminal.getvalue()
        assert " bytes/s" not in terminal.getvalue()


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGTERM, KeyboardInterrupt), (signal.SIGHUP, HangUp)])
def test_a_signal_ends_the_work_as_ctrl_c_does_and_only_meanwhile(number: int, raised: type[BaseException]) -> None:
    before = signal.getsignal(number)
    with pytest.raises(raised), interrupted_by_signals():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_what_the_first_signal_began_to_clean_up_is_not_ended_by_a_second() -> None:
    cleaned = []

    def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGHUP)
        finally:
            for number in (signal.SIGHUP, signal.SIGTERM):
                os.kill(os.getpid(), number)
                cleaned.append(number)

    with pytest.raises(HangUp), interrupted_by_signals():
        work()
    assert len(cleaned) == 2
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupted_by_signals():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_without_a_terminal_each_step_of_a_board_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Reporter().board(total=2) as board:
        for label in ("one", "two"):
            with board.step(label) as tell:
                tell(0.5, "half")
    assert capsys.readouterr().err == "one ...\ntwo ...\n"


def test_on_a_terminal_steps_of_several_threads_share_one_view(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    terminal, both = Terminal(), threading.Barrier(2)
    with redirect_stderr(terminal), Reporter(no_color=True).board(total=2) as board:

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


def test_one_step_alone_counts_no_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    with redirect_stderr(terminal), Reporter(no_color=True).step("a step") as tell:
        tell(1.0, "done")
    assert "engines" not in terminal.getvalue()


def test_a_step_that_needs_no_work_says_why_and_counts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Reporter().board(total=2) as board:
        board.pass_over("lenet:1 fp32 for cpu: engine 1 is reused")
    assert capsys.readouterr().err == "lenet:1 fp32 for cpu: engine 1 is reused\n"
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    terminal = Terminal()
    with redirect_stderr(terminal), Reporter(no_color=True).board(total=2) as board:
        board.pass_over("engine 1 is reused")
        board.pass_over("engine 2 is reused")
    assert "engine 2 is reused" in terminal.getvalue()
