from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from modelreg.builders.elsewhere.parcels import Parcel
from modelreg.builders.interface import ToolchainSpec
from modelreg.builders.materials import KnownMaterials
from modelreg.builders.planning import CellRequest, prepare_cell
from modelreg.builders.profiles import ProfileShapes
from modelreg.builders.trt_options import TacticSources, TensorRTOptions
from modelreg.registry.contents import StoredFile
from modelreg.registry.errors import IntegrityError
from modelreg.registry.words import Backend, Precision
from modelreg_testing.onnx_models import conv_net
from modelreg_testing.workshop import Workshop

TRT = ToolchainSpec(
    name="trt86", backend=Backend.TENSORRT, version="10.9.0", python="/opt/trt86", details={"targets": ["sm_86"]}
)


@pytest.fixture
def full(workshop: Workshop) -> CellRequest:
    """A request in which every option says something."""
    folder = workshop.folder / "user"
    folder.mkdir()
    for name in ("plugin.so", "timing.cache"):
        (folder / name).write_bytes(name.encode())
    samples = np.random.default_rng(0).normal(size=(120, 1, 12, 12)).astype(np.float32)
    return workshop.request(
        workshop.register(conv_net()),
        Precision.INT8,
        target="sm_86",
        toolchain=TRT,
        calibration=workshop.calibration({"input.image": samples}, method="entropy", samples=110, seed=5),
        nodes_to_exclude=("conv1",),
        op_types_to_exclude=("Gemm",),
        profiles=(
            ProfileShapes(min={"image": (1, 1, 12, 12)}, opt={"image": (2, 1, 12, 12)}, max={"image": (4, 1, 12, 12)}),
        ),
        tensorrt=TensorRTOptions(
            optimisation_level=4,
            memory_pools={"WORKSPACE": 1 << 30},
            tactic_sources=TacticSources(on=("CUBLAS",), off=("CUDNN",)),
            plugins=(folder / "plugin.so",),
            timing_cache=folder / "timing.cache",
            pin_tactics=True,
            calibration_cache=folder / "ranges.json",
        ),
        seed=7,
        timeout_s=12.5,
    )


def packed(request: CellRequest, workshop: Workshop, known: KnownMaterials | None = None) -> Parcel:
    parcel = Parcel.pack(prepare_cell(request), known or KnownMaterials(), workshop.storage)
    return Parcel.from_json(json.loads(json.dumps(parcel.to_json())))


def test_the_other_side_comes_to_the_same_recipe(full: CellRequest, workshop: Workshop, tmp_path: Path) -> None:
    parcel = packed(full, workshop)
    there = tmp_path / "there"
    there.mkdir()
    toolchain = replace(TRT, python="/usr/trt")
    unpacked = parcel.unpack(workshop.storage, there, toolchain)
    assert prepare_cell(unpacked).recipe == prepare_cell(full).recipe
    assert unpacked.cell.toolchain == toolchain
    assert unpacked.cell.version == full.cell.version
    assert unpacked.options.timeout_s == 12.5
    tensorrt = unpacked.options.tensorrt
    assert tensorrt.timing_cache == there / "timing_cache" / "timing.cache"
    assert tensorrt.calibration_cache == there / "calibration_cache" / "ranges.json"
    assert not tensorrt.calibration_cache.exists()
    assert tensorrt.plugins[0].read_bytes() == b"plugin.so"


def test_no_path_of_this_host_travels_but_the_interpreters(full: CellRequest, workshop: Workshop) -> None:
    parcel = packed(full, workshop).to_json()
    assert parcel.pop("store") == workshop.storage.url
    assert parcel["toolchain"].pop("python") == "/opt/trt86"
    assert str(workshop.folder) not in json.dumps(parcel)


def test_a_calibration_set_that_the_precision_does_not_use_stays_here(full: CellRequest, workshop: Workshop) -> None:
    fp32 = replace(
        full,
        cell=replace(full.cell, precision=Precision.FP32),
        options=replace(full.options, nodes_to_exclude=(), op_types_to_exclude=()),
    )
    assert "calibration" not in packed(fp32, workshop).files


def test_what_the_database_knows_travels_along(full: CellRequest, workshop: Workshop) -> None:
    file = StoredFile(path="model.onnx", digest="ab" * 32, size_bytes=3)
    known = KnownMaterials(variant=(file,), golden_digest="cd" * 32, golden_samples=9)
    assert packed(full, workshop, known).known == known


def test_a_damaged_file_is_refused_there(full: CellRequest, workshop: Workshop, tmp_path: Path) -> None:
    parcel = packed(full, workshop)
    blob = next((workshop.folder / "store" / "blobs").rglob(parcel.files["calibration"][0].digest))
    blob.chmod(0o644)
    blob.write_bytes(b"x" + blob.read_bytes()[1:])
    there = tmp_path / "there"
    there.mkdir()
    with pytest.raises(IntegrityError):
        parcel.unpack(workshop.storage, there, TRT)
