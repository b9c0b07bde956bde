"""Layers of engines on the GPU: every value between layers is shown, and the engine with them answers as without."""

from __future__ import annotations

import pytest

from modelreg_testing.gpu_lab import Lab, require_time

pytestmark = pytest.mark.gpu

NEEDED_S = 45.0  # a build, and two runs


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_every_layer_of_lenet_is_seen_and_none_is_bad(lab: Lab, precision: str) -> None:
    require_time(NEEDED_S)
    entry = lab.recorder.engine("lenet", precision)
    done = lab.modelreg("validate", "lenet:1", "--engine", entry["id"], "--layers", "--json")
    (validation,) = done.document["validations"]
    layers = validation["layers"]
    assert "error" not in layers, layers
    lab.recorder.add("facts", {"what": f"layers of lenet {precision}", "layers": layers})
    # Only a variant can be run layer by layer on the CPU; 8.6 builds fp32 and fp16 from the source.
    simulated = "simulated" if precision == "int8" else "none"
    assert layers["own"] == ("exact" if lab.setting.is_rehearsal else simulated)
    assert len(layers["rows"]) >= 5
    assert layers["first_bad"] == ""
    assert all(changed["odd"] == 0 for changed in layers["taps"].values())
