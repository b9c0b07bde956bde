"""Cells of the full TensorRT from the parent's side, with what TensorRT answered on an H200 recorded."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import modelreg_testing.recorded_tensorrt as recorded
from modelreg.builders import on_device
from modelreg.builders.cells import CellRequest
from modelreg.builders.interface import BuildOptions, Cell, ToolchainSpec
from modelreg.builders.materials import CellFiles
from modelreg.builders.trt_options import TacticSources, TensorRTOptions
from modelreg.registry.errors import BuildError, CellRefusedError, IntegrityError, PrecisionError
from modelreg.registry.records import EngineRecord, VersionRecord
from modelreg.registry.words import Backend, EngineStatus, Precision
from modelreg_testing.workshop import Workshop

LENET = Path(__file__).parents[2] / "examples" / "lenet"
SAMPLES = np.zeros((110, 1, 28, 28), np.float32)


@pytest.fixture
def version(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> VersionRecord:
    monkeypatch.setattr(on_device, "_JOBS", Path(recorded.__file__))
    return workshop.register(LENET / "lenet-v1.onnx")


def request(
    version: VersionRecord, precision: Precision, release: str = "8.6.0", *, rebuild: bool = False, **options: Any
) -> CellRequest:
    details = {"targets": ["sm_90"]}
    spec = ToolchainSpec(name="trt", backend=Backend.TENSORRT, version=release, python=sys.executable, details=details)
    cell = Cell(version=version, target="sm_90", precision=precision, toolchain=spec)
    return CellRequest(cell=cell, options=BuildOptions(**options), rebuild=rebuild)


def asked(workshop: Workshop, engine: EngineRecord) -> dict[str, Any]:
    """Return what the job was asked, from the log of the build."""
    lines = workshop.storage.read_blob(engine.log_digest).decode().splitlines()
    found: dict[str, Any] = json.loads(next(line for line in lines if line.startswith('{"')))
    return found


def test_an_engine_says_on_which_gpu_it_was_built_and_what_its_layers_became(
    workshop: Workshop, version: VersionRecord
) -> None:
    engine = workshop.fill(request(version, Precision.FP16)).engine
    target = engine.target
    assert (target.name, target.gpu, target.sm_count) == ("sm_90", "NVIDIA H200", 132)
    assert (target.driver, target.cuda) == ("580.159.04", "13.0")
    assert engine.realised["converted"] == 2
    assert engine.realised["kept"] == ["/c1/Conv (Conv)", "/c3/Conv (Conv)", "/output/Gemm (Gemm)"]
    assert (engine.recipe["typing"], engine.recipe["variant"]) == ("weak", None)
    body = asked(workshop, engine)
    assert body["flags"] == ["FP16"]
    assert (body["strongly_typed"], body["pins"], body["calibrator"]) == (False, [], None)
    assert body["profiles"] == [{"image": {"min": [1, 1, 28, 28], "opt": [8, 1, 28, 28], "max": [64, 1, 28, 28]}}]


def preferences(workshop: Workshop, engine: EngineRecord) -> list[str]:
    """Return the type that each of the cell's builds was asked to prefer."""
    lines = workshop.storage.read_blob(engine.log_digest).decode().splitlines()
    return [json.loads(line)["preferred"] for line in lines if line.startswith('{"')]


def test_fp16_that_came_out_as_fp32_is_built_again_with_fp16_preferred(
    workshop: Workshop, version: VersionRecord
) -> None:
    engine = workshop.fill(request(version, Precision.FP16, seed=16)).engine
    assert preferences(workshop, engine) == ["", "HALF"]
    assert engine.realised["converted"] == 2
    assert engine.realised["translation"][-1].startswith("TensorRT made no layer of fp16: built again")


@pytest.mark.slow
def test_fp16_is_preferred_from_the_start_or_never_where_the_user_says_so(
    workshop: Workshop, version: VersionRecord
) -> None:
    asked_for = TensorRTOptions(precision_constraints="prefer")
    engine = workshop.fill(request(version, Precision.FP16, tensorrt=asked_for)).engine
    assert preferences(workshop, engine) == ["HALF"]
    assert engine.recipe["constraints"] == "prefer"
    never = TensorRTOptions(precision_constraints="none")
    with pytest.raises(PrecisionError, match="no node became fp16: TensorRT chose a higher precision"):
        workshop.fill(request(version, Precision.FP16, seed=16, tensorrt=never))
    fp32 = workshop.fill(request(version, Precision.FP32, tensorrt=asked_for)).engine
    assert "constraints" not in fp32.recipe


def test_what_is_excluded_throughout_is_not_built_twice(workshop: Workshop, version: VersionRecord) -> None:
    excluded: dict[str, Any] = {"op_types_to_exclude": ("Conv", "Gemm"), "seed": 16}
    with pytest.raises(PrecisionError, match="no node became fp16") as caught:
        workshop.fill(request(version, Precision.FP16, **excluded))
    assert "built again" not in str(caught.value)


def test_the_same_cell_is_reused(workshop: Workshop, version: VersionRecord) -> None:
    first = workshop.fill(request(version, Precision.FP32)).engine
    again = workshop.fill(request(version, Precision.FP32))
    assert (again.reused, again.engine.id) == (True, first.id)


def test_excluded_nodes_and_op_types_are_pinned_by_name(workshop: Workshop, version: VersionRecord) -> None:
    options: dict[str, Any] = {"nodes_to_exclude": ("/c1/Conv",), "op_types_to_exclude": ("AveragePool",)}
    engine = workshop.fill(request(version, Precision.FP16, **options)).engine
    assert asked(workshop, engine)["pins"] == ["/c1/Conv", "/s2/AveragePool", "/s4/AveragePool"]
    assert engine.recipe["pins"]["excluded_nodes"] == ["/c1/Conv"]
    with pytest.raises(BuildError, match="nodes that were excluded became fp16 all the same: /c5/Conv"):
        workshop.fill(request(version, Precision.FP16, nodes_to_exclude=("/c5/Conv",)))


def test_settings_are_recipe_and_reach_the_builder(workshop: Workshop, version: VersionRecord) -> None:
    settings = TensorRTOptions(
        optimisation_level=5,
        memory_pools={"WORKSPACE": 1 << 30},
        hardware_compatibility="AMPERE_PLUS",
        version_compatible=True,
        tactic_sources=TacticSources(none=True),
    )
    engine = workshop.fill(request(version, Precision.FP32, tensorrt=settings)).engine
    body = asked(workshop, engine)
    assert (body["optimisation_level"], body["pools"]) == (5, {"WORKSPACE": 1 << 30})
    assert body["tactic_sources"] == {"none": True, "on": [], "off": []}
    assert engine.recipe["build"]["hardware_compatibility"] == "AMPERE_PLUS"
    assert engine.recipe["flags"] == ["VERSION_COMPATIBLE"]


def test_a_timing_cache_is_kept_and_given_back_to_the_user(
    workshop: Workshop, version: VersionRecord, tmp_path: Path
) -> None:
    file = tmp_path / "timing.cache"
    engine = workshop.fill(request(version, Precision.FP32, tensorrt=TensorRTOptions(timing_cache=file))).engine
    assert file.read_bytes() == b"timings of sm_90"
    digest = engine.realised["timing_cache"]
    assert workshop.storage.read_blob(digest) == b"timings of sm_90"
    assert asked(workshop, engine)["timing_cache"] == ""
    again = request(version, Precision.TF32, tensorrt=TensorRTOptions(timing_cache=file))
    assert asked(workshop, workshop.fill(again).engine)["timing_cache"] == str(file)
    same = workshop.fill(request(version, Precision.FP32, tensorrt=TensorRTOptions(timing_cache=file)))
    assert same.reused  # timings do not decide the plan unless tactics are pinned to them


def test_plugin_libraries_travel_with_the_plan(workshop: Workshop, version: VersionRecord, tmp_path: Path) -> None:
    library = tmp_path / "libswish.so"
    library.write_bytes(b"code")
    engine = workshop.fill(request(version, Precision.FP32, tensorrt=TensorRTOptions(plugins=(library,)))).engine
    assert [file.path for file in engine.files] == ["model.plan", "libswish.so"]
    assert engine.recipe["build"]["plugins"][0]["digest"] == hashlib.sha256(b"code").hexdigest()
    (loaded,) = asked(workshop, engine)["plugins"]
    assert loaded != str(library)  # a copy, whose digest was checked: the user's file may change
    assert loaded.endswith("/plan/libswish.so")


def test_a_plugin_library_that_was_changed_is_never_loaded(
    workshop: Workshop, version: VersionRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "libswish.so"
    library.write_bytes(b"code")
    prepared = request(version, Precision.FP32, tensorrt=TensorRTOptions(plugins=(library,)))
    make_folders = CellFiles.create

    def change(folder: Path) -> CellFiles:
        library.write_bytes(b"evil")  # between the check and the build
        return make_folders(folder)

    monkeypatch.setattr(CellFiles, "create", change)
    with pytest.raises(BuildError, match="was changed since it was allowed"):
        workshop.fill(prepared)
    (failed,) = workshop.engines(version)
    assert '"plugins"' not in workshop.log_of(failed)  # the builder was not even started


def test_int8_has_qdq_nodes_with_float_weights_before_them(workshop: Workshop, version: VersionRecord) -> None:
    calibration = workshop.calibration({"input.image": np.load(LENET / "calibration.npz")["input.image"]})
    with pytest.raises(PrecisionError):  # the recorded layers are those of FP16
        workshop.fill(request(version, Precision.INT8, calibration=calibration))
    engine = workshop.engines(version)[-1]
    assert engine.recipe["variant"]["settings"]["options"]["AddQDQPairToWeight"] is True
    assert engine.recipe["flags"] == ["FP16", "INT8"]
    assert engine.status is EngineStatus.FAILED


def test_implicit_calibration_gets_its_samples_and_keeps_its_ranges(
    workshop: Workshop, version: VersionRecord, tmp_path: Path
) -> None:
    settings = TensorRTOptions(implicit_calibration=True, calibration_cache=tmp_path / "ranges.json")
    options: dict[str, Any] = {
        "calibration": workshop.calibration({"input.image": SAMPLES}, method="entropy"),
        "tensorrt": settings,
    }
    engine = workshop.fill(request(version, Precision.INT8, **options)).engine
    assert asked(workshop, engine)["arrays"]["calibration.image"] == [110, 1, 28, 28]
    assert (engine.recipe["variant"], engine.recipe["implicit_calibration"]["method"]) == (None, "entropy")
    kept = json.loads((tmp_path / "ranges.json").read_text())
    assert kept["ranges"] == "TRT-8600-EntropyCalibration2\n"
    with pytest.raises(PrecisionError, match="int8 was asked, but no node became int8"):
        workshop.fill(request(version, Precision.INT8, rebuild=True, seed=15, **options))
    (tmp_path / "ranges.json").write_text(json.dumps({**kept, "onnx": "0" * 64}))
    with pytest.raises(IntegrityError, match="is stale"):
        workshop.fill(request(version, Precision.INT8, rebuild=True, **options))


def test_newer_releases_have_no_implicit_calibration(workshop: Workshop, version: VersionRecord) -> None:
    implicit = TensorRTOptions(implicit_calibration=True)
    options: dict[str, Any] = {
        "calibration": workshop.calibration({"input.image": SAMPLES}, method="entropy"),
        "tensorrt": implicit,
    }
    with pytest.raises(CellRefusedError, match=r"tensorrt 11\.4\.0 has no implicit calibration"):
        workshop.fill(request(version, Precision.INT8, release="11.4.0", **options))


def test_a_parser_that_only_counts_nodes_is_translated_to_names(workshop: Workshop, version: VersionRecord) -> None:
    with pytest.raises(
        BuildError, match=r"cannot parse the model: /s2/AveragePool \(AveragePool\): there is no importer; #999"
    ):
        workshop.fill(request(version, Precision.FP32, seed=13))


def test_a_plan_of_another_version_fails_the_build(workshop: Workshop, version: VersionRecord) -> None:
    with pytest.raises(BuildError, match=r"the plan is not what was asked: its header says tensorrt 9\.0\.0\.0"):
        workshop.fill(request(version, Precision.FP32, seed=14))


def test_a_gpu_that_was_not_there_is_refused(version: VersionRecord) -> None:
    builder = on_device.TensorRTBuilder()
    spec = request(version, Precision.FP32).cell.toolchain
    assert builder.refuse_target("sm_90", spec) == ""
    assert "builds on a GPU of sm_89, and this host has sm_90" in builder.refuse_target("sm_89", spec)
