"""Formulas of metrics, over a block or over sums that were made elsewhere. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def reference_scale(smallest: float, largest: float) -> float:
    """Return the range of an output's values, but at least a tenth of the largest magnitude.

    A set with a few nearly equal values has hardly a range, and rounding alone would be large beside it.
    """
    return max(largest - smallest, 0.1 * max(abs(largest), abs(smallest)))


def product(r: Array, c: Array, squares: list[float]) -> float:
    """Return r·c, given (r - c)², r² and c²: of about equal norms it follows from them as precisely, one pass less."""
    error2, reference2, candidate2 = squares
    if reference2 < 4 * candidate2 and candidate2 < 4 * reference2:
        return (reference2 + candidate2 - error2) / 2
    return float(np.dot(r, c))


def cosine(reference2: Any, candidate2: Any, product: Any) -> float:
    """Return the cosine; 1 for two zero vectors, 0 where only one is zero."""
    if reference2 == 0 or candidate2 == 0:
        return 1.0 if reference2 == candidate2 else 0.0
    found = product / (np.sqrt(reference2) * np.sqrt(candidate2))
    return float(min(np.longdouble(1), max(np.longdouble(-1), found)))


def sqnr_db(reference2: Any, error2: Any) -> float:
    """Return signal to noise in decibels; infinite without noise, minus infinite with noise alone."""
    if error2 == 0:
        return float("inf")
    if reference2 == 0:
        return float("-inf")
    return float(10 * np.log10(reference2 / error2))
