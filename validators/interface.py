"""What a validation needs of an engine: something that runs it, once or in several ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Runner(Protocol):
    """An engine that is loaded and ready."""

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """Return the engine's outputs by the ONNX's names."""
        ...

    @property
    def overflows(self) -> Mapping[str, int] | None:
        """Return how many finite values became infinite so far, by the node that made them, in order of execution.

        None where the values between nodes cannot be seen.
        """
        ...

    @property
    def ranges(self) -> Sequence[Mapping[str, Any]] | None:
        """Return how quantised values used their ranges so far, in order of execution, as `RangeUse` has it.

        None where the values between nodes cannot be seen.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeUse:
    """
    How the values of one quantised tensor used the range that it was calibrated to.

    Attributes:
        node: What makes the tensor.
        saturated: Values cut off by more than a tenth of the range; where the range ends at zero because the values
            before a ReLU are quantised, those below zero are not counted.
        values: Values in all.
        use: The part of the range that lies between the smallest and the largest value, from 0 to 1.
    """

    node: str
    saturated: int
    values: int
    use: float

    @property
    def saturation(self) -> float:
        """Return the part of the values that is cut off."""
        return self.saturated / self.values if self.values else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPass:
    """One way to run an engine; every pass must satisfy the policy.

    An FP16 engine of ONNX Runtime is run as the saved plan, and once more with the rounding of real FP16 kept: the
    plan alone computes in FP32 and would hide an overflow. The variant of an INT8 engine is run over a part of the
    golden set to look at its ranges.

    Attributes:
        looks_inside: Whether the pass only looks at the values between nodes, and its outputs are those of another
            pass: they are not judged again.
        samples: How many samples of the golden set it is run on; None for all.
    """

    name: str
    open_runner: Callable[[], AbstractContextManager[Runner]]
    looks_inside: bool = False
    samples: int | None = None


Progress = Callable[[str, int, int], None]
"""Called with the pass's name, the samples done and the samples in all."""


def no_progress(_name: str, _done: int, _total: int) -> None:
    """Ignore progress."""
