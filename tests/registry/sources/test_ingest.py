"""Tests of storing a source and laying it out again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from modelreg.registry.contents import StoredFile
from modelreg.registry.digests import json_digest
from modelreg.registry.errors import IntegrityError, SourceError
from modelreg.registry.records import SourceInfo
from modelreg.registry.sources.ingest import ingest_source, materialise_source, source_digest
from modelreg.registry.sources.inspect import inspect_source
from modelreg.registry.storage.interface import BlobInfo, Progress, no_progress
from modelreg.registry.storage.local import LocalStorage
from modelreg_testing import onnx_models


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage.create(tmp_path / "store")


@pytest.fixture
def inline(tmp_path: Path) -> Path:
    return onnx_models.save(onnx_models.mlp(), tmp_path / "in" / "net.onnx")


@pytest.fixture
def external(tmp_path: Path) -> Path:
    model = onnx_models.mlp(features=64, hidden=64)
    return onnx_models.save_with_external_data(model, tmp_path / "ext" / "net.onnx", location="data/gewichte é.bin")


def register(path: Path, storage: LocalStorage) -> SourceInfo:
    return ingest_source(inspect_source(path), storage)


def test_a_lone_file_is_known_by_what_sha256sum_prints(inline: Path, storage: LocalStorage) -> None:
    source = register(inline, storage)
    assert source.digest == hashlib.sha256(inline.read_bytes()).hexdigest()
    assert source.files == (StoredFile(path="model.onnx", digest=source.digest, size_bytes=inline.stat().st_size),)
    assert storage.read_blob(source.digest) == inline.read_bytes()


def test_a_file_with_external_data_is_known_by_the_list_of_both(external: Path, storage: LocalStorage) -> None:
    source = register(external, storage)
    assert [file.path for file in source.files] == ["model.onnx", "data/gewichte é.bin"]
    assert source.digest == json_digest([file.to_json() for file in source.files])
    assert source.digest == source_digest(source.files)
    assert all(storage.has_blob(file.digest) for file in source.files)


def test_the_record_says_what_the_inspection_found(external: Path, storage: LocalStorage) -> None:
    inspected = inspect_source(external)
    source = ingest_source(inspected, storage)
    for name in (
        *("signature", "opsets", "ir_version", "producer"),
        *("node_counts", "parameter_bytes", "unbuildable", "warnings"),
    ):
        assert getattr(source, name) == getattr(inspected, name)


def test_the_same_bytes_under_another_name_are_the_same_source(inline: Path, storage: LocalStorage) -> None:
    twin = onnx_models.save(onnx_models.mlp(), inline.parent / "twin" / "other.onnx")
    assert register(inline, storage) == register(twin, storage)
    assert len(list(storage.iterate_blobs())) == 1


def test_other_weights_in_external_data_make_another_source(external: Path, storage: LocalStorage) -> None:
    first = register(external, storage)
    data = external.parent / "data/gewichte é.bin"
    data.write_bytes(bytes(data.stat().st_size))
    second = register(external, storage)
    assert first.files[0] == second.files[0]
    assert first.digest != second.digest


def test_progress_adds_up_to_the_size_of_all_files(external: Path, storage: LocalStorage) -> None:
    steps: list[int] = []
    inspected = inspect_source(external)
    ingest_source(inspected, storage, progress=steps.append)
    assert sum(steps) == inspected.size_bytes


def test_a_file_that_changed_since_the_inspection_is_refused_and_nothing_is_stored(
    external: Path, storage: LocalStorage
) -> None:
    inspected = inspect_source(external)
    data = external.parent / "data/gewichte é.bin"
    data.write_bytes(b"x" + data.read_bytes()[1:])
    os.utime(data, ns=(1, 1))
    with pytest.raises(SourceError, match="changed while it was being registered"):
        ingest_source(inspected, storage)
    assert list(storage.iterate_blobs()) == []


class InterruptedStorage(LocalStorage):
    """A real store, where something happens to the user's file right after it was copied."""

    meanwhile: Callable[[], object]

    def put_file(self, path: Path, *, progress: Progress = no_progress) -> BlobInfo:
        blob = super().put_file(path, progress=progress)
        self.meanwhile()
        return blob


def interrupted(storage: LocalStorage, meanwhile: Callable[[], object]) -> InterruptedStorage:
    store = InterruptedStorage(storage.root)
    store.meanwhile = meanwhile
    return store


def test_a_file_that_changes_while_it_is_copied_is_refused(inline: Path, storage: LocalStorage) -> None:
    store = interrupted(storage, lambda: inline.write_bytes(inline.read_bytes() + b"x"))
    with pytest.raises(SourceError, match="changed while it was being registered"):
        register(inline, store)


def test_an_edit_of_the_graph_that_the_clock_hides_is_refused(inline: Path, storage: LocalStorage) -> None:
    inspected = replace(inspect_source(inline), graph_digest="0" * 64)
    with pytest.raises(SourceError, match="changed while it was being registered"):
        ingest_source(inspected, storage)


def test_a_link_put_in_the_place_of_the_data_is_refused(external: Path, storage: LocalStorage, tmp_path: Path) -> None:
    inspected = inspect_source(external)
    data = external.parent / "data/gewichte é.bin"
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    data.unlink()
    data.symlink_to(secret)
    with pytest.raises(SourceError, match="changed"):
        ingest_source(inspected, storage)
    assert list(storage.iterate_blobs()) == []


def test_a_stored_source_laid_out_again_runs_and_gives_the_same_numbers(
    external: Path, storage: LocalStorage, tmp_path: Path
) -> None:
    import onnxruntime as ort

    source = register(external, storage)
    steps: list[int] = []
    path = materialise_source(source, storage, tmp_path / "work", progress=steps.append)
    assert path == tmp_path / "work" / "model.onnx"
    assert sum(steps) == sum(file.size_bytes for file in source.files)
    onnx.checker.check_model(path, full_check=True)
    sample = {"x": np.ones((2, 64), dtype=np.float32)}
    expected = ort.InferenceSession(external).run(None, sample)[0]
    np.testing.assert_array_equal(ort.InferenceSession(path).run(None, sample)[0], expected)


def test_files_laid_out_are_no_links(external: Path, storage: LocalStorage, tmp_path: Path) -> None:
    source = register(external, storage)
    materialise_source(source, storage, tmp_path / "work")
    for file in source.files:
        laid_out = tmp_path / "work" / file.path
        assert not laid_out.is_symlink()
        assert laid_out.stat().st_nlink == 1


def test_a_flipped_bit_in_the_store_is_noticed_when_laying_out(
    inline: Path, storage: LocalStorage, tmp_path: Path
) -> None:
    source = register(inline, storage)
    (blob,) = (path for path in (storage.root / "blobs").rglob("*") if path.is_file())
    data = bytearray(blob.read_bytes())
    data[100] ^= 1
    blob.chmod(0o600)
    blob.write_bytes(data)
    with pytest.raises(IntegrityError):
        materialise_source(source, storage, tmp_path / "work")


def test_a_record_that_would_write_outside_the_folder_is_refused(
    inline: Path, storage: LocalStorage, tmp_path: Path
) -> None:
    source = register(inline, storage)
    evil = source.files[0]._replace(path="../evil")
    with pytest.raises(SourceError, match="leaves the model's folder"):
        materialise_source(source._replace(files=(source.files[0], evil)), storage, tmp_path / "work")
    assert not (tmp_path / "evil").exists()
