"""What a comparison of layers needs of the two models: something that looks between their nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from modelreg.registry.words import Json

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]
    Arrays = Mapping[str, Array]


class SourceView(Protocol):
    """The source's values between its nodes."""

    @property
    def tensors(self) -> Sequence[Json]:
        """Return what nodes make, in order of execution: `name`, `node`, `op`, `inputs`."""
        ...

    @property
    def outputs(self) -> Sequence[str]:
        """Return the names of the model's outputs."""
        ...

    def shapes(self, names: Sequence[str], inputs: Arrays) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of tensors in a run."""
        ...

    def run_source(self, names: Sequence[str], inputs: Arrays) -> Mapping[str, Array]:
        """Return values in FP32."""
        ...


class CandidateView(Protocol):
    """A candidate's values under the names of the source's tensors."""

    @property
    def seen(self) -> Mapping[str, Json]:
        """Return which tensors the candidate still has; `low` and `high` are the ends of a quantised range."""
        ...

    def run_candidate(
        self, names: Sequence[str], inputs: Arrays
    ) -> tuple[Mapping[str, Array], Mapping[str, tuple[int, int]]]:
        """Return values as their readers get them, and how many were cut off below and above the quantised range."""
        ...


class IsolatingView(Protocol):
    """A candidate whose layers can be run alone."""

    @property
    def seen(self) -> Mapping[str, Json]:
        """Return which tensors it has."""
        ...

    def needs(self, names: Sequence[str], *, at: Sequence[str]) -> Sequence[str]:
        """Return which of the tensors `at` must be given to run the layers that make `names` alone."""
        ...

    def run_isolated(
        self, names: Sequence[str], inputs: Arrays, *, at: Sequence[str], given: Arrays
    ) -> Mapping[str, Array]:
        """Return what layers make of given values."""
        ...
