"""An older database beside a newer store: what the store's releases still tell of versions that it has lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from modelreg.registry import versions
from modelreg.registry.backups import make_backup
from modelreg.registry.checks.findings import Finding, Level
from modelreg.registry.doctor import Doctor
from modelreg.registry.errors import ForeignReleaseError
from modelreg.registry.promotion import PromotionRequest
from modelreg.registry.records import VersionRecord
from modelreg.registry.references import ModelReference
from modelreg.registry.releasing import Releases
from modelreg.registry.words import Precision
from modelreg_testing import onnx_models
from modelreg_testing.doctors import bad
from modelreg_testing.registry import add_engine, add_validation
from modelreg_testing.workshop import Workshop


class Place(Workshop):
    """A registry whose database can be put back."""

    def release(self, version: VersionRecord) -> None:
        from modelreg.registry.contents import StoredFile

        plan = self.storage.put_bytes(f"plan of {version.reference}".encode())
        self.storage.put_bytes(f"log {version.reference} cpu fp32".encode())
        file = StoredFile(path="model.onnx", digest=plan.digest, size_bytes=plan.size_bytes)
        with self.database.write() as connection:
            engine = add_engine(connection, version, files=[file])
            from modelreg.registry import golden_sets

            golden = self.storage.put_bytes(b"golden")
            golden_sets.add_golden_set(
                connection,
                version=version,
                digest=golden.digest,
                size_bytes=golden.size_bytes,
                samples=1,
                origin={},
                actor="a",
            )
            add_validation(connection, engine, golden=golden.digest)
        self.promote(version.number)

    def promote(self, number: int) -> None:
        Releases(database=self.database, storage=self.storage, actor="ada").promote(
            ModelReference(model="net", version=number),
            channel="production",
            request=PromotionRequest(preference=lambda _target: (Precision.FP32,)),
        )

    def doctor(self) -> Doctor:
        return Doctor(database=self.database, storage=self.storage, actor="doctor")

    def back_up(self) -> Path:
        path = self.folder / "backup.db"
        make_backup(self.database, path, replace=True)
        return path

    def put_back(self, backup: Path) -> None:
        self.database.close()
        for suffix in ("-wal", "-shm"):
            (self.folder / f"registry.db{suffix}").unlink(missing_ok=True)
        shutil.copy(backup, self.folder / "registry.db")


@pytest.fixture
def place(in_memory: Path) -> Place:
    made = Place.open(in_memory)
    assert isinstance(made, Place)
    made.release(made.register(onnx_models.mlp(seed=1)))
    return made


def levels(findings: list[Finding]) -> set[tuple[Level, str]]:
    return {(finding.level, finding.check) for finding in findings if finding.level is not Level.OK}


def external_model(place: Place) -> Path:
    model = onnx_models.mlp(features=64, hidden=64, seed=3)
    return onnx_models.save_with_external_data(model, place.folder / "ext" / "net.onnx", location="weights.bin")


@pytest.mark.parametrize("kind", ["alone", "external data"])
def test_a_version_that_the_database_lost_is_read_back_from_the_store(place: Place, kind: str) -> None:
    backup = place.back_up()
    lost = place.register(onnx_models.mlp(seed=2) if kind == "alone" else external_model(place))
    place.release(lost)
    place.put_back(backup)
    with pytest.raises(ForeignReleaseError, match="net:2"):
        place.promote(1)
    assert levels(place.doctor().examine()) >= {(Level.FIXABLE, "version"), (Level.FIXABLE, "pointer")}
    fixed = place.doctor().repair()
    assert {level for level, _ in levels(fixed)} <= {Level.FIXED, Level.WARNING}
    with place.database.read() as connection:
        found = versions.get_version(connection, ModelReference(model="net", version=2))
    assert found.source == lost.source
    assert {level for level, _ in levels(place.doctor().repair())} <= {Level.WARNING}  # what nobody names any more
    place.promote(1)
    assert place.register(onnx_models.mlp(seed=4)).number == 3


def test_a_number_that_was_given_again_is_a_matter_for_a_person(place: Place) -> None:
    backup = place.back_up()
    place.release(place.register(onnx_models.mlp(seed=2)))
    place.put_back(backup)
    assert place.register(onnx_models.mlp(seed=5)).number == 2
    before = place.doctor().examine()
    after = place.doctor().repair()
    assert (Level.FIXED, "version") not in levels(after)
    assert [f.message for f in bad(after)] == [f.message for f in bad(before)]


def test_a_source_that_the_store_lost_too_is_said(place: Place) -> None:
    backup = place.back_up()
    lost = place.register(onnx_models.mlp(seed=2))
    place.release(lost)
    place.put_back(backup)
    digest = lost.source.digest
    (place.storage.root / "blobs" / "sha256" / digest[:2] / digest).unlink()
    for findings in (place.doctor().examine(), place.doctor().repair()):
        [told] = [finding for finding in findings if finding.check == "version"]
        assert told.level is Level.PROBLEM
        assert f"the store has no blob {digest[:12]}" in told.message
    assert "newer backup" in told.hint


def test_a_source_that_is_damaged_is_not_taken(place: Place) -> None:
    backup = place.back_up()
    lost = place.register(onnx_models.mlp(seed=2))
    place.release(lost)
    place.put_back(backup)
    digest = lost.source.digest
    blob = place.storage.root / "blobs" / "sha256" / digest[:2] / digest
    blob.chmod(0o644)
    blob.write_bytes(blob.read_bytes()[:-1] + b"?")
    place.doctor().repair()
    with place.database.read() as connection:
        assert [model.newest for model in versions.list_models(connection)] == [1]
