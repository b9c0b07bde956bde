"""What tells engines apart that the table shows as the same: those of one target, backend and precision."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modelreg.registry.records import EngineRecord
    from modelreg.registry.words import Json

_LEFT_OUT = ("variant.tools.", "variant.calibration.bins", "variant.calibration.percentile", "variant.revision")
_PARTS = ("variant.", "build.")
_DIGEST_CHARACTERS = 64
_SHOWN = 3


def tell_apart(engines: Sequence[EngineRecord]) -> dict[int, str]:
    """Return, for each engine that has siblings, what its recipe says otherwise than theirs: `method minmax`."""
    cells: dict[tuple[str, ...], list[EngineRecord]] = defaultdict(list)
    for engine in engines:
        toolchain = engine.toolchain
        cells[engine.target.name, toolchain.backend, toolchain.version, engine.precision].append(engine)
    said: dict[int, str] = {}
    for siblings in cells.values():
        recipes = {engine.id: dict(_flatten(engine.recipe)) for engine in siblings}
        keys = dict.fromkeys(key for recipe in recipes.values() for key in recipe)
        differing = [key for key in keys if len({repr(recipe.get(key)) for recipe in recipes.values()}) > 1]
        if differing and len(siblings) > 1:
            said |= {number: _describe(recipe, differing) for number, recipe in recipes.items()}
    return said


def _describe(recipe: dict[str, object], differing: Sequence[str]) -> str:
    return "; ".join(f"{_name(key)} {_say(recipe.get(key))}" for key in differing)


def _flatten(body: Json, prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in body.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flatten(value, f"{path}.")
        elif not path.startswith(_LEFT_OUT):
            yield path, value


def _name(key: str) -> str:
    for part in _PARTS:
        key = key.removeprefix(part)
    return key


def _say(value: object) -> str:
    """Return a value of a recipe in short; digests are cut, and of a long list its beginning is enough."""
    if value in (None, "", []):
        return "-"
    if isinstance(value, list):
        shown = ",".join(str(each) if isinstance(each, str | int | float) else json.dumps(each) for each in value)
        parts = shown.split(",")
        return shown if len(parts) <= _SHOWN else f"{','.join(parts[:_SHOWN])},… ({len(parts)})"
    text = str(value)
    return text[:12] if len(text) == _DIGEST_CHARACTERS else text
