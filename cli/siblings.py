"""What tells engines apart that the table shows as the same: those of one target, backend and precision."""

from __future__ import annotations

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
    if isinstance(value, list) and all(isinstance(each, dict) for each in value):
        return " and ".join(_say_ranges(each) for each in value)
    if isinstance(value, list):
        shown = ",".join(map(str, value))
        parts = shown.split(",")
        return shown if len(parts) <= _SHOWN else f"{','.join(parts[:_SHOWN])},… ({len(parts)})"
    text = str(value)
    return text[:12] if len(text) == _DIGEST_CHARACTERS else text


def _say_ranges(body: Json) -> str:
    """Return an optimisation profile as `image 1x3x32x32 … 8x… … 64x…`: what all have in common is said once."""
    if not all(isinstance(points, dict) and {"min", "opt", "max"} <= points.keys() for points in body.values()):
        return ",".join(f"{key}={value}" for key, value in body.items())  # of plugins and the like
    parts = []
    for name, points in body.items():
        shapes = [list(points[point]) for point in ("min", "opt", "max")]
        is_batch = all(shape[1:] == shapes[0][1:] for shape in shapes) and len(shapes[0]) > 1
        first, *others = ["x".join(map(str, shape)) for shape in shapes]
        if all(other == first for other in others):
            parts.append(f"{name} {first}")
        else:
            rest = [f"{shape[0]}x…" for shape in shapes[1:]] if is_batch else others
            parts.append(f"{name} {' … '.join([first, *rest])}")
    return ", ".join(parts)
