"""Layers of engines of TensorRT, with ONNX Runtime where the GPU would be: all but TensorRT itself is real."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from modelreg.builders import on_device, tapped
from modelreg.builders.interface import ToolchainSpec
from modelreg.cli.layer_views import open_views
from modelreg.cli.progress import Reporter
from modelreg.cli.repair_trials import Budget, Notebook
from modelreg.cli.repairing import Workplace
from modelreg.config.policy import load_policy
from modelreg.registry.tensor_sets import open_tensor_set
from modelreg.registry.words import Backend, Precision
from modelreg.runtime import runner, suitability
from modelreg.validators.activation_capture import WantedActivations
from modelreg.validators.layers.comparison import compare_layers
from modelreg.validators.torch_reference import run_reference
from modelreg_testing import recorded_layers, recorded_tensorrt
from modelreg_testing.checkout import ROOT
from modelreg_testing.golden import LENET
from modelreg_testing.workshop import Workshop

pytestmark = pytest.mark.slow

pytest.importorskip("torch")

EXAMPLE = ROOT / "examples" / "lenet"


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workshop]:
    monkeypatch.setattr(on_device, "_JOBS", Path(recorded_tensorrt.__file__))
    monkeypatch.setitem(runner.JOB_FILES, Backend.TENSORRT, Path(recorded_layers.__file__))
    monkeypatch.setattr(suitability, "find_target", lambda name, **_more: name)
    opened = Workshop.open(tmp_path / "registry")
    yield opened
    opened.database.close()


def swapped(path: Path) -> Path:
    """Write LeNet with the channels that its second convolution takes in the wrong order."""
    model = onnx.load(EXAMPLE / "lenet-v1.onnx")
    (weight,) = (each for each in model.graph.initializer if each.name == "c3.weight")
    array = np.ascontiguousarray(numpy_helper.to_array(weight)[:, ::-1])
    weight.CopyFrom(numpy_helper.from_array(array, weight.name))
    path.parent.mkdir(parents=True)
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("outputs_a_build", [16, 5], ids=["one build", "several builds"])
def test_layers_of_an_engine_are_shown_in_as_many_builds_as_needed_and_the_bad_one_is_named(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outputs_a_build: int
) -> None:
    monkeypatch.setattr(tapped, "OUTPUTS_A_BUILD", outputs_a_build)
    version = workshop.register(swapped(tmp_path / "in" / "lenet.onnx"))
    details = {"targets": ["sm_90"]}
    spec = ToolchainSpec(name="trt", backend=Backend.TENSORRT, version="8.6.0", python=sys.executable, details=details)
    engine = workshop.fill(workshop.request(version, Precision.FP16, target="sm_90", toolchain=spec)).engine
    golden = tmp_path / "golden.safetensors"
    run_reference(
        reference=f"{EXAMPLE / 'model.py'}:lenet",
        weights=EXAMPLE / "lenet-v1.safetensors",
        inputs=str(EXAMPLE / "golden-v1.npz"),
        signature=LENET,
        seed=0,
        activations=WantedActivations(budget_bytes=1 << 20),
        destination=golden,
    )
    settings = SimpleNamespace(settings=SimpleNamespace(build_timeout_s=60.0))
    registry: Any = SimpleNamespace(storage=workshop.storage, database=workshop.database, home=settings)
    folder = tmp_path / "views"
    with open_tensor_set(golden) as opened, open_views(engine, version, registry, folder) as views:
        found = compare_layers(
            version=version,
            golden=opened,
            source=views.source,
            candidate=views.candidate,
            isolating=views.isolating,
            own=views.own,
            limit_db=40.0,
            overrides={},
            most=4,
        )
        plans = sorted(path.name for path in (folder / "gpu").iterdir() if path.is_dir() and path.name != "served")
    assert [row.row.name for row in found.rows] == ["c1", "s2", "c3", "s4", "c5", "f6", "output"]
    assert found.own == "none"  # TensorRT 8.6 chooses where FP16 is used: nothing else can do the same
    assert found.diagnosis.first_bad == "c3"
    assert len(plans) == (1 if outputs_a_build == 16 else 3)


def test_where_tensorrt_chooses_precisions_a_repair_looks_into_the_same_precision_for_the_cpu(
    workshop: Workshop,
) -> None:
    version = workshop.register(EXAMPLE / "lenet-v1.onnx")
    details = {"targets": ["sm_90"]}
    spec = ToolchainSpec(name="trt", backend=Backend.TENSORRT, version="8.6.0", python=sys.executable, details=details)
    base = workshop.request(version, Precision.FP16, target="sm_90", toolchain=spec)
    registry: Any = SimpleNamespace(storage=workshop.storage, database=workshop.database)
    policy = load_policy(Precision.FP16)
    with open_tensor_set(EXAMPLE / "golden-v1.npz") as golden:
        place = Workplace(
            registry,
            Reporter(),
            base,
            policy=policy,
            record=SimpleNamespace(digest="0" * 64),  # type: ignore[arg-type]
            golden=golden,
            budget=Budget(trials=1, limit_s=None),
            notebook=Notebook(None),
        )
        unbuilt: Any = SimpleNamespace(variant=None)
        found = place._compare(unbuilt)
        ranked = place._rank(found)
    assert len(found.rows) == 11
    assert all(50 < row.sqnr_db < 90 for row in found.rows)  # FP16, and not the FP32 of the source
    assert set(ranked) >= {"/c1/Conv", "/c3/Conv", "/c5/Conv", "/f6/Gemm", "/output/Gemm"}
