"""What a golden set keeps of a reference's layers: which, of which samples, which elements. Pure.

Everything here follows from shapes and a byte budget by whole-number arithmetic, so that the same reference gives the
same elements on every machine, and a reader finds the places of what was kept in the set's metadata.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelreg.registry.errors import GoldenSetError
from modelreg.registry.tensor_sets import TensorSet
from modelreg.registry.words import Json

Array = NDArray[Any]

DEFAULT_BYTES = 256 << 20
METADATA = "activations"
PREFIX = "activation."
MODULE = re.compile(r"[#[]")
"""What ends a module's name in that of an activation."""
SCHEMA = 1
FEWEST_UNITS = 8
"""So many samples are worth more than all elements of fewer ones."""
_FEWEST_ELEMENTS = 16
_GOLDEN_RATIO = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Elements:
    """Which elements of a flattened tensor are kept: `count` of `of`, at `start`, `start + step`, … modulo `of`."""

    of: int
    count: int
    start: int
    step: int

    def places(self) -> NDArray[np.int64]:
        """Return the indices, ascending; they lie evenly in the tensor, whatever its strides are."""
        return np.sort((self.start + np.arange(self.count, dtype=np.int64) * self.step) % self.of)


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """
    One output of one call of a module.

    Attributes:
        name: What the golden set calls it: the module's name, `#2` for its second call, `[1]` for an item of a tuple.
        module: The module's name in its parent's `named_modules`.
        kind: The module's class.
        shape: Its shape in a run of `rows` samples.
        axis: The axis that counts the samples.
        per: Entries along that axis for each sample.
        elements: Which elements of a unit are kept; None for all.
    """

    name: str
    module: str
    kind: str
    shape: tuple[int, ...]
    axis: int
    per: int
    elements: Elements | None = None

    def unit_shape(self, *, rows: int) -> tuple[int, ...]:
        """Return the shape of what one unit keeps, all elements counted; `rows` is how many units `shape` has."""
        rest = (*self.shape[: self.axis], *self.shape[self.axis + 1 :])
        length = self.shape[self.axis] if self.shape else 1
        per = length // rows
        return rest if per == 1 and self.per == 1 else (per, *rest)

    def arrange(self, array: Array, *, units: int) -> Array:
        """
        Return an array of this activation's layout with one row for each unit.

        Raises:
            ValueError: Its shape is another one.
        """
        moved = np.moveaxis(array, self.axis, 0) if array.ndim else array.reshape(1)
        if moved.shape[0] != units * self.per:
            raise ValueError(f"{self.name} has shape {array.shape}, which is not of {units} samples")
        if self.per > 1:
            moved = moved.reshape(units, self.per, *moved.shape[1:])
        return moved

    def choose(self, arranged: Array) -> Array:
        """Return the kept elements of what `arrange` gave."""
        if self.elements is None:
            return arranged
        flat = arranged.reshape(len(arranged), -1)
        if flat.shape[1] != self.elements.of:
            raise ValueError(f"{self.name} has {flat.shape[1]} elements a sample, not {self.elements.of}")
        return flat[:, self.elements.places()]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptActivations:
    """
    What a golden set's metadata say of its activations.

    Attributes:
        unit: `sample`, or `run` where a layer's samples cannot be told apart.
        units: The numbers of the samples (or runs) that are kept, ascending.
        activations: In the order in which the reference made them.
        left_out: Why a module that was asked for is not there, by its name.
        budget_bytes: What they were chosen to fit in.
    """

    unit: str
    units: tuple[int, ...]
    activations: tuple[Activation, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    budget_bytes: int = DEFAULT_BYTES

    def to_text(self) -> str:
        """Return what goes into the metadata."""
        body = {
            "schema": SCHEMA,
            "unit": self.unit,
            "units": _as_ranges(self.units),
            "budget_bytes": self.budget_bytes,
            "activations": [asdict(each) for each in self.activations],
            "left_out": dict(self.left_out),
        }
        return json.dumps(body, separators=(",", ":"))

    def summary(self) -> Json:
        """Return how many there are, for the registry's record of the set."""
        return {
            "layers": len(self.activations),
            "unit": self.unit,
            "units": len(self.units),
            "sampled": sum(each.elements is not None for each in self.activations),
            "left_out": len(self.left_out),
        }


def read_kept(golden: TensorSet, *, samples: int | None = None) -> KeptActivations | None:
    """
    Return what a golden set says of its activations, or None where it has none.

    A set that was captured elsewhere says nothing: its activations are taken for whole where they have a row for each
    of `samples`.

    Raises:
        GoldenSetError: It was written by a program that this one does not know, or is damaged.
    """
    text = golden.metadata.get(METADATA)
    if text is None:
        return None if samples is None else _assume_whole(golden, samples)
    try:
        body = json.loads(text)
        if body["schema"] != SCHEMA:
            raise GoldenSetError(f"the activations have schema {body['schema']}, this program knows {SCHEMA}")
        return KeptActivations(
            unit=body["unit"],
            units=_from_ranges(body["units"]),
            activations=tuple(_activation(each) for each in body["activations"]),
            left_out=body["left_out"],
            budget_bytes=body["budget_bytes"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise GoldenSetError(f"what the golden set says of its activations is damaged: {error!r}") from error


def _assume_whole(golden: TensorSet, samples: int) -> KeptActivations | None:
    found = {key.removeprefix(PREFIX): info for key, info in golden.tensors.items() if key.startswith(PREFIX)}
    whole = {name: info for name, info in found.items() if info.shape[:1] == (samples,) and "float" in info.dtype}
    if not whole:
        return None
    return KeptActivations(
        unit="sample",
        units=tuple(range(samples)),
        activations=tuple(
            Activation(name=name, module=MODULE.split(name)[0], kind="", shape=info.shape, axis=0, per=1)
            for name, info in whole.items()
        ),
        left_out=dict.fromkeys(found.keys() - whole.keys(), "it has no row for each sample"),
    )


def plan_elements(
    sizes: Mapping[str, tuple[int, int]], *, budget_bytes: int, seed: int
) -> tuple[int, dict[str, Elements | None]]:
    """
    Return how many units fit into the budget, and of which activations only some elements are kept then.

    All elements are kept while eight units fit; else the largest activations are cut to one common size.

    Args:
        sizes: Elements of a unit, and bytes of an element, by name.
        budget_bytes: For all units.
        seed: Moves the first element.

    Raises:
        GoldenSetError: Not even sixteen elements of each activation fit.
    """
    whole = sum(count * width for count, width in sizes.values())
    if whole * FEWEST_UNITS <= budget_bytes:
        return budget_bytes // max(1, whole), dict.fromkeys(sizes)
    least = sum(min(count, _FEWEST_ELEMENTS) * width for count, width in sizes.values())
    if least > budget_bytes:
        raise GoldenSetError(
            f"{len(sizes)} activations do not fit into {budget_bytes} bytes: {least} is the least",
            hint="Raise --activation-bytes, or choose fewer modules with --activations.",
        )
    units = max(1, min(FEWEST_UNITS, budget_bytes // least))
    limit = _common_size(sizes, budget_bytes // units)
    return units, {
        name: None if count <= limit else _spread(name, of=count, count=limit, seed=seed)
        for name, (count, _) in sizes.items()
    }


def _common_size(sizes: Mapping[str, tuple[int, int]], budget_bytes: int) -> int:
    """Return the largest number of elements that every activation may keep."""
    low, high = _FEWEST_ELEMENTS, max(count for count, _ in sizes.values())
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(count, middle) * width for count, width in sizes.values()) <= budget_bytes:
            low = middle
        else:
            high = middle - 1
    return low


def _spread(name: str, *, of: int, count: int, seed: int) -> Elements:
    step = max(1, round(of * _GOLDEN_RATIO))
    while math.gcd(step, of) != 1:
        step += 1
    return Elements(of=of, count=count, start=(zlib.crc32(name.encode()) + seed) % of, step=step)


def _activation(body: Json) -> Activation:
    elements = body["elements"]
    return Activation(
        **{
            **body,
            "shape": tuple(body["shape"]),
            "elements": None if elements is None else Elements(**elements),
        }
    )


def _as_ranges(numbers: Sequence[int]) -> list[list[int]]:
    """Return numbers as `[first, count, step]`, which is short where they lie evenly."""
    ranges: list[list[int]] = []
    for number in numbers:
        last = ranges[-1] if ranges else None
        if last is not None and last[1] == 1:
            last[1], last[2] = 2, number - last[0]
        elif last is not None and number == last[0] + last[1] * last[2]:
            last[1] += 1
        else:
            ranges.append([number, 1, 1])
    return ranges


def _from_ranges(ranges: Sequence[Sequence[int]]) -> tuple[int, ...]:
    return tuple(first + index * step for first, count, step in ranges for index in range(count))
