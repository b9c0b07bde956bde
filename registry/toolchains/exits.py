"""How a process ended, in words."""

from __future__ import annotations

import signal


def describe_exit(code: int) -> str:
    """Return what a return code of `subprocess` means, in words."""
    if code >= 0:
        return f"exited with code {code} without an answer"
    name = name_signal(-code)
    return f"was killed by {name}" + (" (perhaps out of memory)" if name == "SIGKILL" else "")


def name_signal(number: int) -> str:
    """Return the name of a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
