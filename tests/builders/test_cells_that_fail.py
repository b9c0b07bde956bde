"""Cells whose build breaks, is interrupted, or finds damage: what is left, and how it goes on."""

from __future__ import annotations

import importlib.metadata
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from modelreg.builders import backends
from modelreg.builders.backends import embedded_toolchain
from modelreg.builders.cells import CellRequest
from modelreg.builders.reusing import renew_damaged
from modelreg.registry import engines
from modelreg.registry.errors import (
    BuildError,
    IntegrityError,
    MissingDependencyError,
    StorageError,
    WorkerError,
)
from modelreg.registry.records import VersionRecord
from modelreg.registry.words import EngineStatus, Precision
from modelreg_testing.workshop import Workshop


def test_an_engine_whose_plan_is_gone_is_built_again(workshop: Workshop, version: VersionRecord) -> None:
    engine = workshop.build(version, Precision.FP16).engine
    for digest in (engine.plan_digest, engine.variant_digest):
        path = next((workshop.folder / "store" / "blobs").rglob(digest))
        path.unlink()
    again = workshop.build(version, Precision.FP16)
    assert not again.reused
    assert again.engine.plan_digest == engine.plan_digest  # the same recipe gives the same bytes
    assert again.engine.variant_digest == engine.variant_digest


def test_a_failed_cell_leaves_its_row_and_its_log_and_nothing_else(workshop: Workshop, version: VersionRecord) -> None:
    before = {blob.digest for blob in workshop.storage.iterate_blobs()}
    with pytest.raises(BuildError, match="no node 'conv9'"):
        workshop.build(version, Precision.FP16, nodes_to_exclude=("conv9",))
    (failed,) = workshop.engines(version)
    assert (failed.status, failed.files, failed.realised) == (EngineStatus.FAILED, (), {})
    assert failed.error == "the model has no node 'conv9' to exclude"
    after = {blob.digest for blob in workshop.storage.iterate_blobs()}
    assert after - before == {failed.log_digest}
    assert "VariantError" in workshop.log_of(failed)


def test_a_failed_cell_can_be_built_again(workshop: Workshop, version: VersionRecord) -> None:
    with pytest.raises(WorkerError, match="starting Python for the variant took longer than 0 s") as caught:
        workshop.build(version, Precision.FP16, timeout_s=0.0)
    assert workshop.log_of(workshop.engines(version)[0]).endswith(f"\nfailed: {caught.value}\n")
    outcome = workshop.build(version, Precision.FP16)
    assert [each.status for each in workshop.engines(version)] == [EngineStatus.FAILED, EngineStatus.BUILT]
    assert not outcome.reused


def broken_toolchain(tmp_path: Path, script: str) -> Path:
    """An interpreter that breaks when it is to run the builder, and runs everything else."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase "$*" in *builders/ort.py*) {script};; esac\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def test_another_name_of_the_same_interpreter_is_the_same_toolchain(
    workshop: Workshop, version: VersionRecord, tmp_path: Path
) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (tmp_path / "bin" / "python3").symlink_to("python")
    first = workshop.fill(request_with(workshop, version, python)).engine
    again = workshop.fill(request_with(workshop, version, tmp_path / "bin" / "python3"))
    assert (again.reused, again.engine.id) == (True, first.id)
    other = workshop.fill(workshop.request(version, Precision.FP32))
    assert not other.reused


def request_with(workshop: Workshop, version: VersionRecord, python: Path) -> CellRequest:
    toolchain = replace(embedded_toolchain(), python=str(python))
    return workshop.request(version, Precision.FP32, toolchain=toolchain)


@pytest.mark.parametrize(
    ("script", "fact"),
    [
        ("kill -SEGV $$", "was killed by SIGSEGV"),
        ("kill -KILL $$", r"was killed by SIGKILL \(perhaps out of memory\)"),
        ("echo oh dear >&2; exit 7", "exited with code 7 without an answer; its last log line: oh dear"),
        ("echo hello", "printed garbage"),
    ],
)
def test_a_toolchain_that_breaks_leaves_a_failed_cell(
    workshop: Workshop, version: VersionRecord, tmp_path: Path, script: str, fact: str
) -> None:
    request = request_with(workshop, version, broken_toolchain(tmp_path, script))
    with pytest.raises(WorkerError, match=fact):
        workshop.fill(request)
    (failed,) = workshop.engines(version)
    assert failed.status is EngineStatus.FAILED
    assert workshop.log_of(failed).startswith("cell: ")


def test_an_interpreter_that_is_gone_leaves_a_failed_cell(
    workshop: Workshop, version: VersionRecord, tmp_path: Path
) -> None:
    with pytest.raises(WorkerError, match="cannot start the interpreter"):
        workshop.fill(request_with(workshop, version, tmp_path / "gone"))
    assert "cannot start the interpreter" in workshop.engines(version)[0].error


def test_ctrl_c_records_the_cell_as_failed_and_is_passed_on(
    workshop: Workshop, version: VersionRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    def press() -> None:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    def interrupt(*_: object, **__: object) -> None:
        threading.Thread(target=press).start()
        time.sleep(30)

    monkeypatch.setattr(backends.OrtBuilder, "build", interrupt)
    with pytest.raises(KeyboardInterrupt):
        workshop.build(version, Precision.FP32)
    (failed,) = workshop.engines(version)
    assert (failed.status, failed.error) == (EngineStatus.FAILED, "interrupted")


def test_a_damaged_source_is_not_built(workshop: Workshop, version: VersionRecord) -> None:
    path = next((workshop.folder / "store" / "blobs").rglob(version.source.digest))
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with pytest.raises(IntegrityError):
        workshop.build(version, Precision.FP32)
    assert workshop.engines(version)[0].status is EngineStatus.FAILED


def test_a_full_disk_is_reported_even_when_the_failure_cannot_be_recorded(
    workshop: Workshop, version: VersionRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise StorageError("no space left")

    monkeypatch.setattr(workshop.storage, "put_file", refuse)
    with pytest.raises(StorageError, match="no space left"):
        workshop.build(version, Precision.FP32)
    assert workshop.engines(version) == []


def test_two_builders_must_agree_on_the_bytes_of_a_variant(
    workshop: Workshop, version: VersionRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "record_variant", lambda *_, **__: ())
    with pytest.raises(BuildError, match="another build made the same variant with other bytes"):
        workshop.build(version, Precision.FP16)


KILLED_BUILD = """
import os, signal, sys
from pathlib import Path
from modelreg.builders.backends import OrtBuilder
from modelreg.registry.words import Precision
from modelreg_testing.onnx_models import mlp
from modelreg_testing.workshop import Workshop

OrtBuilder.build = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
workshop = Workshop.open(Path(sys.argv[1]))
workshop.build(workshop.register(mlp()), Precision.FP32)
"""


@pytest.mark.slow
def test_the_folder_of_a_killed_build_goes_with_the_next_build(
    workshop: Workshop, version: VersionRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, other = tmp_path / "tmp", tmp_path / "other"
    place.mkdir()
    other.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(tempfile, "tempdir", None)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    done = subprocess.run([sys.executable, "-c", KILLED_BUILD, str(other)], env=env, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(list(place.glob("modelreg-build-*"))) == 1
    workshop.build(version, Precision.FP32)
    assert list(place.glob("modelreg-build-*")) == []


def test_a_missing_onnxruntime_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(MissingDependencyError, match="onnxruntime is not installed"):
        embedded_toolchain()


def damage(workshop: Workshop, digest: str) -> Path:
    """Flip a bit of a stored blob; return its file."""
    path = next((workshop.folder / "store" / "blobs").rglob(digest))
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    return path


@pytest.mark.slow
def test_a_damaged_engine_is_built_again_and_its_blob_is_whole_then(workshop: Workshop, version: VersionRecord) -> None:
    engine = workshop.build(version, Precision.FP32).engine
    damage(workshop, engine.plan_digest)
    renewed, said = renew_damaged(
        workshop.request(version, Precision.FP32), database=workshop.database, storage=workshop.storage
    )
    assert renewed.rebuild
    assert said.startswith("engine 1 is damaged and is built again: ")
    again = workshop.fill(renewed)
    assert not again.reused
    assert workshop.storage.verify_blob(engine.plan_digest) == engine.size_bytes


def test_a_whole_engine_or_a_rebuild_is_not_renewed(workshop: Workshop, version: VersionRecord) -> None:
    workshop.build(version, Precision.FP32)
    request = workshop.request(version, Precision.FP32)
    for asked in (request, replace(request, rebuild=True), workshop.request(version, Precision.FP16)):
        assert renew_damaged(asked, database=workshop.database, storage=workshop.storage) == (asked, "")


@pytest.mark.slow
def test_a_damaged_variant_is_made_again_and_the_log_says_so(workshop: Workshop, version: VersionRecord) -> None:
    engine = workshop.build(version, Precision.FP16).engine
    damage(workshop, engine.variant_digest)
    again = workshop.fill(replace(workshop.request(version, Precision.FP16), rebuild=True)).engine
    assert again.variant_digest == engine.variant_digest
    assert "the variant made before is damaged and is made again" in workshop.log_of(again)
    workshop.storage.verify_blob(engine.variant_digest)
