"""At which shapes an engine is tried beside the golden set's own. Pure.

These are its profiles' ends, and sizes that nobody tuned for. An engine of ONNX Runtime has no profiles; it is tried at
the batches of the default profile (docs/decisions/0013).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from modelreg.registry.contents import Signature, TensorSpec
from modelreg.registry.words import Json

UNPROFILED_BATCHES = (1, 7, 8, 64)
"""The default profile's min, opt and max, and one between them that no kernel was tuned for."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One set of shapes, by the input's name.

    Attributes:
        rows: Samples in it.
        is_batch_alone: Whether it differs from the golden set in the number of samples alone, so that each row has
            a known answer.
    """

    name: str
    rows: int
    shapes: Mapping[str, Shape]
    is_batch_alone: bool


def batch_symbol(signature: Signature, cut: Sequence[str]) -> str:
    """
    Return why the samples of several runs cannot be put together otherwise, or an empty string where they can.

    Args:
        signature: The model's inputs and outputs.
        cut: The inputs that are cut into runs along axis 0.
    """
    if not cut:
        return "every shape of the model is fixed"
    first = {spec.shape[0] if spec.shape else None for spec in signature.inputs if spec.name in cut}
    if len(first) > 1:
        return "the inputs have different first axes"
    if any(isinstance(symbol, int) for symbol in first):
        return "the batch of the model is fixed"
    later = {size for spec in (*signature.inputs, *signature.outputs) for size in (spec.shape or ())[1:]}
    if first & later and first != {None}:
        return f"the axis {next(iter(first))!r} is more than the batch"
    return ""


def plan_points(
    signature: Signature, golden: Mapping[str, Shape], cut: Sequence[str], *, profiles: Sequence[Json], batch: int
) -> list[Point]:
    """
    Return the points to try, each once; the golden set's own shapes are not among them.

    Args:
        signature: The model's inputs and outputs.
        golden: Shapes of the golden inputs, the number of all samples first.
        cut: The inputs that are cut into runs along axis 0.
        profiles: As in the recipe: for each, `min`, `opt` and `max` by input; empty for ONNX Runtime.
        batch: Samples of one run of the golden set.
    """
    specs = {spec.name: spec for spec in signature.inputs}
    found = _profiled(specs, golden, cut, profiles) if profiles else _unprofiled(specs, golden, cut, batch)
    points: dict[tuple[tuple[str, Shape], ...], Point] = {}
    for name, shapes in found:
        if all(shapes[each][1:] == golden[each][1:] for each in shapes) and shapes[cut[0]][0] == batch:
            continue
        key = tuple(sorted(shapes.items()))
        if key not in points:
            points[key] = Point(
                name=name,
                rows=shapes[cut[0]][0],
                shapes=shapes,
                is_batch_alone=all(shapes[each][1:] == golden[each][1:] for each in cut)
                and all(shapes[each] == golden[each] for each in shapes if each not in cut),
            )
    return [point for point in points.values() if point.rows > 0]


def _profiled(
    specs: Mapping[str, TensorSpec], golden: Mapping[str, Shape], cut: Sequence[str], profiles: Sequence[Json]
) -> list[tuple[str, dict[str, Shape]]]:
    found = []
    for index, profile in enumerate(profiles):
        for point in ("min", "opt", "max", "off"):
            shapes = {}
            for name in specs:
                usual = golden[name]
                ranges = profile.get(name)
                if ranges is None:
                    shapes[name] = usual
                elif point == "off":
                    shapes[name] = tuple(_between(*each) for each in zip(*(ranges[p] for p in _ENDS), strict=True))
                else:
                    shapes[name] = tuple(ranges[point])
            if all(len(shapes[name]) == len(golden[name]) for name in shapes) and _fits(shapes, cut):
                label = "a shape beside the optimum" if point == "off" else point
                found.append((f"{label} of profile {index}", shapes))
    return found


_ENDS = ("min", "opt", "max")


def _fits(shapes: Mapping[str, Shape], cut: Sequence[str]) -> bool:
    return len({shapes[name][0] for name in cut}) == 1


def _between(low: int, best: int, high: int) -> int:
    """Return an odd size between optimum and maximum where there is one, else one below the optimum."""
    size = min(high, ((best + high) // 2) | 1)
    if size == best:
        size = max(low, best - 1)
    return size


def _unprofiled(
    specs: Mapping[str, TensorSpec], golden: Mapping[str, Shape], cut: Sequence[str], batch: int
) -> list[tuple[str, dict[str, Shape]]]:
    def at(rows: int) -> dict[str, Shape]:
        return {name: ((rows, *golden[name][1:]) if name in cut else golden[name]) for name in specs}

    found = [(f"batch {rows}", at(rows)) for rows in UNPROFILED_BATCHES]
    symbols = {axis for spec in specs.values() for axis in (spec.shape or ())[1:] if isinstance(axis, str)}
    if symbols:
        halved = {
            name: tuple(
                max(1, size // 2)
                if position
                and (spec.shape or ())[position : position + 1] != ()
                and (spec.shape or ())[position] in symbols
                else size
                for position, size in enumerate(at(batch)[name])
            )
            for name, spec in specs.items()
        }
        found.append((f"half of {', '.join(sorted(symbols))}", halved))
    return found
