"""The cache of an implicit calibration: what it is bound to, and that a stale one is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelreg.builders.calibration import check_calibration_set
from modelreg.builders.calibration_cache import CalibrationCache
from modelreg.builders.interface import BuildOptions, BuildRequest, CalibrationOptions, ToolchainSpec
from modelreg.builders.trt_options import TensorRTOptions
from modelreg.registry.contents import Signature, TensorSpec
from modelreg.registry.errors import IntegrityError, UsageError
from modelreg.registry.words import Backend

SIGNATURE = Signature(
    inputs=(TensorSpec(name="x", dtype="float32", shape=("n", 2)),),
    outputs=(TensorSpec(name="y", dtype="float32", shape=("n", 2)),),
)
TOOLCHAIN = ToolchainSpec(name="trt", backend=Backend.TENSORRT, version="8.6.0.12", python="python")


def make_request(
    folder: Path, *, method: str = "entropy", samples: float = 1.0, file: str = "ranges.json"
) -> BuildRequest:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan").mkdir(exist_ok=True)
    (folder / "model.onnx").write_bytes(b"a model")
    path = folder / f"set-{samples}.npz"
    arrays: dict[str, Any] = {"input.x": np.full((6, 2), samples, np.float32)}
    np.savez(path, **arrays)
    given = CalibrationOptions(path=path, method=method)
    calibration = check_calibration_set(given, SIGNATURE)
    return BuildRequest(
        model=folder / "model.onnx",
        source=folder / "model.onnx",
        target="sm_90",
        signature=SIGNATURE,
        recipe={"implicit_calibration": {"digest": calibration.digest, "method": method}, "flags": ["INT8"]},
        options=BuildOptions(calibration=given, tensorrt=TensorRTOptions(calibration_cache=folder / file)),
        size_bytes=7,
        inputs={},
        keep_io_types=True,
        folder=folder / "plan",
        log_path=folder / "log",
        calibration=calibration,
    )


def opened(request: BuildRequest, toolchain: ToolchainSpec = TOOLCHAIN) -> CalibrationCache:
    cache = CalibrationCache.open(request, toolchain)
    assert cache is not None
    return cache


def calibrate(request: BuildRequest) -> Path:
    """Do what the builder does: write ranges, then let them be kept; return the user's file."""
    cache = opened(request)
    Path(cache.to_request()["cache_out"]).write_text("TRT-8600-EntropyCalibration2\nx: 3c010a14\n")
    cache.keep()
    assert cache.file is not None
    return cache.file


def test_the_first_calibration_gets_the_samples_and_leaves_its_ranges(tmp_path: Path) -> None:
    request = make_request(tmp_path)
    body = opened(request).to_request()
    assert (body["cache"], body["method"]) == ("", "entropy")
    samples = opened(request).read_samples("calibration.")
    assert samples["calibration.x"].shape == (6, 2)
    file = calibrate(request)
    kept = json.loads(file.read_text())
    assert kept["tensorrt"] == "8.6.0.12"
    assert kept["ranges"].startswith("TRT-8600")


def test_the_next_one_is_given_the_ranges(tmp_path: Path) -> None:
    request = make_request(tmp_path)
    calibrate(request)
    taken = opened(request).to_request()["cache"]
    assert Path(taken).read_text() == "TRT-8600-EntropyCalibration2\nx: 3c010a14\n"


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"samples": 2.0}, "it is of another calibration_set"),
        ({"method": "minmax"}, "it is of another calibration_set, method"),
    ],
)
def test_a_stale_cache_is_refused(tmp_path: Path, change: dict[str, Any], fact: str) -> None:
    calibrate(make_request(tmp_path))
    with pytest.raises(IntegrityError, match=fact):
        opened(make_request(tmp_path, **change))


def test_a_cache_of_another_model_or_version_is_stale(tmp_path: Path) -> None:
    request = make_request(tmp_path)
    calibrate(request)
    with pytest.raises(IntegrityError, match="it is of another tensorrt"):
        opened(request, replace(TOOLCHAIN, version="8.6.1.6"))
    request.model.write_bytes(b"another model")
    with pytest.raises(IntegrityError, match="it is of another onnx"):
        opened(request)


@pytest.mark.parametrize("text", ["TRT-8600-EntropyCalibration2\nx: 3c010a14\n", "[]", "{}", '{"schema": 1}'])
def test_a_file_that_is_no_cache_of_ours_is_refused(tmp_path: Path, text: str) -> None:
    request = make_request(tmp_path)
    (tmp_path / "ranges.json").write_text(text)
    with pytest.raises(IntegrityError, match="is no calibration cache of modelreg"):
        opened(request)


def test_percentiles_are_not_offered(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="implicit calibration has no method percentile"):
        CalibrationCache.open(make_request(tmp_path, method="percentile"), TOOLCHAIN)


def test_nothing_is_cached_where_nothing_is_calibrated_or_no_file_is_named(tmp_path: Path) -> None:
    request = make_request(tmp_path)
    assert CalibrationCache.open(replace(request, recipe={"flags": []}), TOOLCHAIN) is None
    unnamed = opened(replace(request, options=replace(request.options, tensorrt=TensorRTOptions())))
    unnamed.keep()
    assert not (tmp_path / "ranges.json").exists()
