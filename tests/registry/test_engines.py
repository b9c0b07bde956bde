import pytest

from modelreg.registry import blobs, engines
from modelreg.registry.contents import StoredFile
from modelreg.registry.database import Database
from modelreg.registry.errors import IntegrityError, NotFoundError
from modelreg.registry.records import ToolchainRecord
from modelreg.registry.words import Backend, BlobKind, EngineStatus, Precision
from modelreg_testing.registry import (
    ACTOR,
    add_engine,
    add_target,
    add_toolchain,
    add_version,
    digest_of,
    row_counts,
)


def test_an_engine_is_read_back_as_it_was_recorded(database: Database) -> None:
    with database.write() as connection:
        version = add_version(connection)
        files = [
            StoredFile(path="model.plan", digest=digest_of("plan"), size_bytes=7),
            StoredFile(path="weights.bin", digest=digest_of("weights"), size_bytes=5),
        ]
        made = add_engine(connection, version, precision=Precision.INT8, target="sm_90", files=files)
        kinds = {blob.digest: blob.kind for blob in blobs.list_blobs(connection)}
    with database.read() as connection:
        assert engines.get_engine(connection, made.id) == made
        assert engines.list_engines(connection, version_id=version.id) == [made]
    assert (made.plan_digest, made.size_bytes, made.target.gpu) == (digest_of("plan"), 12, "NVIDIA H200")
    assert kinds[digest_of("weights")] is BlobKind.PLAN


def test_a_failed_attempt_is_kept_with_its_error_and_no_files(database: Database) -> None:
    with database.write() as connection:
        made = add_engine(connection, add_version(connection), status=EngineStatus.FAILED)
    with database.read() as connection:
        found = engines.get_engine(connection, made.id)
    assert (found.status, found.files, found.plan_digest) == (EngineStatus.FAILED, (), "")
    assert found.error == "the worker crashed"


@pytest.mark.parametrize(
    ("status", "files"),
    [(EngineStatus.BUILT, []), (EngineStatus.FAILED, [StoredFile(path="a", digest="0" * 64, size_bytes=1)])],
)
def test_files_and_status_must_agree(database: Database, status: EngineStatus, files: list[StoredFile]) -> None:
    with database.write() as connection, pytest.raises(ValueError, match=f"a {status} engine with {len(files)} files"):
        engines.record_engine(
            connection,
            version=add_version(connection),
            target=add_target(connection),
            toolchain=add_toolchain(connection),
            precision=Precision.FP32,
            recipe={},
            recipe_digest="",
            variant_digest="",
            status=status,
            files=files,
            realised={},
            build_s=0.0,
            log_digest="",
            error="",
            actor=ACTOR,
        )


def test_an_unknown_engine_is_not_found(database: Database) -> None:
    with database.read() as connection, pytest.raises(NotFoundError, match="there is no engine 77"):
        engines.get_engine(connection, 77)


def test_the_current_engines_are_the_newest_of_each_recipe_and_cell(database: Database) -> None:
    with database.write() as connection:
        version, other = add_version(connection), add_version(connection, word="other")
        rebuilt = [add_engine(connection, version) for _ in range(2)]
        gpu = add_engine(connection, version, target="sm_90")
        upgraded = add_engine(connection, version, toolchain=add_toolchain(connection, version="1.24.0"))
        trt = add_engine(connection, version, toolchain=add_toolchain(connection, backend=Backend.TENSORRT))
        add_engine(connection, other)
    with database.read() as connection:
        current = engines.current_engines(connection, version_id=version.id)
        everything = engines.list_engines(connection, version_id=version.id)
    assert current == [rebuilt[1], gpu, upgraded, trt]
    assert [engine.id for engine in everything] == sorted(engine.id for engine in everything)
    assert len(everything) == 5


def test_a_failed_attempt_never_hides_an_engine_that_was_built(database: Database) -> None:
    fp16 = Precision.FP16
    with database.write() as connection:
        version = add_version(connection)
        good = add_engine(connection, version, precision=fp16)
        bad = add_engine(connection, version, precision=fp16, status=EngineStatus.FAILED)
        assert engines.current_engines(connection, version_id=version.id) == [good, bad]
        mended = add_engine(connection, version, precision=fp16)
        assert engines.current_engines(connection, version_id=version.id) == [mended]


def test_the_same_driver_and_gpu_are_the_same_target(database: Database) -> None:
    with database.write() as connection:
        first = engines.ensure_target(connection, name="sm_90", gpu="H200", sm_count=132, driver="570", cuda="12.8")
        same = engines.ensure_target(connection, name="sm_90", gpu="H200", sm_count=132, driver="570", cuda="12.8")
        updated = engines.ensure_target(connection, name="sm_90", gpu="H200", sm_count=132, driver="580", cuda="12.8")
        smaller = engines.ensure_target(connection, name="sm_90", gpu="H200", sm_count=66, driver="570", cuda="12.8")
    assert first == same
    assert len({first.id, updated.id, smaller.id}) == 3


def test_a_toolchain_keeps_what_it_was_added_with_and_a_new_version_is_another(database: Database) -> None:
    def ensure(version: str, details: dict[str, str]) -> ToolchainRecord:
        with database.write() as connection:
            return engines.ensure_toolchain(
                connection,
                name="trt",
                backend=Backend.TENSORRT,
                version=version,
                python="/opt/trt/bin/python",
                details=details,
                actor=ACTOR,
            )

    first = ensure("10.16", {"cuda": "12.8"})
    rows = row_counts(database)
    assert ensure("10.16", {"cuda": "13.0"}) == first
    assert row_counts(database) == rows
    assert ensure("11.0", {}).id != first.id


def test_a_variant_is_noted_once_and_the_first_bytes_stay(database: Database) -> None:
    def record(word: str) -> tuple[StoredFile, ...]:
        with database.write() as connection:
            return engines.record_variant(
                connection,
                source_digest="1" * 64,
                recipe_digest="2" * 64,
                files=[StoredFile(path="model.onnx", digest=digest_of(word), size_bytes=9)],
                details={"casts": 3},
                actor=ACTOR,
            )

    with database.read() as connection:
        assert engines.find_variant(connection, source_digest="1" * 64, recipe_digest="2" * 64) is None
    first = record("first")
    assert record("second") == first
    with database.read() as connection:
        assert engines.find_variant(connection, source_digest="1" * 64, recipe_digest="2" * 64) == first
        assert [blob.kind for blob in blobs.list_blobs(connection)] == [BlobKind.VARIANT]


def test_a_blob_keeps_its_first_kind_and_must_keep_its_size(database: Database) -> None:
    with database.write() as connection:
        blobs.record_blob(connection, digest="1" * 64, size_bytes=5, kind=BlobKind.SOURCE)
        blobs.record_blob(connection, digest="1" * 64, size_bytes=5, kind=BlobKind.PLAN)
        assert [blob.kind for blob in blobs.list_blobs(connection)] == [BlobKind.SOURCE]
        with pytest.raises(IntegrityError, match="recorded with 5 bytes, now it has 6"):
            blobs.record_blob(connection, digest="1" * 64, size_bytes=6, kind=BlobKind.SOURCE)
