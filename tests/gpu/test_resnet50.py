"""ResNet-50 last, where time is left: FP32 and FP16, the layout of the installed torchvision."""

from __future__ import annotations

import os
import sys
import time

import pytest

from modelreg_testing.checkout import ROOT
from modelreg_testing.gpu_lab import Lab

pytestmark = pytest.mark.gpu

NEEDED_S = 150.0


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


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_resnet50_is_built_validated_and_promoted(lab: Lab, precision: str) -> None:
    left_s = float(os.environ.get("MODELREG_GPU_UNTIL", "inf")) - time.time()
    if left_s < NEEDED_S:
        pytest.skip(f"{left_s:.0f} s are left, and it may take {NEEDED_S:.0f} s")
    if lab.setting.is_rehearsal:
        pytest.skip("the rehearsal stops at ResNet-18")
    folder = lab.folder / "resnet50"
    if not folder.exists():
        lab.make_resnet("resnet50", "--samples", 32, "--calibration-samples", 64)
        lab.modelreg(
            *("register", "resnet50", folder / "resnet50.onnx"),
            *("--reference", f"{ROOT / 'tests' / 'gpu' / 'references.py'}:resnet50"),
            *("--weights", folder / "resnet50.safetensors", "--inputs", folder / "golden.safetensors"),
        )
    built = lab.modelreg("build", "resnet50:1", "--precision", precision, *lab.setting.build_words, "--json")
    (cell,) = built.document["cells"]
    engine = cell["engine"]
    validated = lab.modelreg("validate", "resnet50:1", "--engine", engine["id"], "--json")
    (validation,) = validated.document["validations"]
    kept = ("id", "precision", "size_bytes", "build_s", "plan", "backend", "backend_version", "realised")
    entry = {"network": "resnet50", "version": 1, **{key: engine[key] for key in kept}}
    lab.recorder.add("engines", entry | {"verdict": validation["verdict"], "gates": validation["gates"]})
    lab.modelreg("promote", "resnet50:1", "--to", "production", "--precision", precision, "-m", "last stage")
