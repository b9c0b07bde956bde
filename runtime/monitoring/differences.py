"""How far an answer is from the reference's: sums that add up over samples, and what follows from them. Pure.

The formulas are those of the gates (docs/policies.md), over fewer values, so float64 throughout is quick enough.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """
    What one or more answers of one output came to beside the reference.

    Attributes:
        samples: Answers that were compared.
        max_abs: Largest absolute error.
        error2: Sum of squared errors; `reference2`, `candidate2` and `product` are the sums for SQNR and cosine.
        reference2: See there.
        candidate2: See there.
        product: See there.
        rows: Rows with a top-1, of outputs of shape (rows, classes); 0 for others.
        agreeing: Rows of the same top-1.
        not_finite: Values that are NaN or Inf where the reference's are not, or the other way round.
    """

    samples: int
    max_abs: float
    error2: float
    reference2: float
    candidate2: float
    product: float
    rows: int = 0
    agreeing: int = 0
    not_finite: int = 0

    @property
    def sqnr_db(self) -> float:
        """Return signal to noise in decibels; infinite without any error."""
        if self.error2 == 0:
            return math.inf
        ratio = self.reference2 / self.error2  # 0 too where the one is too small, or the other too large, to be divided
        return 10 * math.log10(ratio) if ratio > 0 else -math.inf

    @property
    def relative_rmse(self) -> float:
        """Return the RMS of the error over that of the reference, a ratio."""
        if self.error2 == 0:
            return 0.0
        return math.sqrt(self.error2 / self.reference2) if self.reference2 > 0 else math.inf

    @property
    def cosine(self) -> float:
        """Return the cosine; 1 for two zero vectors, 0 where only one is zero."""
        if self.reference2 == 0 or self.candidate2 == 0:
            return 1.0 if self.reference2 == self.candidate2 else 0.0
        return min(1.0, max(-1.0, self.product / (math.sqrt(self.reference2) * math.sqrt(self.candidate2))))

    @property
    def top1_agreement(self) -> float | None:
        """Return the part of rows with the same top-1; None where there are no classes."""
        return self.agreeing / self.rows if self.rows else None


def compare(reference: Array, candidate: Array) -> Difference:
    """
    Return the difference of one answer.

    Args:
        reference: The reference's output, any shape.
        candidate: The engine's, same shape; its dtype may differ.

    Raises:
        ValueError: The shapes differ.
    """
    if reference.shape != candidate.shape:
        raise ValueError(f"the shapes {list(reference.shape)} and {list(candidate.shape)} differ")
    rows, agreeing = _top1(reference, candidate)
    exact, found = (np.asarray(each, dtype=np.float64).ravel() for each in (reference, candidate))
    good = np.isfinite(exact) & np.isfinite(found)
    odd = ~good & (exact != found) & ~(np.isnan(exact) & np.isnan(found))
    if not good.all():
        exact, found = exact[good], found[good]
    error = found - exact
    return Difference(
        samples=1,
        max_abs=float(np.abs(error).max(initial=0.0)),
        error2=float(error @ error),
        reference2=float(exact @ exact),
        candidate2=float(found @ found),
        product=float(exact @ found),
        rows=rows,
        agreeing=agreeing,
        not_finite=int(np.count_nonzero(odd)),
    )


def _top1(reference: Array, candidate: Array) -> tuple[int, int]:
    if reference.ndim != 2 or reference.shape[1] < 2 or reference.dtype.kind not in "fiu":
        return 0, 0
    same = np.argmax(reference, axis=1) == np.argmax(candidate, axis=1)
    return len(same), int(np.count_nonzero(same))


def add_up(differences: Iterable[Difference]) -> Difference | None:
    """Return what several answers came to together; None of none. Sums are added, so large answers weigh more."""
    found = list(differences)
    if not found:
        return None
    return Difference(
        samples=sum(each.samples for each in found),
        max_abs=max(each.max_abs for each in found),
        error2=math.fsum(each.error2 for each in found),
        reference2=math.fsum(each.reference2 for each in found),
        candidate2=math.fsum(each.candidate2 for each in found),
        product=math.fsum(each.product for each in found),
        rows=sum(each.rows for each in found),
        agreeing=sum(each.agreeing for each in found),
        not_finite=sum(each.not_finite for each in found),
    )
