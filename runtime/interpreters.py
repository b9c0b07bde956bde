"""Other Pythons that load plans on this host: asked where they look for modules. No backend is imported there."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from modelreg.registry.errors import ToolchainError
from modelreg.registry.toolchains.probing import locate_python
from modelreg.registry.toolchains.spawning import make_environment
from modelreg.runtime.host import Interpreter, find_versions

_TIMEOUT_S = 20.0
_QUESTION = "import sys; print('\\n'.join(sys.path))"


def ask_interpreter(python: str) -> Interpreter:
    """
    Return what an interpreter has, by its path, its virtual environment's folder, or its name on the PATH.

    What cannot be asked has no backends and a problem that says why: another interpreter may serve.
    """
    try:
        located = locate_python(python)
    except ToolchainError as error:
        return Interpreter(path=python, versions={}, problem=str(error))
    # The first entry is for the script that there is none of.
    command = [located, "-c", _QUESTION]
    environment = make_environment(located, temporary=Path(tempfile.gettempdir()), extra={})
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True, env=environment, cwd="/"
        )
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return Interpreter(path=located, versions={}, problem=f"{located} cannot be asked: {_say(error)}")
    return Interpreter(path=located, versions=find_versions([line for line in answer.stdout.splitlines() if line]))


def _say(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = str(error.stderr).strip().splitlines() or [f"it ends with {error.returncode}"]
        return lines[-1]
    return getattr(error, "strerror", None) or str(error)
