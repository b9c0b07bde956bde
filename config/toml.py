"""TOML reading with errors that name the file and the key."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from modelreg.registry.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Table = dict[str, Any]


def read_toml(path: Path) -> Table:
    """
    Return the TOML file at `path`.

    Raises:
        ConfigError: It cannot be read or parsed.
    """
    try:
        table: Table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    return table


def require_keys(table: Table, allowed: set[str], *, where: str) -> None:
    """
    Let `table` pass if it holds no key outside `allowed`: a typo must not silently mean the default.

    Raises:
        ConfigError: It holds one; the key and the allowed ones are named.
    """
    unknown = sorted(set(table) - allowed)
    if unknown:
        raise ConfigError(
            f"{where} has an unknown key {unknown[0]!r}", hint=f"Known keys: {', '.join(sorted(allowed))}."
        )
