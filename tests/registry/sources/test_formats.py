"""Tests of telling other files from ONNX models."""

from __future__ import annotations

import io
import pickle
import zipfile

import pytest

from modelreg.registry.errors import SourceError
from modelreg.registry.sources.formats import require_onnx_start
from modelreg_testing import onnx_models


def zip_archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", b"x")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("head", "what"),
    [
        (zip_archive(), "a zip archive, as PyTorch checkpoints"),
        (pickle.dumps({"a": 1}, protocol=2), "a Python pickle"),
        (pickle.dumps({"a": 1}, protocol=4), "a Python pickle"),
        (b"\x89PNG\r\n\x1a\n", "a PNG image"),
        (b"\x93NUMPY\x01", "a NumPy array"),
        (b"ftrt\x00\x00", "a TensorRT plan"),
        (b"\x18\x00\x00\x00ORTM", "a model in ORT format"),
        (b"\x40\x00\x00\x00\x00\x00\x00\x00" + b'{"w": 1}', "a safetensors file"),
        (b"import torch\n", "it is text"),
        ("# résumé".encode(), "it is text"),
        (b'"domain"', "it is text"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
        (b"\x00\x00\x00\x00", "its first byte is 0x00"),
        (b"", "is empty"),
    ],
)
def test_other_files_are_called_what_they_are(head: bytes, what: str) -> None:
    with pytest.raises(SourceError, match=what) as caught:
        require_onnx_start(head, name="m.onnx")
    assert str(caught.value).startswith("m.onnx is ")


def test_the_start_of_a_model_passes() -> None:
    require_onnx_start(onnx_models.mlp().SerializeToString()[:512], name="m.onnx")
