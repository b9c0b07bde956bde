"""TOML reading with errors that name the file and the key."""

from __future__ import annotations

import errno
import math
import sys
from pathlib import Path
from typing import Any

from modelreg.registry.errors import ConfigError, StorageError
from modelreg.registry.regular_files import irregularity
from modelreg.registry.suggestions import say_close

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Table = dict[str, Any]

MAX_BYTES = 1 << 20
_MAX_DEPTH = 32
_INT64 = 1 << 63
_OF_THE_SYSTEM = {
    errno.EIO: "The disk or its connection fails: look at the kernel's log before anything else.",
    errno.EMFILE: "Raise the limit on open files (`ulimit -n`).",
    errno.ENFILE: "The machine has no file handles left: close some programs.",
    errno.ENOMEM: "The machine has no memory left: close some programs.",
    errno.ESTALE: "The network mount went stale: mount it again.",
}
"""What is nobody's mistake in a file, by what to do: the command failed, it was not called wrongly. The texts are here,
since without a file handle no module can be imported."""


def read_toml(path: Path) -> Table:
    """
    Return the TOML file at `path`.

    Raises:
        ConfigError: It cannot be read or parsed, is larger than 1 MiB, or is nested too deeply.
        StorageError: The system is short of something that reading takes, or the disk fails.
    """
    content = _read(path)
    try:
        table: Table = tomllib.loads(content.decode("utf-8"))
    except RecursionError:
        raise _nested(path) from None
    except ValueError as error:  # also UnicodeDecodeError, and an integer of more digits than Python converts
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    _require_plain(table, path)
    return table


def as_finite(value: object) -> float | None:
    """Return a number of a TOML file as a float, or None for what is no number, or none that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def require_keys(table: Table, allowed: set[str], *, where: str) -> None:
    """
    Let `table` pass if it holds no key outside `allowed`: a typo must not silently mean the default.

    Raises:
        ConfigError: It holds one; the key and the allowed ones are named.
    """
    unknown = sorted(set(table) - allowed)
    if unknown:
        known = f"Known keys: {', '.join(sorted(allowed))}."
        hint = " ".join(part for part in (say_close(unknown[0], sorted(allowed)), known) if part)
        raise ConfigError(f"{where} has an unknown key {unknown[0]!r}", hint=hint)


def _read(path: Path) -> bytes:
    try:
        if kind := irregularity(path.stat().st_mode):
            raise ConfigError(f"{path} is {kind}, not a file")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        if error.errno in _OF_THE_SYSTEM:
            raise StorageError(f"cannot read {path}: {error.strerror}", hint=_OF_THE_SYSTEM[error.errno]) from error
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{path} is larger than 1 MiB", hint="Settings and policies are small: is it the right file?")
    return content


def _require_plain(table: Table, path: Path) -> None:
    """Let a table pass that everything here can walk, print and compute with; without recursion."""
    level: list[Any] = [table]
    for _ in range(_MAX_DEPTH):
        level = [value for each in level for value in (each.values() if isinstance(each, dict) else each)]
        if any(isinstance(value, int) and not -_INT64 <= value < _INT64 for value in level):
            raise ConfigError(f"{path} holds an integer of more than 64 bits")
        level = [value for value in level if isinstance(value, (dict, list))]
        if not level:
            return
    raise _nested(path)


def _nested(path: Path) -> ConfigError:
    return ConfigError(f"{path} nests tables or lists more than {_MAX_DEPTH} deep")
