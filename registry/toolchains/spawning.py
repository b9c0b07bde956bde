"""Starting the process of a worker: its environment, its session, its log."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from modelreg.registry.errors import WorkerError
from modelreg.registry.toolchains import worker as protocol

# From 1.29 on, ONNX Runtime reports to its maker unless this is set before it is imported; a call of
# `onnxruntime.disable_telemetry_events()` comes too late (docs/decisions/0011-no-telemetry.md).
_NO_TELEMETRY = {"ORT_DISABLE_TELEMETRY": "1"}


def spawn(
    python: str,
    module: Path,
    *,
    temporary: Path,
    extra: Mapping[str, str],
    log_path: Path,
    shared_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """
    Start `worker.py` on a module file, in a session of its own, with pipes for requests and answers.

    Args:
        python: Its interpreter.
        module: The file with its jobs.
        temporary: Its folder for temporary files, to be removed when it has ended.
        extra: Variables to set beside those that every worker gets.
        log_path: File that its stderr is appended to.
        shared_fds: Open files that it gets under the same numbers.

    Raises:
        WorkerError: The interpreter does not start.
    """
    with log_path.open("ab") as log:
        try:
            return subprocess.Popen(
                [python, "-u", "-X", "faulthandler", str(Path(protocol.__file__)), str(module)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=make_environment(python, temporary=temporary, extra=extra),
                start_new_session=True,
                pass_fds=tuple(shared_fds),
                bufsize=0,
            )
        except OSError as error:
            raise WorkerError(
                f"cannot start the interpreter {python}: {error.strerror}",
                hint="Check that it exists, that you may run it, and that memory and processes are left.",
            ) from error


def make_environment(python: str, *, temporary: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a worker: the inherited ones, no telemetry, its own folder for temporary files."""
    # Isolated from PYTHONPATH and PYTHONHOME where the interpreter is another one: they are for ours.
    dropped = () if python == sys.executable else ("PYTHONPATH", "PYTHONHOME")
    inherited = {key: value for key, value in os.environ.items() if key not in dropped}
    ours = {"MODELREG_WORKER_PARENT": str(os.getpid()), "TMPDIR": str(temporary)}
    return {**inherited, **_NO_TELEMETRY, **ours, **extra}
