"""Two engines timed in turns on the same inputs, and how sure the difference is.

Paired, so that a busy host slows both.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from modelreg.registry.words import Json, Word

Array = NDArray[Any]

ROUNDS = 24
MIN_ROUNDS = 8
BUDGET_S = 6.0
"""After so many seconds no further round is begun, once there are `MIN_ROUNDS`."""
RESAMPLES = 4000
CONFIDENCE = 0.95


class Standing(Word):
    """What a paired comparison came to."""

    BETTER = "better"
    WORSE = "worse"
    INCONCLUSIVE = "inconclusive"


@runtime_checkable
class Timed(Protocol):
    """An engine that can be timed."""

    def time_block(self, inputs: Mapping[str, Array]) -> float:
        """Return the median milliseconds of a few runs on the same inputs."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedLatency:
    """
    The latency of one engine as a part of another's.

    Attributes:
        ratio: Median over the rounds; below 1 the first one is faster.
        low: Lower end of the bootstrap interval of 95 %; `high` the upper end.
        first_ms: Median milliseconds of the first engine; `second_ms` of the second.
    """

    ratio: float
    low: float
    high: float
    first_ms: float
    second_ms: float
    rounds: int
    samples: int

    def standing(self, *, at_most: float = 1.0) -> Standing:
        """Return whether the ratio is surely below a number, surely above it, or neither."""
        if self.high < at_most:
            return Standing.BETTER
        return Standing.WORSE if self.low > at_most else Standing.INCONCLUSIVE

    def __str__(self) -> str:
        return f"{self.ratio:.3g} times the latency ({self.low:.3g} to {self.high:.3g})"

    def to_json(self) -> Json:
        """Return it as JSON."""
        return {
            "ratio": self.ratio,
            "low": self.low,
            "high": self.high,
            "confidence": CONFIDENCE,
            "first_ms": self.first_ms,
            "second_ms": self.second_ms,
            "rounds": self.rounds,
            "samples": self.samples,
            "standing": str(self.standing()),
        }


def time_in_turns(first: Timed, second: Timed, inputs: Mapping[str, Array], *, samples: int) -> PairedLatency:
    """
    Return how two engines compare, each round one block of each, the order changing from round to round.

    Args:
        first: The engine in question.
        second: What it is compared with.
        inputs: Of one run; both take the same.
        samples: How many samples these are, for the report.
    """
    for engine in (first, second):
        engine.time_block(inputs)  # warm
    times: list[tuple[float, float]] = []
    began = time.monotonic()
    while len(times) < ROUNDS and (len(times) < MIN_ROUNDS or time.monotonic() - began < BUDGET_S):
        if len(times) % 2:
            other = second.time_block(inputs)
            times.append((first.time_block(inputs), other))
        else:
            own = first.time_block(inputs)
            times.append((own, second.time_block(inputs)))
    return compare_pairs(np.array(times), samples=samples)


def compare_pairs(times: Array, *, samples: int, seed: int = 0) -> PairedLatency:
    """
    Return the ratio with its interval, by resampling whole rounds.

    Args:
        times: Milliseconds, shape (rounds, 2), greater than zero.
        samples: Samples of one run.
        seed: Chooses the resamples: equal times give equal intervals.
    """
    ratios = times[:, 0] / times[:, 1]
    chosen = np.random.default_rng(seed).integers(0, len(ratios), (RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(ratios[chosen], axis=1), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    first, second = np.median(times, axis=0)
    return PairedLatency(
        ratio=float(np.median(ratios)),
        low=float(low),
        high=float(high),
        first_ms=float(first),
        second_ms=float(second),
        rounds=len(times),
        samples=samples,
    )
