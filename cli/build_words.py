"""Cells of one `build` in words: which of them one reason or one hint is for, and what a recipe says of shapes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modelreg.registry.words import Json

CellName = tuple[str, str]
"""The precision and the target of a cell."""

_POINTS = ("min", "opt", "max")


def group_cells(pairs: Iterable[tuple[str, CellName]]) -> dict[str, list[CellName]]:
    """Return the cells of each text, in order; those of an empty text are left out."""
    grouped: dict[str, list[CellName]] = {}
    for text, cell in pairs:
        if text:
            grouped.setdefault(text, []).append(cell)
    return grouped


def say_cells(cells: Sequence[CellName]) -> str:
    """Return the cells in words: `fp32, fp16 for sm_86, sm_89`."""
    precisions: dict[str, list[str]] = {}
    for precision, target in cells:
        precisions.setdefault(target, []).append(precision)
    targets: dict[str, list[str]] = {}
    for target, names in precisions.items():
        targets.setdefault(", ".join(dict.fromkeys(names)), []).append(target)
    return " and ".join(f"{names} for {', '.join(each)}" for names, each in targets.items())


def say_reasons(pairs: Iterable[tuple[str, CellName]]) -> str:
    """Return each reason once, behind the cells that it is for."""
    return "; ".join(f"{say_cells(cells)}: {reason}" for reason, cells in group_cells(pairs).items())


def say_hints(pairs: Sequence[tuple[str, CellName]]) -> str:
    """Return each hint once, a line each, behind the cells that it is for; alone and for all of them, as it is."""
    grouped = group_cells(pairs)
    if len(grouped) == 1 and all(hint for hint, _ in pairs):
        return next(iter(grouped))
    return "\n".join(f"{say_cells(cells)}: {hint}" for hint, cells in grouped.items())


def say_profile(profile: dict[str, dict[str, list[int]]]) -> str:
    """Return a profile: smallest, tuned for and largest shape of each input, or the one shape that it takes."""
    parts = []
    for name, points in profile.items():
        low, best, high = ("x".join(map(str, points[point])) or "a scalar" for point in _POINTS)
        parts.append(
            f"{name} {low} and no other shape" if low == best == high else f"{name} {low} to {high}, tuned for {best}"
        )
    return "; ".join(parts)


def say_profiles(recipe: Json) -> list[str]:
    """Return a line for each profile of a recipe, numbered where there are several."""
    profiles = recipe.get("build", {}).get("profiles", [])
    names = ["profile"] if len(profiles) == 1 else [f"profile {index}" for index in range(len(profiles))]
    return [f"{name}: {say_profile(profile)}" for name, profile in zip(names, profiles, strict=True)]


def say_settings(recipe: Json) -> list[str]:
    """Return a line for each setting of TensorRT that a recipe has and that is not its default."""
    from modelreg.builders.trt_options import DEFAULT_OPTIMISATION_LEVEL

    build = recipe.get("build", {})
    lines = [f"memory pool {name}: {_say_bytes(size)}" for name, size in build.get("pools", {}).items()]
    level = build.get("optimisation_level")
    if isinstance(level, int) and level != DEFAULT_OPTIMISATION_LEVEL:
        lines.append(f"optimisation level: {level}")
    if build.get("hardware_compatibility", "NONE") != "NONE":
        lines.append(f"hardware compatibility: {build['hardware_compatibility']}")
    sources = build.get("tactic_sources")
    if sources:
        words = [*(["none"] * sources["none"]), *(f"+{n}" for n in sources["on"]), *(f"-{n}" for n in sources["off"])]
        lines.append(f"tactic sources: {', '.join(words)}")
    if build.get("dla_core") is not None:
        lines.append(f"DLA core: {build['dla_core']}")
    lines += [f"plugin: {plugin['name']}" for plugin in build.get("plugins", ())]
    if recipe.get("flags"):
        lines.append(f"builder flags: {', '.join(recipe['flags'])}")
    return lines


def _say_bytes(size_bytes: int) -> str:
    for unit, width in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size_bytes and size_bytes % (1 << width) == 0:
            return f"{size_bytes >> width} {unit}"
    return f"{size_bytes} B"
