"""Which engines gave way to a repaired one: the same build, with more nodes kept in a high precision, that passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from modelreg.registry.words import EngineStatus, Verdict

if TYPE_CHECKING:
    from modelreg.registry.records import EngineRecord, ValidationRecord
    from modelreg.registry.words import Json

_PARTS = ("variant", "pins")
_LEFT_OUT = ("excluded_nodes", "tools")


def find_superseded(engines: Sequence[EngineRecord], newest: Mapping[int, ValidationRecord]) -> dict[int, EngineRecord]:
    """
    Return, by the id of each engine that gave way, the repaired engine that stands in its place.

    It gave way if its newest verdict is no pass, and a later engine of its cell passed last, whose recipe says the same
    but keeps more nodes. A pass that is stale counts here: what matters is which of the two is to be judged again.

    Args:
        engines: Of one version.
        newest: The newest verdict of each engine that has one, by engine id.
    """
    passed = [
        engine
        for engine in engines
        if engine.status is EngineStatus.BUILT
        and not engine.is_swept
        and engine.id in newest
        and newest[engine.id].verdict is Verdict.PASS
    ]
    return {
        engine.id: max(repaired, key=lambda each: each.id)
        for engine in engines
        if engine.id in newest and newest[engine.id].verdict is not Verdict.PASS
        if (repaired := [each for each in passed if _is_repaired(each, of=engine)])
    }


def _is_repaired(engine: EngineRecord, *, of: EngineRecord) -> bool:
    return (
        engine.id > of.id
        and _cell(engine) == _cell(of)
        and _kept_nodes(engine.recipe) > _kept_nodes(of.recipe)
        and _without_kept_nodes(engine.recipe) == _without_kept_nodes(of.recipe)
    )


def _cell(engine: EngineRecord) -> tuple[str, ...]:
    toolchain = engine.toolchain
    return engine.target.name, engine.precision, toolchain.backend, toolchain.version


def _kept_nodes(recipe: Json) -> frozenset[str]:
    return frozenset(node for part in _PARTS for node in (recipe.get(part) or {}).get("excluded_nodes", []))


def _without_kept_nodes(recipe: Json) -> Json:
    """Return the recipe without the nodes it keeps, and without the versions of the libraries that made the variant."""
    parts = {
        part: {key: value for key, value in recipe[part].items() if key not in _LEFT_OUT}
        for part in _PARTS
        if recipe.get(part)
    }
    return {**recipe, **parts}
