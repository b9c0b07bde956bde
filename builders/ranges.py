"""Ranges of activations on a calibration set, by ONNX Runtime's calibrators. Runs in the child process.

Two passes over the set, one batch at a time: the first finds each tensor's extremes, the second fills histograms of
fixed edges. So memory stays at one batch, and the batch size changes no range.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from modelreg.builders.calibration import iterate_batches
from modelreg.builders.graphs import NothingToConvertError, VariantError
from modelreg.registry.tensor_sets import open_tensor_set

_SMALLEST_BOUND = np.float32(1e-30)
"""Below about 1e-38 times the number of bins, the edges of a histogram are no longer distinct."""

_MASKED = 1e30
"""No layer computes such values: they are masks (PyTorch's for attention is -3.4e38), and no range can hold both."""

Report = Callable[[float | None, str], None]
Batch = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRanges:
    """
    What calibration came to.

    Attributes:
        ranges: By tensor, as ONNX Runtime's quantiser wants them.
        masked: The tensors with masked values in them: 256 levels cannot tell their other values apart.
    """

    ranges: Any
    masked: frozenset[str]


def find_ranges(
    model: Path,
    op_types: list[str],
    *,
    how: Mapping[str, Any],
    calibration: Mapping[str, Any],
    is_big: bool,
    report: Report,
) -> FoundRanges:
    """
    Return the range of every activation that nodes of these types take or give; masked ones have none.

    Args:
        model: The ONNX with inferred shapes, in a folder that can take files.
        op_types: Of which nodes.
        how: The calibration part of the recipe.
        calibration: What `CalibrationSet.to_request` gave.
        is_big: Whether weights lie outside of the ONNX file.
        report: Told about the passes.

    Raises:
        NothingToConvertError: There is no such activation.
        VariantError: An activation is not finite on the calibration set.
    """
    from onnxruntime.quantization import CalibrationMethod
    from onnxruntime.quantization.calibrate import create_calibrator

    passes = 1 if how["method"] == "minmax" else 2

    def create(method: Any, name: str, options: dict[str, Any]) -> Any:
        augmented = str(model.with_name(f"{name}.onnx"))
        return create_calibrator(
            model,
            op_types,
            augmented_model_path=augmented,
            calibrate_method=method,
            use_external_data_format=is_big,
            extra_options=options,
        )

    extremes = create(CalibrationMethod.MinMax, "extremes", {})
    for batch in _batches(calibration, report, 1, passes):
        extremes.collect_data(_Once(batch))
    ranges = extremes.compute_data()
    if not list(ranges):
        raise NothingToConvertError(
            "no node of this model can be quantised: none works on FP32 tensors of a known type",
            hint="Build fp32 or fp16 instead.",
        )
    _require_finite(ranges)
    masked = _take_masked(ranges)
    if passes == 1 or not any(True for _ in ranges):  # with everything excluded there is nothing to count
        return FoundRanges(ranges=ranges, masked=masked)
    method, options = _histogram(how)
    report(0.45, "calibrating: making ready for pass 2 of 2")  # which loads the network once more
    histograms = create(method, "histograms", options)
    histograms.collector = _seeded_collector(histograms, ranges, left_out=masked)
    for batch in _batches(calibration, report, 2, passes):
        histograms.collect_data(_Once(batch))
    report(0.85, f"choosing ranges by {how['method']}")
    return FoundRanges(ranges=histograms.compute_data(), masked=masked)


def _histogram(how: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    from onnxruntime.quantization import CalibrationMethod

    if how["method"] == "entropy":
        return CalibrationMethod.Entropy, {"num_bins": how["bins"], "num_quantized_bins": how["levels"]}
    options = {"num_bins": how["bins"], "percentile": how["percentile"], "symmetric": False}
    return CalibrationMethod.Percentile, options


def _take_masked(ranges: Any) -> frozenset[str]:
    """Take the tensors with masked values out of the ranges; return their names."""
    masked = frozenset(
        name for name in ranges if max(float(np.abs(value).max()) for value in ranges[name].range_value) >= _MASKED
    )
    for name in masked:
        del ranges.data[name]
    return masked


def _seeded_collector(calibrator: Any, ranges: Any, *, left_out: Collection[str]) -> Any:
    """Return a collector whose histograms have their final edges from the start."""
    from onnxruntime.quantization.calibrate import HistogramCollector

    class Collector(HistogramCollector):  # type: ignore[misc]
        def collect(self, name_to_arr: Mapping[str, Any]) -> Any:
            return super().collect({name: each for name, each in name_to_arr.items() if name not in left_out})

    collector = Collector(
        method=calibrator.method,
        symmetric=calibrator.symmetric,
        num_bins=calibrator.num_bins,
        num_quantized_bins=calibrator.num_quantized_bins,
        percentile=calibrator.percentile,
        scenario=calibrator.scenario,
    )
    for name in ranges:
        low, high = (np.float32(np.asarray(value).reshape(-1)[0]) for value in ranges[name].range_value)
        bound = np.float32(max(abs(low), abs(high)))
        if bound > 0:
            bound = max(bound, _SMALLEST_BOUND)
        edges = np.histogram_bin_edges([], bins=calibrator.num_bins, range=(-bound, bound)).astype(np.float32)
        empty = np.zeros(calibrator.num_bins, dtype=np.int64)
        collector.histogram_dict[name] = (empty, edges, low, high, bound)
    return collector


def _require_finite(ranges: Any) -> None:
    for name in ranges:
        if not all(np.isfinite(value).all() for value in ranges[name].range_value):
            raise VariantError(
                f"tensor {name!r} is not finite on the calibration set",
                hint="The model overflows in FP32 on these inputs: check their preprocessing.",
            )


def _batches(calibration: Mapping[str, Any], report: Report, number: int, passes: int) -> Iterator[Batch]:
    total = len(calibration["rows"])
    done = 0
    with open_tensor_set(Path(calibration["path"])) as tensors:
        for batch in iterate_batches(tensors, dict(calibration)):
            yield batch
            done = min(total, done + calibration["batch"])
            part = (number - 1 + done / total) / passes
            report(0.1 + 0.7 * part, f"calibrating, pass {number} of {passes}: {done} of {total} samples")


class _Once:
    """A calibration reader of one batch (ONNX Runtime asks for `get_next` alone)."""

    def __init__(self, batch: Batch) -> None:
        self._batch: Batch | None = batch

    def get_next(self) -> Batch | None:
        batch, self._batch = self._batch, None
        return batch
