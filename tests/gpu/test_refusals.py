"""What must not pass: implicit INT8 calibration gives NaN on ResNet-18, and quietly builds FP16 for LeNet."""

from __future__ import annotations

import pytest

from modelreg_testing.checkout import ROOT
from modelreg_testing.gpu_lab import Lab

pytestmark = pytest.mark.gpu

IMPLICIT = ("--precision", "int8", "--implicit-calibration", "--json")


@pytest.fixture(autouse=True)
def _needs_tensorrt(lab: Lab) -> None:
    if lab.setting.is_rehearsal:
        pytest.skip("ONNX Runtime has no implicit calibration")


def test_nan_in_every_output_fails_the_gate_of_resnet18(lab: Lab) -> None:
    side = lab.setting.image_size
    shapes = [f"image:{batch}x3x{side}x{side}" for batch in (1, 8, 64)]
    built = lab.modelreg(
        *("build", "resnet18:1", *IMPLICIT, *lab.setting.build_words),
        *("--calibration", lab.folder / "resnet18" / "calibration.safetensors"),
        *("--minShapes", shapes[0], "--optShapes", shapes[1], "--maxShapes", shapes[2]),
    )
    (cell,) = built.document["cells"]
    engine = cell["engine"]["id"]
    validated = lab.modelreg("validate", "resnet18:1", "--engine", engine, "--json", expect=3)
    (validation,) = validated.document["validations"]
    gates = {gate["gate"]: gate for gate in validation["gates"]}
    fact = {"what": "implicit INT8 of resnet18", "build_s": cell["engine"]["build_s"], "gates": validation["gates"]}
    lab.recorder.add("facts", fact)
    assert validation["verdict"] == "fail"
    assert gates["finite"]["outcome"] == "fail"
    assert gates["finite"]["measured"] > 0


def test_int8_that_became_fp16_is_a_failed_build(lab: Lab) -> None:
    built = lab.modelreg(
        *("build", "lenet:1", *IMPLICIT, *lab.setting.where_words),
        *("--calibration", ROOT / "examples" / "lenet" / "calibration.npz"),
        expect=1,
    )
    (cell,) = built.document["cells"]
    lab.recorder.add("facts", {"what": "implicit INT8 of lenet", "status": cell["status"], "error": cell["error"]})
    assert cell["status"] == "failed"
    assert "int8 was asked" in cell["error"]
