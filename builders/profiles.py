"""Optimisation profiles: what the user writes, held to the model's inputs before any builder starts. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from modelreg.registry.contents import Signature, TensorSpec
from modelreg.registry.errors import UsageError
from modelreg.registry.words import Json

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]

DEFAULT_BATCH = {"min": 1, "opt": 8, "max": 64}
"""The profile of a model whose batch alone is free; see docs/decisions/0013."""

_LONGEST = (1 << 31) - 1
"""TensorRT before 10 counts dimensions in 32 bits, and none has tensors of more elements."""
_DIGITS = len(str(_LONGEST))
_POINTS = ("min", "opt", "max")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileShapes:
    """One profile as given: shapes by input; a point that is left out follows from the others."""

    min: Shapes = field(default_factory=dict)
    opt: Shapes = field(default_factory=dict)
    max: Shapes = field(default_factory=dict)


def parse_shapes(text: str) -> dict[str, Shape]:
    """
    Return the shapes in trtexec's spelling: `image:1x3x224x224,mask:1x77`; quotes around a name are dropped.

    Raises:
        UsageError: It is not of that form, names an input twice, or has a dimension that no tensor can have.
    """
    shapes: dict[str, Shape] = {}
    for part in text.split(","):
        name, found, written = part.strip().rpartition(":")
        name = name.strip("'\"")
        numbers = written.split("x") if written not in ("", "scalar") else []
        if not found or not name or not all(number.isascii() and number.isdigit() for number in numbers):
            raise UsageError(f"shape {part.strip()!r} is not NAME:1x3x224x224", hint=_shape_hint(text, part.strip()))
        if name in shapes:
            raise UsageError(f"input {name!r} has two shapes in {text!r}")
        if any(len(number.lstrip("0")) > _DIGITS or int(number) > _LONGEST for number in numbers):
            raise UsageError(f"input {name!r} cannot be that long", hint=f"A dimension is at most {_LONGEST}.")
        shapes[name] = tuple(int(number) for number in numbers)
    return shapes


def _shape_hint(text: str, part: str) -> str:
    """Return what is wrong with a shape, as far as its looks tell."""
    name, found, _ = part.rpartition(":")
    brackets = re.search(r"[\[({]\s*(\d+(?:\s*[,x ]\s*\d+)*)\s*[\])}]", text)
    if brackets:
        numbers = "x".join(re.findall(r"\d+", brackets[1]))
        return f"Dimensions are joined by x, without brackets: {name or 'NAME'}:{numbers}."
    if re.fullmatch(r"\d+(x\d+)*", part, re.ASCII):
        return f"Write the input's name before it: NAME:{part}; `modelreg show` lists a version's inputs."
    if found and name and re.search(r"-\d|[^\dx,\s-]", part.rpartition(":")[2]):
        return "A dimension is a number: a profile gives free ones a range from --minShapes to --maxShapes."
    return "Dimensions are joined by x, and the shapes of several inputs by commas."


def pair_profiles(
    *, numbers: Sequence[int], minima: Sequence[str], optima: Sequence[str], maxima: Sequence[str]
) -> tuple[ProfileShapes, ...]:
    """
    Return the profiles that repeated options mean: the first of each belongs to profile 0, and so on.

    Raises:
        UsageError: The options do not pair up, or `numbers` is not 0, 1, 2 and so on.
    """
    given = {"--minShapes": minima, "--optShapes": optima, "--maxShapes": maxima}
    count = max(len(numbers), *(len(texts) for texts in given.values()))
    if numbers and list(numbers) != list(range(count)):
        raise UsageError(f"profiles are numbered from 0, each once; --profile has {', '.join(map(str, numbers))}")
    for option, texts in given.items():
        if texts and len(texts) != count:
            raise UsageError(
                f"{option} is given {len(texts)} times for {count} profiles", hint="Give it once for each profile."
            )
    if numbers and not any(given.values()):
        raise UsageError("--profile has no shapes", hint="Give --minShapes, --optShapes and --maxShapes with it.")
    read = [[parse_shapes(text) for text in texts] or [{}] * count for texts in given.values()]
    return tuple(ProfileShapes(min=low, opt=best, max=high) for low, best, high in zip(*read, strict=True))


def resolve_profiles(profiles: Sequence[ProfileShapes], signature: Signature) -> list[Json]:
    """
    Return the profiles to build with: for each, `min`, `opt` and `max` of every input with free dimensions.

    Without any given, a model whose batch alone is free gets `DEFAULT_BATCH`, and a model of fixed shapes none.

    Raises:
        UsageError: A profile does not fit the model's inputs, or one is needed and there is none.
    """
    free = [spec for spec in signature.inputs if spec.shape is None or _free_axes(spec)]
    if not profiles:
        return [{spec.name: _default(spec) for spec in free}] if free else []
    resolved = [_resolve(profile, index, signature, free) for index, profile in enumerate(profiles)]
    return resolved if free else []


def _default(spec: TensorSpec) -> Json:
    hint = f"Give its range: --minShapes {spec.name}:… --optShapes {spec.name}:… --maxShapes {spec.name}:…"
    if spec.shape is None:
        raise UsageError(f"input {spec.name!r} has no declared shape, so it needs a profile", hint=hint)
    others = [_say_dimension(spec, axis) for axis in _free_axes(spec) if axis != 0]
    if others:
        raise UsageError(
            f"input {spec.name!r} has free dimensions besides the batch ({', '.join(others)}), so it needs a profile",
            hint=hint,
        )
    return {point: [batch, *spec.shape[1:]] for point, batch in DEFAULT_BATCH.items()}


def _resolve(profile: ProfileShapes, index: int, signature: Signature, free: Sequence[TensorSpec]) -> Json:
    specs = {spec.name: spec for spec in signature.inputs}
    points = {point: getattr(profile, point) for point in _POINTS}
    for shapes in points.values():
        for name in shapes:
            if name not in specs:
                raise UsageError(
                    f"profile {index} is for an input {name!r} that the model does not have",
                    hint=f"Its inputs: {', '.join(specs)}.",
                )
    body: Json = {}
    for name, spec in specs.items():
        given = {point: shapes[name] for point, shapes in points.items() if name in shapes}
        if not given:
            if spec in free:
                raise UsageError(f"profile {index} has no shape for input {name!r}, which has free dimensions")
            continue
        body[name] = _complete(given)
        _check(spec, body[name], f"profile {index}, input {name!r}", given=given)
    _check_symbols(body, specs, index)
    return {spec.name: {point: list(body[spec.name][point]) for point in _POINTS} for spec in free}


def _complete(given: Mapping[str, Shape]) -> dict[str, Shape]:
    """Fill in the points left out: the optimum is the maximum, and an end is the optimum, as trtexec has it."""
    optimum = given.get("opt") or given.get("max") or given["min"]
    return {"min": given.get("min", optimum), "opt": optimum, "max": given.get("max", optimum)}


def _check(spec: TensorSpec, shapes: Mapping[str, Shape], where: str, *, given: Mapping[str, Shape]) -> None:
    """Hold the points of an input to the model; only what was `given` is named, since the rest follows from it."""
    for point, shape in given.items():
        _check_dimensions(spec, shape, f"{where}: {point}")
    for point, shape in shapes.items():
        free = _free_axes(spec) if spec.shape is not None else range(len(shape))
        if point != "min" and any(shape[axis] < 1 for axis in free):
            raise UsageError(f"{where}: {point} {_say(shape)} is empty")
    for low, high in itertools.combinations([point for point in _POINTS if point in given], 2):
        if any(a > b for a, b in zip(shapes[low], shapes[high], strict=True)):
            raise UsageError(f"{where}: {low} {_say(shapes[low])} is above {high} {_say(shapes[high])}")


def _check_dimensions(spec: TensorSpec, shape: Shape, where: str) -> None:
    declared = spec.shape if spec.shape is not None else (None,) * len(shape)
    if len(shape) != len(declared):
        example = "x".join(str(length) if isinstance(length, int) else "1" for length in declared) or "scalar"
        raise UsageError(
            f"{where} {_say(shape)} has {len(shape)} dimensions, the model takes {_say_declared(spec)}",
            hint=f"Give all {len(declared)} of them, for example {spec.name}:{example}.",
        )
    for axis, (length, fixed) in enumerate(zip(shape, declared, strict=True)):
        if isinstance(fixed, int) and length != fixed:
            raise UsageError(f"{where} {_say(shape)} has {length} in dimension {axis}, which is fixed at {fixed}")


def _check_symbols(body: Mapping[str, Mapping[str, Shape]], specs: Mapping[str, TensorSpec], index: int) -> None:
    """Refuse two sizes for one symbol: `batch` of two inputs is the same batch."""
    seen: dict[tuple[str, str], tuple[int, str]] = {}
    for name, shapes in body.items():
        for axis, symbol in enumerate(specs[name].shape or ()):
            for point in _POINTS if isinstance(symbol, str) else ():
                length = shapes[point][axis]
                first, where = seen.setdefault((str(symbol), point), (length, name))
                if first != length:
                    sizes = f"{first} for input {where!r} and {length} for {name!r}"
                    raise UsageError(f"profile {index}: {point} of {symbol!r} is {sizes}")


def _free_axes(spec: TensorSpec) -> list[int]:
    return [axis for axis, length in enumerate(spec.shape or ()) if not isinstance(length, int)]


def _say(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "a scalar"


def _say_declared(spec: TensorSpec) -> str:
    return " x ".join("?" if length is None else str(length) for length in spec.shape or ()) or "a scalar"


def _say_dimension(spec: TensorSpec, axis: int) -> str:
    length = None if spec.shape is None else spec.shape[axis]
    return str(length) if length else f"dimension {axis}"
