from __future__ import annotations

from pathlib import Path

import pytest

from modelreg.cli.context import Registry
from modelreg.cli.evaluation import fetch_files, make_passes
from modelreg.registry.contents import StoredFile
from modelreg.registry.errors import IntegrityError, NotFoundError
from modelreg.registry.references import ModelReference
from modelreg.registry.versions import get_version
from modelreg.registry.words import Precision
from modelreg_testing.cli import Shop


def test_files_come_side_by_side_and_the_first_is_the_plan(shop: Shop, tmp_path: Path) -> None:
    blobs = [shop.storage.put_bytes(data) for data in (b"plan", b"weights")]
    files = [
        StoredFile(path=path, digest=blob.digest, size_bytes=blob.size_bytes)
        for path, blob in zip(("model.onnx", "data/weights.bin"), blobs, strict=True)
    ]
    plan = fetch_files(files, shop.storage, tmp_path / "out")
    assert plan.read_bytes() == b"plan"
    assert (plan.parent / "data" / "weights.bin").read_bytes() == b"weights"


@pytest.mark.parametrize("path", ["../model.onnx", "/model.onnx", "a/../../model.onnx"])
def test_a_file_that_would_leave_its_folder_is_not_fetched(shop: Shop, tmp_path: Path, path: str) -> None:
    blob = shop.storage.put_bytes(b"plan")
    with pytest.raises(IntegrityError, match="outside"):
        fetch_files([StoredFile(path=path, digest=blob.digest, size_bytes=4)], shop.storage, tmp_path / "deep" / "out")
    assert not (tmp_path / "model.onnx").exists()
    assert not (tmp_path / "deep" / "model.onnx").exists()


def test_an_engine_is_run_as_saved_and_fp16_needs_its_variant_too(shop: Shop, tmp_path: Path) -> None:
    fp32, fp16 = shop.add_version(precisions=(Precision.FP32, Precision.FP16))
    registry = Registry(shop.home)
    with registry.database.read() as connection:
        version = get_version(connection, ModelReference(model="lenet"))
    passes = make_passes(fp32, tmp_path / "plan", version, registry, tmp_path)
    assert [each.name for each in passes] == ["plan"]
    fp16.recipe["variant"] = {"kind": "fp16"}
    with pytest.raises(NotFoundError, match="variant of engine 2 is gone") as caught:
        make_passes(fp16, tmp_path / "plan", version, registry, tmp_path)
    assert "--rebuild" in caught.value.hint()
