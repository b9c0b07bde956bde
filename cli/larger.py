"""Engines of eight bits that take more room than one of more bits: where a network is tiny, Q and DQ cost more."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from modelreg.cli.render import print_note, size
from modelreg.registry.words import EngineStatus, Precision

if TYPE_CHECKING:
    from modelreg.cli.context import Registry
    from modelreg.registry.records import EngineRecord, VersionRecord

_SMALL = (Precision.INT8, Precision.FP8)
_COMPARED = (Precision.FP16, Precision.FP32)


def note_larger(registry: Registry, version: VersionRecord, made: Collection[int]) -> None:
    """Say on stderr which of the engines that were made or found now are larger than a sibling of more bits."""
    from modelreg.registry.engines import list_engines

    with registry.database.read() as connection:
        engines = list_engines(connection, version_id=version.id)
    for line in say_larger(engines, made):
        print_note(line)


def say_larger(engines: Sequence[EngineRecord], made: Collection[int]) -> list[str]:
    """Return a line for each engine of INT8 or FP8 among `made` that is larger than its FP16, else FP32, sibling."""
    built = [each for each in engines if each.status is EngineStatus.BUILT]
    lines = []
    for engine in built:
        if engine.id not in made or engine.precision not in _SMALL:
            continue
        sibling = _find_sibling(engine, built)
        if sibling is not None and engine.size_bytes > sibling.size_bytes > 0:
            times = engine.size_bytes / sibling.size_bytes
            lines.append(
                f"note: engine {engine.id} ({engine.target.name} {engine.precision}) takes {size(engine.size_bytes)},"
                f" {times:.1f} times what {sibling.precision} takes (engine {sibling.id}): is it faster? The"
                " gate `gain` of `validate` measures it"
            )
    return lines


def _find_sibling(engine: EngineRecord, built: Sequence[EngineRecord]) -> EngineRecord | None:
    """Return the newest engine of the same target and backend in the first of the wider precisions that there is."""
    for precision in _COMPARED:
        for each in sorted(built, key=lambda other: other.id, reverse=True):
            is_sibling = (each.target.name, each.toolchain.backend) == (engine.target.name, engine.toolchain.backend)
            if each.precision is precision and is_sibling:
                return each
    return None
