"""Run Python that a user named as `FILE.py:NAME`; what goes wrong in it is one line, no traceback."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from modelreg.registry.errors import ReferenceModelError, UsageError
from modelreg.registry.regular_files import fault_of

_FORM = "Write FILE.py:NAME, where NAME is a function or class of that file that takes no parameters."
_MODULE = "modelreg_user_code"


def split_target(text: str) -> tuple[Path, str] | None:
    """Return the file and the name that `FILE.py:NAME` spells, or None where it is no such text."""
    path, _, name = text.rpartition(":")
    return (Path(path), name) if path.endswith(".py") else None


def require_name(text: str, *, option: str, what: str) -> None:
    """
    Refuse a Python file without the name of what is wanted in it.

    Raises:
        UsageError: `text` is `FILE.py` alone.
    """
    path, _, name = text.rpartition(":") if text.endswith(":") else (text, "", "")
    if path.endswith(".py") and not name:
        raise UsageError(
            f"{option} {text} names no {what} in the file",
            hint=f"Write {path}:NAME, where NAME is a function or class of it that takes no parameters.",
        )


def require_file(text: str) -> None:
    """
    Refuse what is no file to read, of `FILE.py:NAME` or of a path.

    Raises:
        ReferenceModelError: Nothing is there, or a folder, a pipe, a device.
    """
    path, _ = split_target(text) or (Path(text), "")
    if fault := fault_of(path):
        raise ReferenceModelError(f"{path} is {fault}")


@contextlib.contextmanager
def load_function(path: Path, name: str) -> Iterator[Callable[[], Any]]:
    """Yield a function of a user's file; files beside it can be imported while the context is open.

    Raises:
        ReferenceModelError: The file is missing, fails on import, or has no such function.
    """
    if fault := fault_of(path):
        raise ReferenceModelError(f"{path} is {fault}", hint=_FORM)
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    assert spec is not None and spec.loader is not None  # noqa: PT018 - a .py file always has both
    module = importlib.util.module_from_spec(spec)
    before = dict(sys.modules)
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[_MODULE] = module
    try:
        with guard(f"{path} cannot be imported"):
            spec.loader.exec_module(module)
        function = getattr(module, name, None)
        if not callable(function):
            raise ReferenceModelError(f"{path} has no function {name!r}", hint=_FORM)
        yield function
    finally:
        sys.path.remove(str(path.resolve().parent))
        _forget_siblings(path.resolve().parent, before)


@contextlib.contextmanager
def guard(what: str) -> Iterator[None]:
    """Turn anything that a user's code raises into one line; its prints go to standard error.

    Raises:
        ReferenceModelError: `what`, the exception's type and message, and the line of the user's file.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except (KeyboardInterrupt, GeneratorExit, ReferenceModelError):
        raise
    except BaseException as error:  # a script may call sys.exit
        raise ReferenceModelError(f"{what}: {describe_error(error)}{_place(error)}") from error


def describe_error(error: BaseException) -> str:
    """Return an exception's type and the first line of its message."""
    lines = message_lines(error)
    return type(error).__name__ + (f": {lines[0][:300]}" if lines else "")


def message_lines(error: BaseException) -> list[str]:
    """Return the lines of an exception's message, whatever its own code does when it is asked."""
    try:
        return [line.strip() for line in str(error).splitlines() if line.strip()]
    except Exception:  # `__str__` is user code too
        return []


def _place(error: BaseException) -> str:
    """Return the innermost line outside installed libraries and this program."""
    try:
        return _find_place(error)
    except Exception:  # generated code may say that it is in any file
        return ""


def _find_place(error: BaseException) -> str:
    ours = str(Path(__file__).resolve().parent)
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f" ({error.filename}:{error.lineno})"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        is_library = "site-packages" in frame.filename or frame.filename.startswith(("<", sys.base_prefix + "/lib"))
        if not is_library and not str(Path(frame.filename).resolve()).startswith(ours):
            return f" ({frame.filename}:{frame.lineno})"
    return ""


def _forget_siblings(folder: Path, before: dict[str, Any]) -> None:
    """Drop modules that were imported from the user's folder, so that another file's `model` is not this one's."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name == _MODULE or (name not in before and file is not None and Path(file).parent == folder):
            del sys.modules[name]
