"""Errors of an engine's output against the reference, in one blocked pass with float64 (or wider) sums.

Whole-array float32 sums over 1e8 values are off by 1e-3; a block of 128K summed in float32 by BLAS is right to
about 1e-6, so blocks are measured in their own type and added up in a wider one. A block that would overflow or
underflow there (huge values, denormals), or that holds a NaN or an infinity, is measured again in a wider type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelreg.config.policy import Metric
from modelreg.registry.words import Json
from modelreg.validators.formulas import cosine, product, sqnr_db
from modelreg.validators.histograms import ErrorHistogram

Array = NDArray[Any]

BLOCK_VALUES = 1 << 17
_CAREFUL_VALUES = 1 << 14
KEPT_SAMPLES = 5
_FEW = 32  # values of a block for each one that is worth picking out by its place
# Sums of squares inside these bounds have lost nothing to overflow or underflow.
_BOUNDS: dict[np.dtype[Any], tuple[float, float]] = {
    np.dtype(np.float32): (1e-25, 1e37),
    np.dtype(np.float64): (1e-260, 1e300),
}
_FLOAT32_EXACT = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "bool", "int8", "uint8", "int16", "uint16")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstSample:
    """One golden row and the largest absolute error in it; infinite where a value is not finite."""

    row: int
    max_abs: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputMetrics:
    """What was measured of one output over all samples; metrics are None where there was no value to measure.

    Attributes:
        values: Finite pairs of values that were compared.
        rows: Rows along axis 0 that were compared.
        nan_count: Candidate values that are NaN where the reference is not.
        inf_count: Candidate values that are infinite, or finite, where the reference is the other.
        measured: One number per metric. `max_relative` is a ratio with a floor: |error| / (|reference| + floor);
            `range_error` is the largest error as a part of `scale`; `sqnr_db` is infinite
            without any error; rates are from 0 to 1.
        worst: The rows with the largest absolute errors, the worst first.
        histogram: How the absolute errors are distributed; see `ErrorHistogram.to_json`.
    """

    values: int
    rows: int
    nan_count: int
    inf_count: int
    measured: dict[Metric, float]
    worst: tuple[WorstSample, ...]
    histogram: Json = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Return whether nothing at all was compared: no evidence."""
        return self.values + self.nan_count + self.inf_count == 0

    def to_json(self) -> Json:
        """Return the metrics as JSON; non-finite numbers become strings, since JSON has none."""
        return {
            "values": self.values,
            "rows": self.rows,
            "nan": self.nan_count,
            "inf": self.inf_count,
            **{str(metric): json_number(value) for metric, value in self.measured.items()},
            "worst": [{"row": w.row, "max_abs": json_number(w.max_abs)} for w in self.worst],
            "histogram": self.histogram,
        }


def json_number(value: float) -> float | str:
    """Return `value`, or its name where JSON has no such number."""
    return float(value) if np.isfinite(value) else str(float(value))


class MetricAccumulator:
    """Measures one output, batch by batch; memory does not grow with the number of batches.

    Args:
        scale: What an error is compared with, for example the reference's range over the whole set (see
            `reference_scale`); 0 if the reference is zero everywhere.
        relative_floor: Added to |reference| in the relative error; by default a thousandth of `scale`.
    """

    def __init__(self, *, scale: float, relative_floor: float | None = None) -> None:
        floor = scale * 1e-3 if relative_floor is None else relative_floor
        self._scale = scale
        self._floor = max(float(floor), float(np.finfo(np.float32).tiny))
        # |error|, error², reference², candidate², their product; in the widest float there is
        self._sums = np.zeros(5, dtype=np.longdouble)
        self._values = self._rows = self._nan = self._inf = self._mismatches = 0
        self._is_integer = False
        self._max_abs = self._max_relative = 0.0
        self._worst: list[WorstSample] = []
        self._histogram = ErrorHistogram()
        self._buffers: dict[Any, Array] = {}

    def update(self, reference: Array, candidate: Array) -> None:
        """Measure the next rows.

        Args:
            reference: Golden rows, shape (rows, ...); a scalar output's rows have shape (rows,).
            candidate: The engine's output, same shape; its dtype may differ.

        Raises:
            ValueError: The shapes differ.
        """
        if reference.shape != candidate.shape or not reference.ndim:
            raise ValueError(f"shapes {reference.shape} and {candidate.shape} cannot be compared row by row")
        rows = reference.shape[0]
        width = reference.size // rows if rows else 0
        if width:
            flat = (np.ascontiguousarray(reference).reshape(-1), np.ascontiguousarray(candidate).reshape(-1))
            with np.errstate(all="ignore"):
                self._update_flat(*flat, width)
        self._rows += rows

    @property
    def worst(self) -> tuple[WorstSample, ...]:
        """Return the rows with the largest errors so far, the worst first."""
        return tuple(self._worst)

    def result(self) -> OutputMetrics:
        """Return what was measured so far."""
        return OutputMetrics(
            values=self._values,
            rows=self._rows,
            nan_count=self._nan,
            inf_count=self._inf,
            measured=self._measured() if self._values else {},
            worst=self.worst,
            histogram=self._histogram.to_json(),
        )

    # -- blocks --------------------------------------------------------------------------------------------
    def _update_flat(self, reference: Array, candidate: Array, width: int) -> None:
        group = max(1, BLOCK_VALUES // width) * width
        base = _base_dtype(reference.dtype, candidate.dtype)
        self._is_integer = reference.dtype.kind in "iub"
        for start in range(0, reference.size, group):
            stop = min(reference.size, start + group)
            row = self._rows + start // width
            if width > BLOCK_VALUES:
                self._update_wide_row(reference[start:stop], candidate[start:stop], base, row)
                continue
            errors, worst = self._measure(reference[start:stop], candidate[start:stop], base)
            if self._is_worse(worst):
                self._keep_worst(row, errors.reshape(-1, width).max(axis=1))

    def _update_wide_row(self, reference: Array, candidate: Array, base: np.dtype[Any], row: int) -> None:
        worst = 0.0
        for start in range(0, reference.size, BLOCK_VALUES):
            part = slice(start, start + BLOCK_VALUES)
            worst = max(worst, self._measure(reference[part], candidate[part], base)[1])
        if self._is_worse(worst):
            self._keep_worst(row, np.array([worst]))

    def _measure(self, reference: Array, candidate: Array, base: np.dtype[Any]) -> tuple[Array, float]:
        """Add one block; return its absolute errors (infinite where not finite) and their maximum."""
        found = self._measure_sums(reference, candidate, base)
        self._histogram.add(found[0])
        return found

    def _measure_sums(self, reference: Array, candidate: Array, base: np.dtype[Any]) -> tuple[Array, float]:
        if self._is_integer:
            self._mismatches += int(np.count_nonzero(reference != candidate))
        for dtype in _BOUNDS:
            if dtype.itemsize < base.itemsize:
                continue
            r, c = self._cast("r", reference, dtype), self._cast("c", candidate, dtype)
            errors = self._measure_narrow(r, c, dtype)
            if errors is not None:
                return errors
        return self._measure_carefully(reference, candidate)

    def _measure_narrow(self, r: Array, c: Array, dtype: Any) -> tuple[Array, float] | None:
        d = np.subtract(r, c, out=self._buffer("d", dtype, r.size))
        a = np.abs(d, out=self._buffer("a", dtype, r.size))
        worst = float(a.max())
        low, high = _BOUNDS[dtype]
        if not worst < high:
            return None  # a NaN or an infinity somewhere
        squares = [float(np.dot(values, values)) for values in (d, r, c)]
        for square, values in zip(squares, (d, r, c), strict=True):
            if not square < high or (square < low and values.any()):
                return None
        self._add(r.size, [float(np.dot(a, self._ones(dtype, r.size))), *squares, product(r, c, squares)])
        self._max_abs = max(self._max_abs, worst)
        self._raise_max_relative(r, a, worst, dtype)
        return a, worst

    def _raise_max_relative(self, r: Array, a: Array, worst: float, dtype: Any) -> None:
        """Divide the errors that can exceed the largest so far: every divisor is the floor at least."""
        bound = self._max_relative * self._floor * (1 - 1e-6)  # a little less, for rounding
        if not worst > bound:
            return
        large = np.greater(a, bound, out=self._buffer("large", np.dtype(np.bool_), a.size))
        if np.count_nonzero(large) > a.size // _FEW:
            relative = np.abs(r, out=self._buffer("relative", dtype, r.size))
            relative += dtype.type(self._floor)
            np.divide(a, relative, out=relative)
        else:
            few = np.flatnonzero(large)
            relative = a[few] / (np.abs(r[few]) + dtype.type(self._floor))
        self._max_relative = max(self._max_relative, float(relative.max()))

    def _measure_carefully(self, reference: Array, candidate: Array) -> tuple[Array, float]:
        errors = self._buffer("careful", np.dtype(np.float64), reference.size)
        for start in range(0, reference.size, _CAREFUL_VALUES):
            part = slice(start, start + _CAREFUL_VALUES)
            errors[part] = self._measure_odd_values(reference[part], candidate[part])
        return errors, float(errors.max())

    def _measure_odd_values(self, reference: Array, candidate: Array) -> Array:
        """Measure in a type wider than any square, with what is not finite counted and set aside."""
        r, c = reference.astype(np.longdouble), candidate.astype(np.longdouble)
        good = np.isfinite(r) & np.isfinite(c)
        bad = ~good & (r != c) & ~(np.isnan(r) & np.isnan(c))
        nans = int(np.count_nonzero(np.isnan(c) & bad))
        self._nan += nans
        self._inf += int(np.count_nonzero(bad)) - nans
        r[~good] = 0
        c[~good] = 0
        d = r - c
        a: Array = np.abs(d)
        self._add(int(np.count_nonzero(good)), [a.sum(), d.dot(d), r.dot(r), c.dot(c), r.dot(c)])
        self._max_abs = max(self._max_abs, float(a.max()))
        self._max_relative = max(self._max_relative, float((a / (np.abs(r) + self._floor)).max()))
        a[bad] = np.inf
        return a

    def _add(self, values: int, sums: list[Any]) -> None:
        self._values += values
        self._sums += np.array(sums, dtype=np.longdouble)

    # -- worst rows ----------------------------------------------------------------------------------------
    def _is_worse(self, error: float) -> bool:
        return error > 0 and (len(self._worst) < KEPT_SAMPLES or error > self._worst[-1].max_abs)

    def _keep_worst(self, first_row: int, errors: Array) -> None:
        order = np.argsort(-errors, kind="stable")[:KEPT_SAMPLES]
        new = [WorstSample(row=first_row + int(i), max_abs=float(errors[i])) for i in order if errors[i] > 0]
        self._worst = sorted([*self._worst, *new], key=lambda w: (-w.max_abs, w.row))[:KEPT_SAMPLES]

    # -- buffers -------------------------------------------------------------------------------------------
    def _cast(self, name: str, values: Array, dtype: Any) -> Array:
        if values.dtype == dtype:
            return values
        buffer = self._buffer(name, dtype, values.size)
        buffer[...] = values
        return buffer

    def _buffer(self, name: str, dtype: Any, size: int) -> Array:
        return self._kept((name, dtype), lambda: np.empty(BLOCK_VALUES, dtype=dtype))[:size]

    def _ones(self, dtype: Any, size: int) -> Array:
        return self._kept(("ones", dtype), lambda: np.ones(BLOCK_VALUES, dtype=dtype))[:size]

    def _kept(self, key: tuple[str, Any], make: Callable[[], Array]) -> Array:
        if key not in self._buffers:
            self._buffers[key] = make()
        return self._buffers[key]

    # -- results -------------------------------------------------------------------------------------------
    def _measured(self) -> dict[Metric, float]:
        error, error2, reference2, candidate2, reference_candidate = self._sums
        with np.errstate(all="ignore"):
            measured = {
                Metric.MAX_ABS: self._max_abs,
                Metric.MEAN_ABS: float(error / self._values),
                Metric.RMSE: float(np.sqrt(error2 / self._values)),
                Metric.MAX_RELATIVE: self._max_relative,
                Metric.RANGE_ERROR: self._range_error(),
                Metric.COSINE: cosine(reference2, candidate2, reference_candidate),
                Metric.SQNR_DB: sqnr_db(reference2, error2),
            }
        if self._is_integer:
            measured[Metric.MISMATCH_RATE] = self._mismatches / self._values
        return measured

    def _range_error(self) -> float:
        if self._max_abs == 0:
            return 0.0
        return self._max_abs / self._scale if self._scale > 0 else float("inf")


@lru_cache(maxsize=64)  # `dtype.name` is slow beside a small batch
def _base_dtype(reference: Any, candidate: Any) -> np.dtype[Any]:
    narrow = all(d.name == "float32" or d.name in _FLOAT32_EXACT for d in (reference, candidate))
    return np.dtype(np.float32 if narrow else np.float64)
