"""Has a measurement of one engine changed for the worse, night by night? Pure, and exact where it speaks of chance.

The same plan over the same golden set is measured every night, so nothing should move but noise. Three questions:

1. A step: does tonight lie beyond the nights before by more than `SPREADS` robust spreads (1.4826 times the median
   absolute deviation) and by more than what anybody would care about (`Rule.floor`)? What is noisy (latency) must do so
   three nights in a row before it is called drift; before that it is an outlier.
2. A creep: in pairs of nights half the window apart, is the later one worse so often that chance does so in one case of
   a hundred at most (the exact sign test of Cox and Stuart), and is the second half worse than the first by the floor?
3. Too few nights? Then nobody can say: inconclusive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from modelreg.registry.words import Json, Word

WINDOW = 30
"""So many nights before this one are looked at."""
FEWEST = 7
"""With fewer nights to compare with, nothing is said."""
SPREADS = 5.0
SIGNIFICANCE = 0.01
_TO_SIGMA = 1.4826  # the median absolute deviation of a normal distribution, as its standard deviation


class Trend(Word):
    """What a series of nights came to."""

    STEADY = "steady"
    BETTER = "better"
    OUTLIER = "outlier"
    DRIFT = "drift"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """
    How a measurement is judged.

    Attributes:
        higher_is_better: Which way is worse.
        absolute: The smallest change that matters, in the measurement's unit.
        relative: The same as a part of the median; the larger of the two counts.
        confirmed_by: So many nights in a row, this one the last, must lie beyond before it is drift.
    """

    higher_is_better: bool
    absolute: float = 0.0
    relative: float = 0.0
    confirmed_by: int = 1

    def floor(self, center: float) -> float:
        """Return the smallest change from `center` that matters."""
        return max(self.absolute, self.relative * abs(center))

    def worse_by(self, value: float, center: float) -> float:
        """Return how much worse a value is than another, negative where it is better."""
        return center - value if self.higher_is_better else value - center


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """What was found of one measurement; `nights` are those that tonight was compared with, `spread` is robust."""

    trend: Trend
    tonight: float
    nights: int
    center: float | None = None
    spread: float | None = None
    reason: str = ""

    def to_json(self) -> Json:
        """Return it as JSON."""
        return {
            "trend": str(self.trend),
            "tonight": self.tonight,
            "nights": self.nights,
            "median": self.center,
            "spread": self.spread,
            "reason": self.reason,
        }


def judge_series(history: Sequence[float], tonight: float, rule: Rule) -> Drift:
    """
    Return whether tonight shows drift.

    Args:
        history: The nights before, the oldest first; the last `WINDOW` count.
        tonight: Tonight's value.
        rule: What matters, and which way.
    """
    earlier = list(history[-WINDOW:])
    recent = [*(earlier[len(earlier) - rule.confirmed_by + 1 :] if rule.confirmed_by > 1 else ()), tonight]
    base = earlier[: len(earlier) - len(recent) + 1]
    if len(base) < FEWEST:
        needed = FEWEST + rule.confirmed_by - 1
        reason = f"{len(earlier)} of the {needed} nights that are needed"
        return Drift(trend=Trend.INCONCLUSIVE, tonight=tonight, nights=len(earlier), reason=reason)
    center, spread = median(base), _spread(base)
    margin = max(rule.floor(center), SPREADS * spread)
    trend, reason = Trend.STEADY, ""
    if rule.worse_by(tonight, center) > margin:
        if all(rule.worse_by(value, center) > margin for value in recent):
            trend, reason = Trend.DRIFT, _say_step(tonight, center, len(recent))
        else:
            trend, reason = Trend.OUTLIER, f"{_say_step(tonight, center, 1)}; the night before was not"
    elif rule.worse_by(tonight, center) < -margin:
        trend, reason = Trend.BETTER, f"{tonight:.5g} after a median of {center:.5g}"
    if trend is not Trend.DRIFT and (creep := _find_creep([*earlier, tonight], rule)):
        trend, reason = Trend.DRIFT, creep
    return Drift(trend=trend, tonight=tonight, nights=len(earlier), center=center, spread=spread, reason=reason)


def sign_chance(worse: int, better: int) -> float:
    """Return how probable it is that at least `worse` of all pairs are worse, if both were as probable. Exact."""
    pairs = worse + better
    return float(sum(math.comb(pairs, k) for k in range(worse, pairs + 1)) / 2**pairs)


def _spread(values: Sequence[float]) -> float:
    center = median(values)
    return _TO_SIGMA * median(abs(value - center) for value in values)


def _find_creep(values: Sequence[float], rule: Rule) -> str:
    """Return what is to be said of a series that gets worse little by little, or an empty string."""
    half = len(values) // 2
    first, second = values[:half], values[len(values) - half :]
    worse_by = [rule.worse_by(late, early) for early, late in zip(first, second, strict=True)]
    worse, better = sum(each > 0 for each in worse_by), sum(each < 0 for each in worse_by)
    if not worse or sign_chance(worse, better) > SIGNIFICANCE:
        return ""
    before, after = median(first), median(second)
    if rule.worse_by(after, before) <= rule.floor(before):
        return ""
    return (
        f"it creeps: {worse} of {worse + better} pairs of nights are worse, the median went from {before:.5g} to"
        f" {after:.5g} in {len(values)} nights"
    )


def _say_step(tonight: float, center: float, nights: int) -> str:
    times = "" if nights == 1 else f", for {nights} nights"
    return f"{tonight:.5g} after a median of {center:.5g}{times}"
