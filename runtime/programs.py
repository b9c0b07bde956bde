"""Asking a program of this host one question, in bounded time, whatever it and what it starts do."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO, NamedTuple

_MAX_BYTES = 1 << 16
"""What a pipe holds: a program that prints more waits for a reader, and so runs out of time."""


class Answer(NamedTuple):
    """What a program printed, and what is wrong with it: it did not start, did not end, or failed."""

    text: str
    problem: str = ""


def ask_program(command: Sequence[str], *, timeout_s: float, environment: Mapping[str, str] | None = None) -> Answer:
    """
    Return what a program prints until it ends, at most 64 KiB; then it is killed with all that it started.

    Args:
        command: The program and its arguments.
        timeout_s: How long it may take.
        environment: Its variables; ours where None.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd="/",
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return Answer("", getattr(error, "strerror", None) or str(error))
    with process:
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return Answer("", f"it did not answer within {timeout_s:g} s")
        finally:
            _kill_session(process)
        text, said = (_read_now(pipe) for pipe in (process.stdout, process.stderr))
    if code:
        return Answer(text, (said.strip().splitlines() or [_describe(code)])[-1])
    return Answer(text)


def _describe(code: int) -> str:
    from modelreg.registry.toolchains.exits import name_signal  # noqa: PLC0415 - `which` must start at once

    return f"it ends with {code}" if code > 0 else f"it was killed by {name_signal(-code)}"


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill a program and what it started; one that keeps the pipes open has nothing to say any more."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _read_now(pipe: IO[bytes] | None) -> str:
    """Return what a pipe holds, without waiting for more."""
    assert pipe is not None
    os.set_blocking(pipe.fileno(), False)
    try:
        return os.read(pipe.fileno(), _MAX_BYTES).decode(errors="replace")
    except BlockingIOError:
        return ""
