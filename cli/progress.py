"""Progress on stderr: live on a terminal, else one line a step. Rich is imported for a terminal only."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

from modelreg.cli.render import print_note, size

if TYPE_CHECKING:
    from types import FrameType

    from rich.console import Console
    from rich.progress import Progress

Tell = Callable[["float | None", str], None]
"""Called with the part of a step that is done (None when unknown) and what is going on."""

_WORTH_SAYING_BYTES = 64 << 20


class Reporter:
    """Tells a person what is being done; with `verbose`, each part of a step too."""

    def __init__(self, *, no_color: bool = False, verbose: bool = False) -> None:
        self._is_live = sys.stderr.isatty()
        self._no_color = no_color
        self._verbose = verbose

    @contextmanager
    def step(self, label: str) -> Iterator[Tell]:
        """Show that `label` is at work; what is called with the part that is done moves the bar."""
        with self.board() as board, board.step(label) as tell:
            yield tell

    @contextmanager
    def board(self, *, total: int = 1) -> Iterator[Board]:
        """Show several steps at once, also from several threads; with more than one in all, how many are done."""
        if not self._is_live:
            yield _LineBoard(verbose=self._verbose)
            return
        from rich.progress import Progress

        from modelreg.cli.bars import step_columns

        with Progress(*step_columns(), console=self._console(), transient=True) as progress:
            yield _LiveBoard(progress, total=total)

    @contextmanager
    def counting_bytes(self, label: str, *, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """Count bytes while `label` is at work; without a terminal, say at the end what many bytes took."""
        if not self._is_live:
            count = _Count()
            started = time.monotonic()
            yield count
            if count.done >= _WORTH_SAYING_BYTES:
                print_note(f"{label}: {size(count.done)} in {time.monotonic() - started:.1f} s")
            return
        from rich.progress import Progress

        from modelreg.cli.bars import byte_columns

        with Progress(*byte_columns(), console=self._console(), transient=True) as progress:
            task = progress.add_task(label, total=total)
            yield lambda size_bytes: progress.update(task, advance=size_bytes)

    def _console(self) -> Console:
        from rich.console import Console

        return Console(file=sys.stderr, no_color=self._no_color or None, markup=False, highlight=False)


class Board(Protocol):
    """Where steps are shown while they are at work."""

    def step(self, label: str) -> AbstractContextManager[Tell]:
        """Show that `label` is at work until the end of the block."""
        ...

    def pass_over(self, note: str) -> None:
        """Say why a step needs no work; it counts as done."""
        ...


class _LiveBoard:
    """A bar for each step at work, and one for all of them."""

    def __init__(self, progress: Progress, *, total: int) -> None:
        self._progress = progress
        self._all = progress.add_task(f"{total} engines", total=total, doing="") if total > 1 else None

    @contextmanager
    def step(self, label: str) -> Iterator[Tell]:
        progress = self._progress
        task = progress.add_task(label, total=None, doing="")

        def tell(fraction: float | None, doing: str) -> None:
            if fraction is None:
                progress.update(task, doing=doing)
            else:
                progress.update(task, total=1.0, completed=fraction, doing=doing)

        try:
            yield tell
        finally:
            if self._all is not None:  # a step alone goes with the whole view
                progress.remove_task(task)
            self._count_one()

    def pass_over(self, note: str) -> None:
        print_note(note)
        self._count_one()

    def _count_one(self) -> None:
        if self._all is not None:
            self._progress.advance(self._all)


class _LineBoard:
    """A line for each step that begins, and with `verbose` for each of its parts."""

    def __init__(self, *, verbose: bool) -> None:
        self._verbose = verbose

    @contextmanager
    def step(self, label: str) -> Iterator[Tell]:
        print_note(f"{label} ...")
        yield _Lines(label if self._verbose else "")

    def pass_over(self, note: str) -> None:
        print_note(note)


class _Lines:
    """Prints each new thing that is going on, if it has a label."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._last = ""

    def __call__(self, _fraction: float | None, doing: str) -> None:
        if self._label and doing != self._last:
            print_note(f"{self._label}: {doing}")
        self._last = doing


class _Count:
    def __init__(self) -> None:
        self.done = 0

    def __call__(self, size_bytes: int) -> None:
        self.done += size_bytes


class HangUp(KeyboardInterrupt):
    """The terminal went away while a command was at work."""

    exit_code = 128 + signal.SIGHUP


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """
    Let SIGTERM and SIGHUP end the work as Ctrl-C does: children end, temporary files go, a cell is noted as failed.

    A signal that is ignored stays so (`nohup`), and only the first counts: a terminal that closes sends SIGHUP
    twice, and the second must not end what the first began to clean up.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    watched = [number for number, handler in before.items() if handler is not signal.SIG_IGN]

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for each in watched:
            signal.signal(each, signal.SIG_IGN)
        if number == signal.SIGHUP:
            _leave_lost_terminal()
            raise HangUp
        raise KeyboardInterrupt

    for number in watched:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in watched:
            signal.signal(number, before[number])


def _leave_lost_terminal() -> None:
    """Point stdout and stderr at nothing where their terminal is gone: what is still said would fail there."""
    for stream in (1, 2):
        try:
            os.write(stream, b"")
        except OSError:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, stream)
            os.close(nothing)
