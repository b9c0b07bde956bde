"""Looking at an engine's layers in another batch than the golden set's, where only that batch is wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelreg.registry.words import Json
from modelreg.validators.layers.interface import CandidateView, IsolatingView, SourceView

Array = NDArray[Any]
Arrays = Mapping[str, Array]


class AtBatch:
    """A candidate whose every run is made as large as a batch by repeating its samples; their first values are seen."""

    def __init__(
        self, candidate: CandidateView, isolating: IsolatingView | None, *, cut: frozenset[str], batch: int
    ) -> None:
        """
        Say what is run.

        Args:
            candidate: What is looked into.
            isolating: What runs its layers alone, for `run_isolated`.
            cut: The inputs with one row for each sample.
            batch: Samples of a run.
        """
        self._candidate, self._isolating, self._cut, self._batch = candidate, isolating, cut, batch

    @property
    def seen(self) -> Mapping[str, Json]:
        """Return what the candidate shows."""
        return self._candidate.seen

    def run_candidate(
        self, names: Sequence[str], inputs: Arrays
    ) -> tuple[Mapping[str, Array], Mapping[str, tuple[int, int]]]:
        """Return the values of the samples that were given, in a run of the batch."""
        size = self._size(inputs)
        found, cut_off = self._candidate.run_candidate(names, self._repeat(inputs, size, self._cut))
        part = size / self._batch
        less = {name: (round(below * part), round(above * part)) for name, (below, above) in cut_off.items()}
        return {name: self._first(array, size) for name, array in found.items()}, less

    def needs(self, names: Sequence[str], *, at: Sequence[str]) -> Sequence[str]:
        """Return what must be given."""
        assert self._isolating is not None
        return self._isolating.needs(names, at=at)

    def run_isolated(
        self, names: Sequence[str], inputs: Arrays, *, at: Sequence[str], given: Arrays
    ) -> Mapping[str, Array]:
        """Return what layers make of given values, in a run of the batch."""
        assert self._isolating is not None
        size = self._size(inputs)
        more = {name for name, array in given.items() if array.ndim and not array.shape[0] % size}
        found = self._isolating.run_isolated(
            names, self._repeat(inputs, size, self._cut), at=at, given=self._repeat(given, size, more)
        )
        return {name: self._first(array, size) for name, array in found.items()}

    def _size(self, inputs: Arrays) -> int:
        return max(1, *(len(inputs[name]) for name in self._cut))

    def _repeat(self, arrays: Arrays, size: int, names: frozenset[str] | set[str]) -> dict[str, Array]:
        times = math.ceil(self._batch / size)
        return {
            name: np.concatenate([array] * times)[: len(array) // size * self._batch] if name in names else array
            for name, array in arrays.items()
        }

    def _first(self, array: Array, size: int) -> Array:
        """Return the part of the samples that were given; what has no row for each is as it is."""
        return array[: len(array) // self._batch * size] if array.ndim and not len(array) % self._batch else array


class AtGolden:
    """A candidate as its own reference, run as the golden set is."""

    def __init__(self, source: SourceView, candidate: CandidateView, *, cut: frozenset[str], batch: int) -> None:
        """
        Say what is run.

        Args:
            source: For the names of its tensors.
            candidate: What is looked into.
            cut: The inputs with one row for each sample.
            batch: The golden set's.
        """
        self._source, self._candidate, self._cut, self._batch = source, candidate, cut, batch

    @property
    def tensors(self) -> Sequence[Json]:
        """Return what the source's nodes make."""
        return self._source.tensors

    @property
    def outputs(self) -> Sequence[str]:
        """Return the names of the outputs."""
        return self._source.outputs

    def shapes(self, names: Sequence[str], inputs: Arrays) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of tensors."""
        return self._source.shapes(names, inputs)

    def run_source(self, names: Sequence[str], inputs: Arrays) -> Mapping[str, Array]:
        """Return the candidate's own values, of runs of the golden set's batch."""
        size = max(len(inputs[name]) for name in self._cut)
        parts: dict[str, list[Array]] = {}
        for start in range(0, size, self._batch):
            rows = slice(start, start + self._batch)
            cut = {name: array[rows] if name in self._cut else array for name, array in inputs.items()}
            for name, array in self._candidate.run_candidate(names, cut)[0].items():
                parts.setdefault(name, []).append(array)
        return {name: arrays[0] if len(arrays) == 1 else np.concatenate(arrays) for name, arrays in parts.items()}
