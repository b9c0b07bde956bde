"""`export triton` and `export onnx` on the released LeNet: what is written runs, and nothing is half-written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from modelreg_testing.cli import CliResult, Shop
from modelreg_testing.released_lenet import LENET, copy_of_released_lenet
from modelreg_testing.triton import check_served


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of_released_lenet(tmp_path_factory, tmp_path_factory.mktemp("export") / "home")


@pytest.fixture
def lenet(released: Path, tmp_path: Path) -> Shop:
    shutil.copytree(released, tmp_path / "home", symlinks=True)
    return Shop.at(tmp_path / "home")


def done(result: CliResult) -> CliResult:
    assert result.code == 0, result.err
    return result


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_release_becomes_a_model_that_triton_takes(lenet: Shop, tmp_path: Path) -> None:
    models = tmp_path / "deep" / "models"
    body = done(lenet.cli("export", "triton", "lenet@production", "--into", models, "--json")).document
    assert names(models) == ["lenet/1/model.onnx", "lenet/1/modelreg.json", "lenet/config.pbtxt"]
    config = check_served(models / "lenet")
    assert config.parameters["modelreg.release"].string_value == f"sha256:{body['release']}"
    assert config.parameters["modelreg.generation"].string_value == "2"
    assert (config.max_batch_size, [run.batch_size for run in config.model_warmup]) == (64, [1, 64])
    import onnxruntime as ort

    session = ort.InferenceSession(models / "lenet" / "1" / "model.onnx", providers=["CPUExecutionProvider"])
    run = config.model_warmup[1]
    shape = [run.batch_size, *run.inputs["image"].dims]
    (logits,) = session.run(None, {"image": np.zeros(shape, np.float32)})
    assert logits.shape == (64, *config.output[0].dims)


def test_the_same_release_is_not_written_twice_and_a_new_one_is_the_next_version(lenet: Shop, tmp_path: Path) -> None:
    models = tmp_path / "models"
    words = ("export", "triton", "lenet@production", "--into", models, "--json")
    assert done(lenet.cli(*words)).document["written"] is True
    again = done(lenet.cli(*words)).document
    assert (again["written"], again["config_written"], again["triton_version"]) == (False, False, 1)
    changed = done(lenet.cli(*words, "--instances", "3")).document
    assert (changed["written"], changed["config_written"]) == (False, True)
    assert check_served(models / "lenet").instance_group[0].count == 3
    (models / "lenet" / "7").mkdir()  # whoever made it
    (models / "lenet" / "007").mkdir()  # Triton ignores it, and so do we
    done(lenet.cli("rollback", "lenet@production"))
    rolled = done(lenet.cli(*words)).document
    assert (rolled["triton_version"], rolled["generation"]) == (8, 3)
    done(lenet.cli("rollback", "lenet@production", "--to-generation", "2"))
    back = done(lenet.cli(*words)).document
    assert (back["triton_version"], back["release"]) == (9, again["release"])
    assert json.loads((models / "lenet" / "9" / "modelreg.json").read_text())["release"] == again["release"]


def test_a_version_is_exported_as_a_promotion_would_release_it(lenet: Shop, tmp_path: Path) -> None:
    models = tmp_path / "models"
    words = ("export", "triton", "lenet:2", "--into", models, "--json")
    planned = done(lenet.cli(*words)).document
    active = done(lenet.cli("export", "triton", "lenet@production", "--into", models, "--json")).document
    assert planned["release"] == active["release"]
    assert (planned["generation"], active["generation"], active["written"]) == (None, 2, False)
    other = done(lenet.cli(*words, "--precision", "fp32", "--name", "lenet-fp32")).document
    assert other["release"] != active["release"]
    check_served(models / "lenet-fp32")


def test_an_engine_without_a_verdict_is_not_exported(lenet: Shop, tmp_path: Path) -> None:
    done(lenet.cli("register", "fresh", LENET / "lenet-v1.onnx", "--golden", LENET / "golden-v1.npz"))
    done(lenet.cli("build", "fresh:1", "--precision", "fp32"))
    refused = lenet.cli("export", "triton", "fresh:1", "--into", tmp_path / "models")
    assert refused.code == 3
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("lenet",), 2, "neither a version nor a channel"),
        (("lenet@staging",), 1, "has no active release"),
        (("lenet@production", "--target", "sm_90"), 2, "no target 'sm_90'"),
        (("lenet@production", "--precision", "fp32"), 2, "--precision belongs to a version"),
        (("lenet@production", "--version-policy", "newest"), 2, "no version policy"),
        (("lenet@production", "--name", "../x"), 2, "no name of a folder"),
        (("lenet@production", "--max-batch", "0"), 2, "below 1"),
        (("lenet@production", "--version-policy", "specific:4"), 2, "version 4, which is not there"),
    ],
)
def test_what_cannot_be_exported_is_refused_before_anything_is_written(
    lenet: Shop, tmp_path: Path, words: tuple[str, ...], code: int, says: str
) -> None:
    refused = lenet.cli("export", "triton", *words, "--into", tmp_path / "models")
    assert refused.code == code
    assert says in refused.err
    assert not (tmp_path / "models").exists()


def test_a_model_of_somebody_else_is_left_alone(lenet: Shop, tmp_path: Path) -> None:
    theirs = tmp_path / "models" / "lenet"
    theirs.mkdir(parents=True)
    (theirs / "config.pbtxt").write_text('name: "lenet"')
    refused = lenet.cli("export", "triton", "lenet@production", "--into", tmp_path / "models")
    assert refused.code == 2
    assert "did not write" in refused.err
    assert names(theirs) == ["config.pbtxt"]


def test_versions_of_different_interfaces_are_not_served_side_by_side(lenet: Shop, tmp_path: Path) -> None:
    models = tmp_path / "models"
    done(lenet.cli("export", "triton", "lenet@production", "--into", models))
    mark = models / "lenet" / "1" / "modelreg.json"
    mark.write_text(json.dumps({**json.loads(mark.read_text()), "interface": "0" * 64}))
    words = ("export", "triton", "lenet@production", "--into", models, "--version-policy")
    refused = lenet.cli(*words, "latest:2")
    assert refused.code == 2
    assert "another interface" in refused.err
    assert done(lenet.cli(*words, "latest:1", "--json")).document["triton_version"] == 2


def test_a_damaged_plan_is_exit_6_and_leaves_nothing(lenet: Shop, tmp_path: Path) -> None:
    words = ("export", "triton", "lenet@production", "--into", tmp_path / "x", "--dry-run", "--json")
    plan = done(lenet.cli(*words)).document["files"][0]["sha256"]
    blob = next(path for path in (lenet.path / "store" / "blobs").rglob("*") if path.name.endswith(plan[-40:]))
    data = bytearray(blob.read_bytes())
    data[1000] ^= 1
    blob.chmod(0o644)
    blob.write_bytes(data)
    models = tmp_path / "models"
    refused = lenet.cli("export", "triton", "lenet@production", "--into", models)
    assert refused.code == 6
    assert list(models.iterdir()) == []


def test_a_dry_run_shows_the_configuration_and_writes_nothing(lenet: Shop, tmp_path: Path) -> None:
    shown = done(lenet.cli("export", "triton", "lenet@production", "--into", tmp_path / "models", "--dry-run"))
    assert 'platform: "onnxruntime_onnx"' in shown.out
    assert "would be written" in shown.out
    assert not (tmp_path / "models").exists()


@pytest.mark.slow
def test_the_source_is_written_as_it_was_registered(lenet: Shop, tmp_path: Path) -> None:
    done(lenet.cli("export", "onnx", "lenet:1", "--into", tmp_path / "out", "--dry-run"))
    assert not (tmp_path / "out").exists()
    done(lenet.cli("export", "onnx", "lenet:1", "--into", tmp_path / "out"))
    assert (tmp_path / "out" / "model.onnx").read_bytes() == (LENET / "lenet-v1.onnx").read_bytes()
    assert names(tmp_path / "out") == ["model.onnx"]
    again = lenet.cli("export", "onnx", "lenet:1", "--into", tmp_path / "out")
    assert (again.code, "not a new or empty folder" in again.err) == (2, True)


def test_the_variant_of_a_precision_has_its_nodes(lenet: Shop, tmp_path: Path) -> None:
    import onnx

    body = done(
        lenet.cli("export", "onnx", "lenet@production", "--precision", "int8", "--into", tmp_path / "q", "--json")
    )
    model = onnx.load(tmp_path / "q" / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert "QuantizeLinear" in {node.op_type for node in model.graph.node}
    assert body.document["version"] == 2
    plain = done(lenet.cli("export", "onnx", "lenet:1", "--precision", "fp32", "--into", tmp_path / "p"))
    assert "unchanged" in plain.out
    assert (tmp_path / "p" / "model.onnx").read_bytes() == (LENET / "lenet-v1.onnx").read_bytes()
    missing = lenet.cli("export", "onnx", "lenet:1", "--precision", "fp16", "--into", tmp_path / "r")
    assert missing.code == 1
    assert "modelreg build lenet:1 --precision fp16" in missing.err


def test_external_data_comes_along(lenet: Shop, tmp_path: Path) -> None:
    import onnx

    source = tmp_path / "source" / "big.onnx"
    source.parent.mkdir()
    model = onnx.load(LENET / "lenet-v1.onnx")
    onnx.save(model, source, save_as_external_data=True, location="weights.bin", size_threshold=0)
    done(lenet.cli("register", "big", source))
    done(lenet.cli("export", "onnx", "big:1", "--into", tmp_path / "out"))
    assert names(tmp_path / "out") == ["model.onnx", "weights.bin"]
    import onnxruntime as ort

    ort.InferenceSession(tmp_path / "out" / "model.onnx", providers=["CPUExecutionProvider"])
    done(lenet.cli("export", "bundle", "big:1", "--into", tmp_path / "big.tar"))
    other = Shop(tmp_path / "other")
    done(other.cli("import", tmp_path / "big.tar"))
    assert "nothing damaged" in done(other.cli("verify")).out
    done(other.cli("export", "onnx", "big:1", "--into", tmp_path / "again"))
    for name in ("model.onnx", "weights.bin"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()
