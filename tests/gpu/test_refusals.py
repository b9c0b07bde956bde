"""What must not pass: implicit INT8 calibration gave NaN on a ResNet-18, and may build FP16 for LeNet in silence."""

from __future__ import annotations

import pytest

from modelreg_testing.checkout import ROOT
from modelreg_testing.gpu_lab import Lab, require_time

pytestmark = pytest.mark.gpu

NEEDED_S = 65.0
IMPLICIT = ("--precision", "int8", "--implicit-calibration", "--json")


@pytest.fixture(autouse=True)
def _needs_tensorrt(lab: Lab) -> None:
    if lab.setting.is_rehearsal:
        pytest.skip("ONNX Runtime has no implicit calibration")
    require_time(NEEDED_S)


def test_implicit_calibration_of_resnet18_passes_only_if_its_outputs_are_right(lab: Lab) -> None:
    side = lab.setting.image_size
    shapes = [f"image:{batch}x3x{side}x{side}" for batch in (1, 8, 64)]
    built = lab.modelreg(
        *("build", "resnet18:1", *IMPLICIT, *lab.setting.build_words),
        *("--calibration", lab.folder / "resnet18" / "calibration.safetensors"),
        *("--minShapes", shapes[0], "--optShapes", shapes[1], "--maxShapes", shapes[2]),
    )
    (cell,) = built.document["cells"]
    engine = cell["engine"]["id"]
    validated = lab.modelreg("validate", "resnet18:1", "--engine", engine, "--json", expect=(0, 3))
    (validation,) = validated.document["validations"]
    gates = {gate["gate"]: gate for gate in validation["gates"]}
    fact = {"what": "implicit INT8 of resnet18", "build_s": cell["engine"]["build_s"], "gates": validation["gates"]}
    lab.recorder.add("facts", fact)
    # NaN was seen in every output with other weights: whatever happens here, NaN and a pass never meet.
    has_nan = gates["finite"]["measured"] > 0
    assert gates["finite"]["outcome"] == ("fail" if has_nan else "pass")
    assert not (has_nan and validation["verdict"] == "pass")
    assert (validated.code == 0) is (validation["verdict"] == "pass")


def test_implicit_int8_of_lenet_is_built_only_if_a_layer_became_int8(lab: Lab) -> None:
    built = lab.modelreg(
        *("build", "lenet:1", *IMPLICIT, *lab.setting.where_words),
        *("--calibration", ROOT / "examples" / "lenet" / "calibration.npz"),
        expect=(0, 1),
    )
    # TensorRT chooses by time: FP16 throughout was seen, and is a failed build.
    if built.code == 1:
        error = built.document["error"]["message"]
        lab.recorder.add("facts", {"what": "implicit INT8 of lenet", "error": error})
        assert "int8 was asked" in error
        return
    (cell,) = built.document["cells"]
    realised = cell["engine"]["realised"]
    lab.recorder.add("facts", {"what": "implicit INT8 of lenet", "kept": realised["kept"], "ops": realised["ops"]})
    assert realised["converted"] >= 1


def test_fp16_is_in_every_layer_of_lenet_where_it_is_preferred(lab: Lab) -> None:
    words = ("--precision", "fp16", "--precisionConstraints", "prefer", "--json")
    built = lab.modelreg("build", "lenet:1", *words, *lab.setting.build_words)
    (cell,) = built.document["cells"]
    realised = cell["engine"]["realised"]
    assert (realised["converted"], realised["kept"]) == (5, [])
    assert realised["flags"] == ["FP16", "PREFER_PRECISION_CONSTRAINTS"]
    lab.modelreg("validate", "lenet:1", "--engine", cell["engine"]["id"])
