"""How errors are distributed: a count for each power of two, in memory that does not grow with the number of values.

The bin of a float is its exponent, which its bits hold: no logarithm is computed. All errors count up to half a
million; of more, every eighth block is looked at, and in it one error in 37 (a prime, so that no axis of an output is
met at the same place again and again): a look at all would cost as much as all metrics together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelreg.registry.words import Json

Array = NDArray[Any]

ALL_COUNT_UP_TO = 1 << 19
STRIDE = 37
_BLOCKS = 8
_LOWEST, _HIGHEST = -126, 128  # FP32's normal exponents; what lies outside is zero to it, or infinite
_FIELDS = {np.dtype(np.float32): (np.int32, 23, 127), np.dtype(np.float64): (np.int64, 52, 1023)}


class ErrorHistogram:
    """Counts of absolute errors; the bin of exponent e holds those from 2^e up to 2^(e+1)."""

    def __init__(self) -> None:
        self._counts = np.zeros(_HIGHEST - _LOWEST + 2, dtype=np.int64)  # below, the exponents, not finite
        self._seen = self._blocks = 0

    def add(self, errors: Array) -> None:
        """
        Count errors.

        Args:
            errors: Not negative, contiguous, float32 or float64; what is not finite is counted apart.
        """
        weight = 1
        self._seen += errors.size
        if self._seen > ALL_COUNT_UP_TO:
            self._blocks += 1
            if self._blocks % _BLOCKS != 1:
                return
            errors, weight = np.ascontiguousarray(errors[::STRIDE]), STRIDE * _BLOCKS
        integer, shift, bias = _FIELDS[errors.dtype]
        exponents = (errors.view(integer) >> shift) - bias
        found = np.bincount(np.clip(exponents, _LOWEST - 1, _HIGHEST) - (_LOWEST - 1), minlength=len(self._counts))
        self._counts += weight * found

    def to_json(self) -> Json:
        """
        Return the counts as JSON: `zeros` (below 2^-126), `not_finite`, and one bin for each exponent that occurred and
        all between them. `sampled` says that only a part of the errors was looked at.
        """
        exponents = self._counts[1:-1]
        present = np.flatnonzero(exponents)
        first, last = (int(present[0]), int(present[-1]) + 1) if present.size else (0, 0)
        return {
            "first_exponent": first + _LOWEST,
            "counts": [int(number) for number in exponents[first:last]],
            "zeros": int(self._counts[0]),
            "not_finite": int(self._counts[-1]),
            "sampled": self._blocks > 0,
        }
