"""What a validation needs of an engine: something that runs it, once or in several ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPass:
    """One way to run an engine; every pass must satisfy the policy.

    An FP16 engine of ONNX Runtime is run as the saved plan, and once more with the rounding of real FP16 kept: the
    plan alone computes in FP32 and would hide an overflow.
    """

    name: str
    open_runner: Callable[[], AbstractContextManager[Runner]]


Progress = Callable[[str, int, int], None]
"""Called with the pass's name, the samples done and the samples in all."""


def no_progress(_name: str, _done: int, _total: int) -> None:
    """Ignore progress."""
