"""INT8 beside FP16, a version beside what a channel serves, slices and a task's own metric: on the LeNet."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelreg.registry.tensor_sets import write_tensor_set
from modelreg_testing.checkout import ROOT
from modelreg_testing.cli import CliResult, Shop, run_cli

LENET = ROOT / "examples" / "lenet"

pytestmark = pytest.mark.slow


def gates_of(result: CliResult) -> dict[str, dict[str, Any]]:
    (validation,) = result.document["validations"]
    return {gate["gate"]: gate for gate in validation["gates"]}


def with_slices(version: int, folder: Path) -> Path:
    """Write the golden set of a version with the digits as slices, and as identities for retrieval."""
    with np.load(LENET / f"golden-v{version}.npz") as arrays:
        contents = dict(arrays)
    contents["slice"] = contents["label"]
    contents["label.identity"] = contents["label"]
    path = folder / f"golden-v{version}.safetensors"
    write_tensor_set(path, contents, {"slice_names": '["nought", "one"]'})
    return path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a home whose production serves version 1 in FP16, with an INT8 engine beside it, and a version 2."""
    folder = tmp_path_factory.mktemp("served")
    shop = Shop(folder)
    (shop.path / "policies" / "lenet").mkdir(parents=True)
    own = '[[rules]]\nmetric = "retrieval"\napplies_to = "task"\nlimit = 0.02\n'
    (shop.path / "policies" / "lenet" / "fp16.toml").write_text(own)
    for version in (1, 2):
        golden = with_slices(version, folder)
        done = shop.cli("register", "lenet", LENET / f"lenet-v{version}.onnx", "--golden", golden)
        assert done.code == 0, done.err
    calibration = ("--calibration", LENET / "calibration.npz")
    assert shop.cli("build", "lenet:1", "--precision", "fp16,int8", *calibration).code == 0
    assert shop.cli("build", "lenet:2", "--precision", "fp32").code == 0
    first = shop.cli("validate", "lenet:1", "--precision", "fp16", "--json")
    assert first.code == 0, first.out
    assert shop.cli("promote", "lenet:1", "--to", "production").code == 0
    return shop.path


@pytest.fixture
def home(served: Path, tmp_path: Path) -> Path:
    shutil.copytree(served, tmp_path / "home")
    return tmp_path / "home"


def test_int8_passes_since_it_is_smaller_than_its_sibling_and_says_how_fast_it_is(home: Path) -> None:
    result = run_cli("validate", "lenet:1", "--precision", "int8", "--json", home=home)
    assert result.code == 0, result.out
    gain = gates_of(result)["gain"]
    assert gain["outcome"] == "pass"
    assert gain["measured"] > 0.1
    report = run_cli("show", "lenet:1", "--json", home=home).document
    assert report["engines"][1]["validation"]["gates"]


def test_int8_that_is_neither_smaller_nor_faster_is_retired_and_promote_takes_fp16(home: Path) -> None:
    # Nothing is a hundred times as small: what is asked cannot be given, and no clock decides it.
    strict = '[[rules]]\nmetric = "gain"\nlimit = 0.9999\n'
    (home / "policies" / "lenet" / "int8.toml").write_text(strict)
    result = run_cli("validate", "lenet:1", "--precision", "int8", "--json", home=home)
    assert result.code == 3
    gain = gates_of(result)["gain"]
    assert gain["outcome"] == "fail"
    assert "int8 is worth nothing here, retire it and serve fp16" in gain["reason"]
    promoted = run_cli("promote", "lenet:1", "--to", "canary", "--json", home=home)
    assert promoted.code == 0, promoted.err
    assert "fp16" in promoted.out


def test_a_version_is_compared_with_what_the_channel_serves(home: Path) -> None:
    result = run_cli("validate", "lenet:2", "--against", "production", "--json", home=home)
    assert result.code == 0, result.out
    found = gates_of(result)
    drop = found["active_accuracy_drop"]
    assert drop["subject"] == "lenet:1 in production"
    assert drop["outcome"] == "pass"
    assert -0.1 < drop["measured"] < 0.01
    assert found["active_latency_ratio"]["measured"] > 0
    assert found["gain"]["outcome"] == "skipped" if "gain" in found else True


def test_samples_that_users_would_lose_fail_although_the_reference_is_followed(home: Path, tmp_path: Path) -> None:
    """The new version is faithful to its own reference, which is worse than what is served."""
    golden = with_slices(2, tmp_path)
    from modelreg.registry.tensor_sets import open_tensor_set

    with open_tensor_set(golden) as opened:
        arrays = {name: opened.read(name) for name in opened.tensors}
    # Labels of a task that version 1 does better: where the two disagree, version 1 is right.
    one = run_cli("validate", "lenet:2", "--against", "staging", home=home)
    assert one.code == 1
    assert "staging" in one.err
    with np.load(LENET / "golden-v1.npz") as first:
        decided = first["output.logits"].argmax(axis=1)
    disagree = int((arrays["output.logits"].argmax(axis=1) != decided).sum())
    assert disagree >= 5
    arrays["label"] = decided
    worse = tmp_path / "worse.safetensors"
    write_tensor_set(worse, arrays, {})
    done = run_cli("register", "lenet", LENET / "lenet-v2.onnx", "--golden", worse, "-m", "other task", home=home)
    assert done.code == 0, done.err
    assert run_cli("validate", "lenet:2", home=home).code == 0
    result = run_cli("validate", "lenet:2", "--against", "production", "--json", home=home)
    assert result.code == 3
    drop = gates_of(result)["active_accuracy_drop"]
    assert drop["outcome"] == "fail"
    assert f"{disagree} samples that lenet:1 in production gets right are lost, 0 gained" in drop["reason"]


def test_the_engine_that_is_served_is_not_compared_with_itself(home: Path) -> None:
    found = run_cli("validate", "lenet:1", "--precision", "fp16", "--against", "production", "--json", home=home)
    assert found.code == 0, found.out
    gates = gates_of(found)
    assert gates["active_accuracy_drop"]["outcome"] == "skipped"
    assert gates["active_accuracy_drop"]["reason"] == "it is what production serves now"


def test_slices_are_named_and_the_metric_of_the_policy_is_a_gate(home: Path) -> None:
    result = run_cli("validate", "lenet:1", "--precision", "fp16", "--json", home=home)
    gates = gates_of(result)
    assert gates["slice_sqnr_db"]["subject"].startswith("logits (rounded), slice ")
    assert gates["retrieval"]["outcome"] == "pass"
    assert abs(gates["retrieval"]["measured"]) < 0.02
