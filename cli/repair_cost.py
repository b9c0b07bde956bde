"""What a repair cost: size, and the time of a run, measured in turns on the same inputs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from modelreg.registry.words import Json
    from modelreg.runtime.runner import WorkerRunner

    Arrays = dict[str, NDArray[np.generic]]

_PAIRS = 40
_WARM_UP = 5
_LONGEST_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """
    An unrepaired engine beside the repaired one; times are medians of one run in milliseconds.

    Attributes:
        fp32_size_bytes: What the cell takes in FP32.
    """

    size_bytes: tuple[int, int]
    latency_ms: tuple[float, float] | None
    samples: int
    fp32_size_bytes: int

    @property
    def saves_nothing(self) -> bool:
        """Whether the repaired engine takes no less room than FP32."""
        return self.size_bytes[1] >= self.fp32_size_bytes

    def to_json(self) -> Json:
        """Return the cost as JSON: before and after."""
        return {
            "size_bytes": list(self.size_bytes),
            "fp32_size_bytes": self.fp32_size_bytes,
            "latency_ms": None if self.latency_ms is None else list(self.latency_ms),
            "samples_per_run": self.samples,
        }


def time_in_turns(
    openers: tuple[Callable[[], WorkerRunner], Callable[[], WorkerRunner]], inputs: Arrays
) -> tuple[float, float]:
    """
    Return the median milliseconds of one run of each engine, run in turns so that both see the same machine.

    The time is the host's, with the way of inputs and outputs between two processes, which is the same for both.
    """
    with ExitStack() as stack:
        runners = [stack.enter_context(opener()) for opener in openers]
        times: tuple[list[float], list[float]] = ([], [])
        began = time.monotonic()
        for turn in range(_WARM_UP + _PAIRS):
            for index, runner in enumerate(runners):
                start = time.perf_counter()
                runner.run(inputs)
                if turn >= _WARM_UP:
                    times[index].append((time.perf_counter() - start) * 1e3)
            if times[1] and time.monotonic() - began > _LONGEST_S:
                break
        return statistics.median(times[0]), statistics.median(times[1])
