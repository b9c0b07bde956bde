"""Feeding a few samples of a golden set to a model, a group at a time, for looking between its nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelreg.registry.contents import Signature
from modelreg.registry.tensor_sets import TensorSet
from modelreg.validators.activations import KeptActivations
from modelreg.validators.golden import INPUT, CheckedGolden

Array = NDArray[Any]

MOST_UNITS = 32
"""So many samples are looked at where a golden set does not say which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Some units: the inputs that make them, their numbers in the golden set, and their places among the kept ones."""

    inputs: dict[str, Array]
    numbers: tuple[int, ...]
    places: tuple[int, ...]

    @property
    def size(self) -> int:
        """Return how many units these are."""
        return len(self.places)


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """
    The samples that are looked at; or whole runs, of a model that fixes how many samples it takes.

    Attributes:
        is_run: Whether a unit is a run.
        numbers: Which of the golden set's.
        places: Their places among the kept activations.
    """

    golden: TensorSet
    checked: CheckedGolden
    free: frozenset[str]
    is_run: bool
    numbers: tuple[int, ...]
    places: tuple[int, ...]

    def groups(self, size: int) -> Iterator[Group]:
        """Yield groups of at most `size` units."""
        step = 1 if self.is_run else max(1, size)
        for start in range(0, len(self.numbers), step):
            stop = min(len(self.numbers), start + step)
            numbers = self.numbers[start:stop]
            yield Group(inputs=self._inputs(numbers), numbers=numbers, places=self.places[start:stop])

    def _inputs(self, numbers: Sequence[int]) -> dict[str, Array]:
        return {name: self._input(name, rows, numbers) for name, rows in self.checked.feed.rows.items()}

    def _input(self, name: str, rows: int | None, numbers: Sequence[int]) -> Array:
        key = INPUT + name
        if rows is None:
            return self.golden.read(key)
        if not self.is_run and name in self.free:
            return np.concatenate([self.golden.read(key, number, number + 1) for number in numbers])
        (number,) = numbers[:1]
        if rows == 0:
            return self.golden.read(key, number, number + 1).reshape(())
        return self.golden.read(key, number * rows, min(self.golden.tensors[key].rows, (number + 1) * rows))


def choose_units(
    golden: TensorSet,
    checked: CheckedGolden,
    signature: Signature,
    kept: KeptActivations | None,
    *,
    most: int,
    worst: Sequence[int] = (),
) -> Units:
    """
    Return which samples are looked at: the kept ones, evenly fewer where there are more than `most`.

    `worst` are samples whose outputs are known to be bad: up to half of those that are looked at are of them, since an
    error that few samples have is in no even choice.
    """
    free = frozenset(
        s.name for s in signature.inputs if s.shape is None or (s.shape and not isinstance(s.shape[0], int))
    )
    if kept is not None:
        is_run, known = kept.unit == "run", kept.units
    else:
        is_run = not free
        known = tuple(range(checked.feed.runs if is_run else checked.samples))
    places = _choose_places(known, min(most, len(known)), worst=() if is_run else worst)
    return Units(
        golden=golden,
        checked=checked,
        free=free,
        is_run=is_run,
        numbers=tuple(known[place] for place in places),
        places=places,
    )


def _choose_places(known: Sequence[int], count: int, *, worst: Sequence[int]) -> tuple[int, ...]:
    place_of = {number: place for place, number in enumerate(known)}
    chosen = list(dict.fromkeys(place_of[number] for number in worst if number in place_of))[: count // 2]
    others = [place for place in range(len(known)) if place not in set(chosen)]
    rest = count - len(chosen)
    return tuple(sorted([*chosen, *(others[index * len(others) // rest] for index in range(rest))]))


def arrange(array: Array, *, is_run: bool, units: int) -> Array:
    """Return a tensor of a run with one row for each unit, or as one row where its samples cannot be told apart."""
    if is_run or array.ndim == 0 or array.shape[0] % units:
        return array[None]
    return array if array.shape[0] == units else array.reshape(units, -1)
