"""A model of a repository on disk: two GPUs in one version, and what is left when an export fails half-way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modelreg.registry.contents import Signature, StoredFile, TensorSpec
from modelreg.registry.errors import ConflictError, IntegrityError, UsageError
from modelreg.registry.manifest import ReleasedEngine
from modelreg.registry.storage.local import LocalStorage
from modelreg.registry.words import Backend, Precision
from modelreg.runtime.triton.configuration import ServingOptions, make_configuration
from modelreg.runtime.triton.engines import ServedEngine, place_engines
from modelreg.runtime.triton.repository import ExportPlan, carry_out, make_mark, plan_export, read_entry
from modelreg_testing.plans import tensorrt_plan
from modelreg_testing.triton import check_served

SIGNATURE = Signature(
    inputs=(TensorSpec(name="x", dtype="float32", shape=("N", 4)), TensorSpec(name="n", dtype="int64", shape=("N",))),
    outputs=(TensorSpec(name="y", dtype="float16", shape=(None, 2)),),
)
PROFILE = {
    "x": {"min": [1, 4], "opt": [4, 4], "max": [16, 4]},
    "n": {"min": [1], "opt": [4], "max": [16]},
}


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage.create(tmp_path / "store")


def plan_of(storage: LocalStorage, models: Path, *, word: str = "one", **options: Any) -> ExportPlan:
    """Return the plan of exporting a release for two GPUs whose plans differ by `word`."""
    served = []
    for target in ("sm_86", "sm_90"):
        blob = storage.put_bytes(tensorrt_plan("10.3.0.26", body=f"{word} {target}".encode()))
        engine = ReleasedEngine(
            target=target,
            backend=Backend.TENSORRT,
            backend_version="10.3.0.26",
            precision=Precision.FP16,
            recipe_digest="a" * 64,
            realised={},
            gpu="",
            driver="",
            cuda="",
            files=(StoredFile(path=f"{target}/model.plan", digest=blob.digest, size_bytes=blob.size_bytes),),
        )
        served.append(ServedEngine(engine=engine, recipe={"build": {"profiles": [PROFILE]}}))
    placed = place_engines(served)
    made = make_configuration("m", SIGNATURE, placed, ServingOptions(**options), parameters={"word": word})
    mark = make_mark(made, release={"release": word, "files": [file.to_json() for file in placed.files]})
    return plan_export(read_entry(models, "m"), made, mark=mark, files=placed.files)


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_two_gpus_are_one_model(storage: LocalStorage, tmp_path: Path) -> None:
    models = tmp_path / "models"
    carry_out(plan_of(storage, models), storage)
    config = check_served(models / "m")
    assert dict(config.cc_model_filenames) == {"8.6": "model_sm_86.plan", "9.0": "model_sm_90.plan"}
    assert list(config.input[1].dims) == [1]
    assert config.input[1].HasField("reshape")
    for target in ("sm_86", "sm_90"):
        assert (models / "m" / "1" / f"model_{target}.plan").read_bytes().endswith(target.encode())
    again = plan_of(storage, models)
    assert (again.is_new, again.changes_config, again.version) == (False, False, 1)
    carry_out(plan_of(storage, models, word="two"), storage)
    assert names(models / "m" / "2") == ["model_sm_86.plan", "model_sm_90.plan", "modelreg.json"]
    check_served(models / "m")


def test_a_failure_half_way_leaves_what_was_there(storage: LocalStorage, tmp_path: Path) -> None:
    models = tmp_path / "models"
    carry_out(plan_of(storage, models), storage)
    before = names(models)
    plan = plan_of(storage, models, word="two")
    last = plan.files[-1].digest
    place = next(path for path in (tmp_path / "store" / "blobs").rglob("*") if path.name == last)
    place.chmod(0o644)
    place.write_bytes(b"damaged")
    with pytest.raises(IntegrityError):
        carry_out(plan, storage)
    assert names(models) == before
    check_served(models / "m")


def test_of_two_exports_at_once_one_is_told(storage: LocalStorage, tmp_path: Path) -> None:
    models = tmp_path / "models"
    first, second = plan_of(storage, models), plan_of(storage, models, word="two")
    carry_out(first, storage)
    with pytest.raises(ConflictError, match="made meanwhile"):
        carry_out(second, storage)
    assert names(models / "m" / "1") == ["model_sm_86.plan", "model_sm_90.plan", "modelreg.json"]
    third, fourth = plan_of(storage, models, word="two"), plan_of(storage, models, word="three")
    carry_out(third, storage)
    with pytest.raises(ConflictError, match="made meanwhile"):
        carry_out(fourth, storage)
    check_served(models / "m")


def test_a_configuration_that_was_not_written_any_more_is_written_by_the_next_export(
    storage: LocalStorage, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    carry_out(plan_of(storage, models), storage)
    stale = (models / "m" / "config.pbtxt").read_text()
    carry_out(plan_of(storage, models, word="two"), storage)
    (models / "m" / "config.pbtxt").write_text(stale)  # as after a crash between the two
    repair = plan_of(storage, models, word="two")
    assert (repair.is_new, repair.changes_config) == (False, True)
    carry_out(repair, storage)
    assert check_served(models / "m").parameters["word"].string_value == "two"


def test_a_policy_has_to_serve_what_is_written(storage: LocalStorage, tmp_path: Path) -> None:
    models = tmp_path / "models"
    carry_out(plan_of(storage, models), storage)
    with pytest.raises(UsageError, match="leaves out version 2"):
        plan_of(storage, models, word="two", version_policy="specific:1")
    assert plan_of(storage, models, word="two", version_policy="all").version == 2


def test_a_file_is_no_repository(storage: LocalStorage, tmp_path: Path) -> None:
    (tmp_path / "models").write_text("")
    with pytest.raises(UsageError, match="is no folder"):
        plan_of(storage, tmp_path / "models")
