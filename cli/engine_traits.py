"""What an engine keeps in a high precision, and the shapes that it takes, in few words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modelreg.registry.contents import Signature
    from modelreg.registry.records import EngineRecord
    from modelreg.registry.words import Json

_SHOWN = 3
_PARTS = ("variant", "pins")


def say_traits(engine: EngineRecord, signature: Signature) -> str:
    """Return both as `keeps Softmax, /fc1/Gemm; profile image 1x3x224x224 to 4x3x224x224`; empty if all is as usual."""
    nodes, op_types = _kept(engine)
    parts = [f"keeps {_list((*op_types, *nodes))}"] if nodes or op_types else []
    if not _is_default(engine.profiles, signature):
        said = [_say_profile(profile) for profile in engine.profiles]
        parts.append(f"profile{'s' if len(said) > 1 else ''} {_list(said, separator='; ')}")
    return ", ".join(parts)


def traits_document(engine: EngineRecord) -> Json:
    """Return both as JSON: the names of nodes and op types, and the profiles."""
    nodes, op_types = _kept(engine)
    return {
        "nodes_to_exclude": list(nodes),
        "op_types_to_exclude": list(op_types),
        "profiles": list(engine.profiles),
    }


def _kept(engine: EngineRecord) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the nodes and the op types that the recipe keeps in a high precision."""
    parts = [engine.recipe.get(part) or {} for part in _PARTS]
    nodes = {name for part in parts for name in part.get("excluded_nodes") or ()}
    op_types = {name for part in parts for name in part.get("excluded_op_types") or ()}
    return tuple(sorted(nodes)), tuple(sorted(op_types))


def _is_default(profiles: Sequence[Json], signature: Signature) -> bool:
    """Return whether these are the profiles that a build without shapes has."""
    from modelreg.builders.profiles import resolve_profiles
    from modelreg.registry.errors import UsageError

    if not profiles:
        return True
    try:
        return list(profiles) == resolve_profiles((), signature)
    except UsageError:  # such a model has no default
        return False


def _say_profile(profile: Json) -> str:
    return ", ".join(
        f"{name} {_shape(shapes['min'])} to {_shape(shapes['max'])}" for name, shapes in sorted(profile.items())
    )


def _shape(axes: Sequence[int]) -> str:
    return "x".join(map(str, axes)) or "scalar"


def _list(words: Sequence[str], *, separator: str = ", ") -> str:
    more = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return f"{separator.join(words[:_SHOWN])}{more}"
