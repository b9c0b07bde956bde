"""Which value a setting has, and where it comes from: the first of these that says anything.

--set KEY=VALUE  >  MODELREG_…  >  config.toml  >  settings.toml, the defaults
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from modelreg.config.keys import KEYS, VARIABLE_PREFIX, find_key, find_named
from modelreg.config.toml import Table, read_toml, require_keys
from modelreg.registry.errors import ConfigError, UsageError

_DEFAULTS = Path(__file__).with_name("settings.toml")
_SHAPES = {"promote.preference": " of target = [precisions]", "channels": ": one table per channel"}
SET_HINT = "Write --set KEY=VALUE; `modelreg config show` lists every key."


class OriginKind(str, Enum):
    """What a value comes from, the weakest first."""

    DEFAULT = "default"
    FILE = "file"
    VARIABLE = "variable"
    FLAG = "flag"

    def __str__(self) -> str:
        return self.value


class Origin(NamedTuple):  # as `Key`
    """Where a value comes from: `place` is the file, the variable or the flag; empty for a default."""

    kind: OriginKind
    place: str = ""


class Resolved(NamedTuple):  # as `Key`
    """Every setting's value by key, of the type that its key says, and its origin."""

    values: Mapping[str, Any]
    origins: Mapping[str, Origin]


def resolve(path: Path | None, *, environment: Mapping[str, str], flags: Iterable[tuple[str, str]]) -> Resolved:
    """
    Return every setting.

    Args:
        path: The file, which need not exist.
        environment: Variables; one that is empty counts as not set, one that is not ours is left alone.
        flags: Keys and values as texts; the last one of a key counts.

    Raises:
        ConfigError: A file or a variable has an unknown key or a value of the wrong type; both are named.
        UsageError: The same of a flag.
    """
    raw = _flatten(read_toml(_DEFAULTS), where=str(_DEFAULTS))
    origins = dict.fromkeys(raw, Origin(kind=OriginKind.DEFAULT))
    if path is not None and path.exists():
        given = _flatten(read_toml(path), where=str(path))
        raw.update(given)
        origins.update(dict.fromkeys(given, Origin(kind=OriginKind.FILE, place=str(path))))
    for variable, text in environment.items():
        if not text or not variable.startswith(VARIABLE_PREFIX):
            continue
        name = find_named(variable, raw)
        if name is not None:
            raw[name] = _parse(name, text)
            origins[name] = Origin(kind=OriginKind.VARIABLE, place=variable)
    for name, text in flags:
        if find_key(name) is None:
            raise _unknown_flag(name, raw)
        raw[name] = _parse(name, text)
        origins[name] = Origin(kind=OriginKind.FLAG, place="--set")
    return Resolved(values={name: _read(name, value, origins[name]) for name, value in raw.items()}, origins=origins)


def locate_origin(origin: Origin, name: str) -> tuple[str, int | None]:
    """Return the place of an origin, and the line where the key stands in a file; reads the file again."""
    if origin.kind is not OriginKind.FILE:
        return origin.place, None
    from modelreg.config.lines import find_lines  # noqa: PLC0415 - only to be shown

    try:
        return origin.place, find_lines(Path(origin.place).read_text(encoding="utf-8")).get(name)
    except (OSError, ValueError):
        return origin.place, None


def _unknown_flag(name: str, known: Iterable[str]) -> UsageError:
    from modelreg.registry.suggestions import say_close  # noqa: PLC0415 - only to be shown

    return UsageError(f"--set: there is no setting {name[:80]!r}", hint=say_close(name, known) or SET_HINT)


def _parse(name: str, text: str) -> object:
    key = find_key(name)
    assert key is not None
    return key.parse(text)


def _read(name: str, value: object, origin: Origin) -> Any:
    key = find_key(name)
    assert key is not None
    try:
        return key.read(value, name)
    except ConfigError as error:
        place, line = locate_origin(origin, name)
        where = f"{place}:{line}" if line else place
        raise ConfigError(f"{where}: {error}", hint=error.hint()) from None


def _flatten(table: Table, *, where: str) -> dict[str, object]:
    """Return what a file sets by whole key; raises ConfigError for a key that is none, since it may be a typo."""
    return dict(_walk(table, _TREE, prefix="", where=where))


def _walk(table: Table, known: dict[str, Any], *, prefix: str, where: str) -> Iterable[tuple[str, object]]:
    if not any(name.isupper() for name in known):
        require_keys(table, set(known), where=f"{where}: [{prefix[:-1]}]" if prefix else where)
    for part, value in table.items():
        inner = known.get(part) or next((below for name, below in known.items() if name.isupper()), None)
        name = prefix + part
        if not inner:
            yield name, value
        elif isinstance(value, dict):
            yield from _walk(value, inner, prefix=f"{name}.", where=where)
            if part not in known:  # a name that a file gives is there, with nothing in it too
                yield from ((f"{name}.{leaf}", []) for leaf in inner if leaf not in value)
        else:
            raise ConfigError(f"{where}: {name} must be a table{_SHAPES.get(name, '')}")


def _grow() -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key in KEYS:
        inner = tree
        for part in key.parts:
            inner = inner.setdefault(part, {})
    return tree


_TREE = _grow()
