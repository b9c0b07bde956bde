"""What the job that makes variants says when the disk is full: `/dev/full` refuses every byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelreg.builders.calibration import check_calibration_set, recipe_part
from modelreg.builders.graphs import VariantError
from modelreg.builders.interface import CalibrationOptions
from modelreg.builders.precision import translate
from modelreg.builders.variant_jobs import make, merge
from modelreg.registry.contents import Signature, TensorSpec
from modelreg.registry.tensor_sets import write_tensor_set
from modelreg.registry.words import Backend, Precision
from modelreg_testing.onnx_models import conv_net, save


def full(folder: Path) -> Path:
    """Return a file in a new folder that nothing can be written to."""
    folder.mkdir()
    (folder / "model.onnx").symlink_to("/dev/full")
    return folder / "model.onnx"


def request(tmp_path: Path, precision: Precision) -> dict[str, Any]:
    path = tmp_path / "set.safetensors"
    write_tensor_set(path, {"image": np.ones((110, 1, 12, 12), np.float32)}, {})
    options = CalibrationOptions(path=path)
    declared = Signature(inputs=(TensorSpec(name="image", dtype="float32", shape=("N", 1, 12, 12)),), outputs=())
    calibration = check_calibration_set(options, declared)
    translation = translate(precision, Backend.ONNXRUNTIME, "1.20")
    variant = {
        "kind": translation.variant,
        "settings": translation.settings,
        "excluded_nodes": [],
        "excluded_op_types": [],
        "keep_io_types": True,
        "calibration": recipe_part(options, calibration),
    }
    source = save(conv_net(), tmp_path / "in" / "net.onnx")
    return {
        "source": str(source),
        "target": str(full(tmp_path / "out")),
        "variant": variant,
        "calibration": calibration.to_request(),
    }


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.INT8])
def test_a_full_disk_is_named_whatever_the_variant(tmp_path: Path, precision: Precision) -> None:
    with pytest.raises(VariantError) as caught:
        make(request(tmp_path, precision), {}, lambda _fraction, _message: None)
    assert str(caught.value) == f"nothing can be written below {tmp_path / 'out'}: No space left on device"
    assert "TMPDIR" in caught.value.details["hint"]


def test_a_full_disk_is_named_where_external_data_is_merged(tmp_path: Path) -> None:
    with pytest.raises(VariantError, match="No space left on device"):
        merge(request(tmp_path, Precision.FP16), {}, lambda _fraction, _message: None)


def test_what_has_a_name_of_its_own_keeps_it(tmp_path: Path) -> None:
    asked = {**request(tmp_path, Precision.FP16), "source": str(tmp_path / "absent.onnx")}
    with pytest.raises(FileNotFoundError, match=r"absent\.onnx"):
        make(asked, {}, lambda _fraction, _message: None)
