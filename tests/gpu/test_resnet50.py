"""ResNet-50 last, where time is left: the layout of the installed torchvision; FP32, FP16 and INT8, timed."""

from __future__ import annotations

import sys

import pytest

from modelreg_testing.checkout import ROOT
from modelreg_testing.gpu_lab import Lab, require_time
from modelreg_testing.gpu_latency import PRECISIONS, time_engines, timed

pytestmark = pytest.mark.gpu

NEEDED_S = 150.0  # it asks again before each engine


@pytest.mark.parametrize("arch", ["resnet18", "resnet50"])
def test_the_example_is_torchvision_s_own_resnet(arch: str) -> None:
    models = pytest.importorskip("torchvision.models", reason="torchvision is not installed here")
    import torch

    sys.path.insert(0, str(ROOT / "examples" / "resnet50"))
    try:
        import resnet
    finally:
        sys.path.pop(0)
    torch.manual_seed(0)
    theirs = getattr(models, arch)(weights=None).eval()
    ours = getattr(resnet, arch)().eval()
    ours.load_state_dict(theirs.state_dict())
    image = torch.randn(2, 3, 96, 96)
    with torch.inference_mode():
        assert torch.equal(ours(image), theirs(image))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_resnet50_is_built_and_passes_every_gate(lab: Lab, precision: str) -> None:
    if lab.setting.is_rehearsal:
        pytest.skip("the rehearsal stops at ResNet-18")
    require_time(NEEDED_S)
    folder = lab.folder / "resnet50"
    if not folder.exists():
        lab.make_resnet("resnet50", "--samples", 64, "--calibration-samples", 64)
        lab.modelreg(
            *("register", "resnet50", folder / "resnet50.onnx"),
            *("--reference", f"{ROOT / 'tests' / 'gpu' / 'references.py'}:resnet50"),
            *("--weights", folder / "resnet50.safetensors", "--inputs", folder / "golden.safetensors"),
        )
    shapes = ["--minShapes", "image:1x3x224x224", "--optShapes", "image:64x3x224x224", "--maxShapes"]
    calibration = ["--calibration", folder / "calibration.safetensors"] if precision == "int8" else []
    built = lab.modelreg(
        *("build", "resnet50:1", "--precision", precision, *lab.setting.build_words, "--json"),
        *(*shapes, "image:64x3x224x224", *calibration),
    )
    (cell,) = built.document["cells"]
    engine = cell["engine"]
    kept = ("id", "precision", "size_bytes", "build_s", "plan", "backend", "backend_version", "realised")
    entry = {"network": "resnet50", "version": 1, **{key: engine[key] for key in kept}}
    lab.recorder.add("engines", entry)
    lab.plans[f"resnet50 {precision}"] = lab.fetch_plan(engine)
    validated = lab.modelreg("validate", "resnet50:1", "--engine", engine["id"], "--json")
    (validation,) = validated.document["validations"]
    entry |= {"verdict": validation["verdict"], "gates": validation["gates"]}
    lab.recorder.write()


def test_resnet50_is_timed_against_pytorch_and_gets_faster_with_every_precision(lab: Lab) -> None:
    if not any(name.startswith("resnet50") for name in lab.plans):
        pytest.skip("no engine of ResNet-50 was built")
    time_engines(lab, "resnet50", (1, 64))
    fp32, fp16, int8 = (timed(lab, "resnet50", precision, 64)["runner"]["median_ms"] for precision in PRECISIONS)
    assert int8 < fp16 < fp32
