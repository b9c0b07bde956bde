"""Other Pythons that load plans on this host: asked where they look for modules. No backend is imported there."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from modelreg.registry.errors import ToolchainError
from modelreg.registry.toolchains.probing import locate_python
from modelreg.registry.toolchains.spawning import make_environment
from modelreg.runtime.host import Interpreter, find_versions
from modelreg.runtime.programs import ask_program

_TIMEOUT_S = 20.0
_QUESTION = "import json, sys; print(); print(json.dumps(sys.path))"


def ask_interpreter(python: str) -> Interpreter:
    """
    Return what an interpreter has, by its path, its virtual environment's folder, or its name on the PATH.

    What cannot be asked has no backends and a problem that says why: another interpreter may serve.
    """
    try:
        located = locate_python(python)
    except ToolchainError as error:
        return Interpreter(path=python, versions={}, problem=str(error))
    environment = make_environment(located, temporary=Path(tempfile.gettempdir()), extra={})
    answer = ask_program([located, "-c", _QUESTION], timeout_s=_TIMEOUT_S, environment=environment)
    if answer.problem:
        return Interpreter(path=located, versions={}, problem=f"{located} cannot be asked: {answer.problem}")
    path = _read_path(answer.text)
    if path is None:
        said = answer.text.strip()[:80]
        return Interpreter(path=located, versions={}, problem=f"{located} does not answer as a Python does: {said!r}")
    return Interpreter(path=located, versions=find_versions(path))


def _read_path(text: str) -> list[str] | None:
    """Return the module search path on the last line, without the entry for the script that there is none of."""
    lines = text.strip().splitlines()
    try:
        path = json.loads(lines[-1])
    except (IndexError, ValueError, RecursionError):
        return None
    return [each for each in path if each] if isinstance(path, list) and all(map(_is_path, path)) else None


def _is_path(entry: object) -> bool:
    """Return whether the operating system can be asked about an entry: not with a NUL or half a character in it."""
    try:
        return isinstance(entry, str) and b"\0" not in os.fsencode(entry)
    except UnicodeEncodeError:
        return False
