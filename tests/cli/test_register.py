from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from modelreg_testing import onnx_faults, onnx_models
from modelreg_testing.checkout import ROOT
from modelreg_testing.cli import Shop, save_npz
from modelreg_testing.registry import row_counts

LENET = ROOT / "examples" / "lenet"


@pytest.fixture
def lenet(tmp_path: Path) -> Path:
    return onnx_models.save(onnx_models.mlp(), tmp_path / "mlp.onnx")


def contents(shop: Shop) -> tuple[dict[str, int], set[str], list[Path]]:
    """Return all that a refused command must leave as it was: rows, blobs, temporary files."""
    with shop.database() as database:
        rows = row_counts(database)
    return rows, {blob.digest for blob in shop.storage.iterate_blobs()}, list((shop.path / "store" / "tmp").rglob("*"))


def golden_of(model: onnx.ModelProto, *, samples: int = 6) -> dict[str, NDArray[Any]]:
    """Return a golden set that fits a model with one input and one output."""
    from onnx.reference import ReferenceEvaluator

    spec, output = model.graph.input[0], model.graph.output[0]
    width = spec.type.tensor_type.shape.dim[1].dim_value
    inputs = np.random.default_rng(0).normal(size=(samples, width)).astype(np.float32)
    answer = np.asarray(next(iter(ReferenceEvaluator(model).run(None, {spec.name: inputs}))))
    return {f"input.{spec.name}": inputs, f"output.{output.name}": answer.astype(np.float32)}


def test_a_model_that_runs_nowhere_is_refused_before_anything_is_written(shop: Shop, tmp_path: Path) -> None:
    model = onnx_models.mlp()
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    first = weights[model.graph.node[0].input[1]]
    rows, columns = first.dims
    first.CopyFrom(onnx_models.weight(first.name, np.zeros((rows, columns + 1), np.float32)))
    before = contents(shop)
    refused = shop.cli("register", "lenet", onnx_models.save(model, tmp_path / "bad.onnx"))
    assert refused.code == 1
    assert "bad.onnx runs nowhere: " in refused.err
    assert f"{first.name} float32[{rows}, {columns + 1}]" in refused.err
    assert "hint: No backend builds it" in refused.err
    assert contents(shop) == before


def test_a_model_becomes_a_version_and_the_same_bytes_the_same_version(shop: Shop, lenet: Path) -> None:
    first = shop.cli("register", "lenet", lenet, "-m", "first", "--tag", "run=7", "--tag", "set=a=b")
    assert first.code == 0
    assert first.out.startswith("lenet:1 registered: sha256:")
    assert "no golden set" in first.out
    document = shop.cli("show", "lenet:1", "--json").document
    assert document["message"] == "first"
    assert document["tags"] == {"run": "7", "set": "a=b"}
    assert document["created_by"] == "ada@lab"

    again = shop.cli("register", "lenet", lenet, "-m", "other", "--json")
    assert again.code == 0
    assert again.document["created"] is False
    assert again.document["message"] == "first"
    assert "keeps its own message" in again.err
    assert shop.cli("list", "--json").document["models"][0]["versions"] == 1
    assert shop.cli("register", "other", lenet).out.startswith("other:1 registered")


def test_external_data_comes_along_and_the_digest_covers_it(shop: Shop, tmp_path: Path) -> None:
    path = onnx_models.save_with_external_data(onnx_models.mlp(), tmp_path / "big.onnx")
    assert shop.cli("register", "big", path).code == 0
    files = shop.cli("show", "big:1", "--json").document["source"]["files"]
    assert len(files) == 2
    data = path.with_name(files[1]["path"])
    data.write_bytes(data.read_bytes()[:-1] + b"\x00")
    assert shop.cli("register", "big", path).out.startswith("big:2 registered")


def test_a_golden_set_is_kept_in_one_form_whatever_it_came_in(shop: Shop, lenet: Path, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    arrays = golden_of(onnx.load(lenet))
    save_npz(tmp_path / "golden.npz", arrays)
    save_file(dict(arrays), tmp_path / "golden.safetensors")
    one = shop.cli("register", "lenet", lenet, "--golden", tmp_path / "golden.npz", "--json").document
    two = shop.cli("register", "lenet", lenet, "--golden", tmp_path / "golden.safetensors", "--json").document
    assert one["golden_set"]["samples"] == 6
    assert one["golden_set"]["sha256"] == two["golden_set"]["sha256"]
    assert shop.cli("verify").code == 0
    assert "golden set" in shop.cli("register", "lenet", lenet).out


@pytest.mark.slow
def test_the_pytorch_reference_is_run_once_and_its_origin_kept(shop: Shop) -> None:
    words = (
        *("register", "lenet", LENET / "lenet-v1.onnx", "--reference", f"{LENET / 'model.py'}:LeNet"),
        *("--weights", LENET / "lenet-v1.safetensors", "--inputs", LENET / "golden-v1.npz"),
    )
    made = shop.cli(*words, "--json")
    assert made.code == 0, made.err
    golden = made.document["golden_set"]
    assert golden["samples"] > 100
    assert golden["origin"]["reference"]["file"] == "model.py"
    assert golden["origin"]["torch"]
    assert "running the reference" in made.err
    assert shop.cli(*words, "--json").document["golden_set"]["sha256"] == golden["sha256"]


def test_a_dry_run_checks_everything_and_stores_nothing(shop: Shop, lenet: Path, tmp_path: Path) -> None:
    save_npz(tmp_path / "golden.npz", golden_of(onnx.load(lenet)))
    before = contents(shop)
    human = shop.cli("register", "lenet", lenet, "--golden", tmp_path / "golden.npz", "--dry-run")
    assert human.code == 0
    assert "would register lenet: 1 file" in human.out
    assert "6 samples" in human.out
    machine = shop.cli("register", "lenet", lenet, "--dry-run", "--json").document
    assert machine["golden_samples"] is None
    assert machine["source"]["signature"]["inputs"]
    assert contents(shop) == before


def test_a_dry_run_of_known_bytes_names_their_version(shop: Shop, lenet: Path, tmp_path: Path) -> None:
    assert shop.cli("register", "lenet", lenet, "--dry-run", "--json").document["already"] is None
    shop.cli("register", "lenet", lenet)
    assert "is registered already as lenet:1" in shop.cli("register", "lenet", lenet, "--dry-run").out
    assert shop.cli("register", "lenet", lenet, "--dry-run", "--json").document["already"] == "lenet:1"
    assert "would register other" in shop.cli("register", "other", lenet, "--dry-run").out
    big = onnx_models.save_with_external_data(onnx_models.mlp(), tmp_path / "big.onnx")
    shop.cli("register", "big", big)
    assert shop.cli("register", "big", big, "--dry-run", "--json").document["already"] == "big:1"


def test_a_golden_set_that_needs_a_reason_is_refused_before_anything_is_stored(
    shop: Shop, lenet: Path, tmp_path: Path
) -> None:
    arrays = golden_of(onnx.load(lenet))
    save_npz(tmp_path / "golden.npz", arrays)
    assert shop.cli("register", "lenet", lenet, "--golden", tmp_path / "golden.npz").code == 0
    save_npz(tmp_path / "other.npz", {name: array[:3] for name, array in arrays.items()})
    before = contents(shop)
    for words in ([], ["--dry-run"]):
        refused = shop.cli("register", "lenet", lenet, "--golden", tmp_path / "other.npz", *words)
        assert refused.code == 2
        assert "say why with --message" in refused.err
    assert contents(shop) == before
    assert shop.cli("register", "lenet", lenet, "--golden", tmp_path / "other.npz", "-m", "relabelled").code == 0
    save_npz(tmp_path / "names.npz", {**arrays, "slice": np.array(["day", "night"] * 3)})
    refused = shop.cli("register", "lenet", lenet, "--golden", tmp_path / "names.npz", "-m", "slices")
    assert "Slices are whole numbers" in refused.err


def test_what_a_golden_set_holds_is_said(shop: Shop, lenet: Path, tmp_path: Path) -> None:
    rich = {**golden_of(onnx.load(lenet)), "slice": np.array([0, 1, 2] * 2), "label.box": np.zeros((6, 4), np.float32)}
    save_npz(tmp_path / "rich.npz", {**rich, "activation.fc1": np.zeros((6, 2), np.float32)})
    said = "6 samples, labels, 3 slices, 1 layer"
    words = ("register", "lenet", lenet, "--golden", tmp_path / "rich.npz")
    assert f"a golden set of {said}" in shop.cli(*words, "--dry-run").out
    assert said in shop.cli(*words).out
    assert said in shop.cli("show", "lenet:1").out
    contents = shop.cli("show", "lenet:1", "--json").document["golden_set"]["origin"]["contents"]
    assert contents == {"labels": 1, "slices": 3, "layers": 1}


def test_a_replaced_golden_set_says_what_is_lost_and_what_counts_no_more(
    shop: Shop, lenet: Path, tmp_path: Path
) -> None:
    arrays = golden_of(onnx.load(lenet))
    save_npz(tmp_path / "rich.npz", {**arrays, "slice": np.array([0, 1, 2] * 2)})
    save_npz(tmp_path / "poor.npz", {name: array[:4] for name, array in arrays.items()})
    first = shop.cli("register", "lenet", lenet, "--golden", tmp_path / "rich.npz", "--json").document
    assert first["replaced"] is None
    assert shop.cli("build", "lenet:1", "--precision", "fp32").code == 0
    assert shop.cli("validate", "lenet:1").code == 0

    made = shop.cli("register", "lenet", lenet, "--golden", tmp_path / "poor.npz", "-m", "half was wrong")
    old, new = first["golden_set"]["sha256"][:12], made.out.split("golden set ")[1][:12]
    assert f"golden set replaced: {old} -> {new}" in made.out
    assert "the old one had, and this one has not: 3 slices" in made.out
    assert "1 verdict of the old one no longer counts" in made.out
    assert "keeps its own message" not in made.err
    assert "next: modelreg validate lenet:1" in made.err
    shown = shop.cli("show", "lenet:1").out
    assert f"replaced {old} on " in shown
    assert shown.split(f"replaced {old} on ")[1].splitlines()[0].endswith("by ada@lab: half was wrong")

    again = shop.cli(
        "register", "lenet", lenet, "--golden", tmp_path / "rich.npz", "-m", "was right", "--json"
    ).document
    assert (again["replaced"]["lost"], again["replaced"]["verdicts"]) == ([], 0)
    assert "by ada@lab: was right" in shop.cli("show", "lenet:1").out


@pytest.mark.parametrize(
    ("words", "code", "fact"),
    [
        (["--reference", "model.py", "--inputs", "i.npz"], 2, "--reference model.py names no factory"),
        (["--reference", "model.py:", "--inputs", "i.npz", "--weights", "w.pt"], 2, "Write model.py:NAME"),
        (["--reference", "model.py:M", "--inputs", "inputs.py"], 2, "--inputs inputs.py names no iterator"),
        (["--reference", "absent.py:M", "--inputs", "i.npz"], 1, "absent.py is not a file"),
        (["--reference", "model.py:M", "--inputs", "absent.npz"], 1, "absent.npz is not a file"),
        (["--reference", "model.py:M", "--inputs", "i.npz", "--weights", "absent.pt"], 1, "absent.pt is not a file"),
        (["--reference", "absent.pt", "--inputs", "i.npz"], 1, "absent.pt is not a file"),
    ],
)
def test_what_a_capture_lacks_is_said_before_the_reference_is_run(
    shop: Shop, lenet: Path, words: list[str], code: int, fact: str
) -> None:
    for name in ("model.py", "i.npz", "w.pt", "inputs.py"):
        Path(name).touch()
    refused = shop.cli("register", "lenet", lenet, *words)
    assert refused.code == code
    assert fact in refused.err
    assert "running the reference" not in refused.err


def test_a_missing_pytorch_is_said_before_the_reference_is_run(
    shop: Shop, lenet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in ("model.py", "i.npz"):
        (tmp_path / name).touch()
    refused = shop.cli("register", "lenet", lenet, "--reference", "model.py:M", "--inputs", "i.npz")
    assert refused.code == 1
    assert "PyTorch is not installed" in refused.err
    assert "--golden FILE" in refused.err
    assert "running the reference" not in refused.err
    assert "warning" not in refused.err


@pytest.mark.slow
def test_a_reference_without_weights_is_warned_of(shop: Shop, lenet: Path, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("raise ValueError('no')")
    (tmp_path / "i.npz").touch()
    words = ("register", "lenet", lenet, "--reference", "model.py:M", "--inputs", "i.npz")
    assert "warning: no --weights: the reference has whatever weights model.py:M makes" in shop.cli(*words).err
    (tmp_path / "w.pt").touch()
    assert "warning" not in shop.cli(*words, "--weights", "w.pt").err


def test_a_reference_that_takes_too_long_is_ended(shop: Shop, lenet: Path, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("import time\ntime.sleep(60)\n")
    save_npz(tmp_path / "i.npz", {"x": np.zeros((2, 2), np.float32)})
    words = ("register", "lenet", lenet, "--reference", "model.py:M", "--inputs", "i.npz", "--timeout", "0.5")
    refused = shop.cli(*words)
    assert refused.code == 1
    assert "took longer than 0.5 s" in refused.err


def test_what_is_odd_about_a_model_is_a_warning_and_stays_visible(shop: Shop, tmp_path: Path) -> None:
    path = onnx_models.save(onnx_faults.duplicate_node_names(), tmp_path / "odd.onnx")
    for words in (("--dry-run",), ()):
        done = shop.cli("register", "odd", path, *words)
        assert done.code == 0
        assert "modelreg: warning: " in done.err
        assert "same" in done.err
    assert "warning " in shop.cli("show", "odd:1").out


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["--golden", "a.npz", "--reference", "m.py:M", "--inputs", "i.npz"], "exclude each other"),
        (["--reference", "m.py:M"], "--reference needs --inputs"),
        (["--weights", "w.pt"], "--weights belongs to --reference"),
        (["--inputs", "i.npz", "--golden", "g.npz"], "--inputs belongs to --reference"),
        (["--activations"], "--activations belongs to --reference"),
        (["--seed", "3"], "--seed belongs to --reference"),
        (["--timeout", "3"], "--timeout belongs to --reference"),
    ],
)
def test_options_that_contradict_each_other_are_refused_with_exit_2(
    shop: Shop, lenet: Path, words: list[str], fact: str
) -> None:
    refused = shop.cli("register", "lenet", lenet, *words)
    assert refused.code == 2
    assert fact in refused.err


@pytest.mark.parametrize("name", ["Lenet", "", "a/b", "../x", "-x", "a" * 129, "latest", "é", "a b", "a:1"])
def test_a_name_that_is_not_allowed_is_refused_with_exit_2(shop: Shop, lenet: Path, name: str) -> None:
    before = contents(shop)
    assert shop.cli("register", "--", name, lenet).code == 2
    assert contents(shop) == before


def not_onnx() -> bytes:
    return b"PK\x03\x04 this is a zip, more or less" * 10


def truncated() -> bytes:
    data: bytes = onnx_models.mlp().SerializeToString()
    return data[: len(data) // 2]


@pytest.mark.parametrize(
    "make",
    [
        not_onnx,
        truncated,
        bytes,
        onnx_faults.future_ir_version,
        onnx_faults.future_opset,
        onnx_faults.no_opset,
        onnx_faults.duplicate_opset_domain,
        onnx_faults.duplicate_output,
        onnx_faults.duplicate_value,
        onnx_faults.short_payload,
        onnx_faults.dangling_input,
        onnx_faults.unknown_operator,
    ],
)
def test_what_is_no_valid_model_is_refused_with_one_line_and_nothing_is_written(
    shop: Shop, tmp_path: Path, make: Callable[[], bytes | onnx.ModelProto]
) -> None:
    made = make()
    path = tmp_path / "bad.onnx"
    path.write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
    before = contents(shop)
    refused = shop.cli("register", "bad", path, "--json")
    assert refused.code == 1
    assert refused.document["error"]["kind"] == "source"
    assert "bad.onnx" in refused.err or "bad" in refused.err
    assert len(refused.err.splitlines()) <= 2
    assert contents(shop) == before


def missing_data(folder: Path) -> Path:
    path = onnx_models.save_with_external_data(onnx_models.mlp(), folder / "m.onnx")
    for data in folder.iterdir():
        if data != path:
            data.unlink()
    return path


def data_outside(folder: Path) -> Path:
    model = onnx_models.mlp()
    (folder.parent / "secret.bin").write_bytes(b"\0" * 1_000_000)
    onnx_models.refer_to_external_data(model.graph.initializer[0], location="../secret.bin", offset=0, length=64)
    return onnx_models.save(model, folder / "m.onnx")


def data_behind_a_link(folder: Path) -> Path:
    path = onnx_models.save_with_external_data(onnx_models.mlp(), folder / "m.onnx")
    data = next(other for other in folder.iterdir() if other != path)
    data.rename(folder.parent / "elsewhere.bin")
    data.symlink_to(folder.parent / "elsewhere.bin")
    return path


def device(_folder: Path) -> Path:
    return Path("/dev/zero")


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe.onnx")
    return folder / "pipe.onnx"


def nothing(folder: Path) -> Path:
    return folder / "absent.onnx"


@pytest.mark.parametrize("make", [missing_data, data_outside, data_behind_a_link, device, pipe, nothing, Path])
def test_files_that_are_missing_outside_or_no_files_are_refused(
    shop: Shop, tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    before = contents(shop)
    refused = shop.cli("register", "bad", make(folder))
    assert refused.code == 1
    assert len(refused.err.splitlines()) <= 2
    assert contents(shop) == before


@pytest.mark.parametrize(
    "make",
    [
        onnx_faults.duplicate_node_names,
        onnx_models.scalar_output,
        onnx_models.initializers_as_inputs,
        onnx_models.constant_only,
    ],
)
def test_odd_but_valid_models_are_registered(shop: Shop, tmp_path: Path, make: Callable[[], onnx.ModelProto]) -> None:
    path = onnx_models.save(make(), tmp_path / "odd.onnx")
    done = shop.cli("register", "odd", path)
    assert done.code == 0, done.err
    assert shop.cli("show", "odd:1").code == 0


@pytest.mark.parametrize("make", [onnx_models.sequence_output, onnx_models.optional_input, onnx_models.map_input])
def test_what_no_backend_can_build_is_registered_and_refused_at_build_with_the_reason(
    shop: Shop, tmp_path: Path, make: Callable[[], onnx.ModelProto]
) -> None:
    path = onnx_models.save(make(), tmp_path / "odd.onnx")
    done = shop.cli("register", "odd", path)
    assert done.code == 0, done.err
    assert "cannot be built: " in done.out
    refused = shop.cli("build", "odd:1")
    assert refused.code == 1
    assert "odd:1 cannot be built" in refused.err
    assert shop.cli("show", "odd:1", "--json").document["engines"] == []


def wrong_dtype(arrays: dict[str, NDArray[Any]]) -> None:
    name = next(iter(arrays))
    arrays[name] = arrays[name].astype(np.float64)


def wrong_shape(arrays: dict[str, NDArray[Any]]) -> None:
    name = next(iter(arrays))
    arrays[name] = arrays[name][:, :-1]


def wrong_name(arrays: dict[str, NDArray[Any]]) -> None:
    name = next(iter(arrays))
    arrays[name + "_other"] = arrays.pop(name)


def fewer_outputs(arrays: dict[str, NDArray[Any]]) -> None:
    name = list(arrays)[1]
    arrays[name] = arrays[name][:-1]


def holds_nan(arrays: dict[str, NDArray[Any]]) -> None:
    name = list(arrays)[1]
    arrays[name] = arrays[name].copy()
    arrays[name][2, 0] = np.nan


@pytest.mark.parametrize("spoil", [wrong_dtype, wrong_shape, wrong_name, fewer_outputs, holds_nan])
def test_a_golden_set_that_does_not_fit_is_refused_before_anything_is_stored(
    shop: Shop, lenet: Path, tmp_path: Path, spoil: Callable[[dict[str, NDArray[Any]]], None]
) -> None:
    arrays = golden_of(onnx.load(lenet))
    spoil(arrays)
    save_npz(tmp_path / "golden.npz", arrays)
    before = contents(shop)
    refused = shop.cli("register", "lenet", lenet, "--golden", tmp_path / "golden.npz", "--json")
    assert refused.code == 1
    assert refused.document["error"]["kind"] == "golden-set"
    assert contents(shop) == before


@pytest.mark.slow
def test_a_reference_that_fails_is_refused_before_anything_is_stored(shop: Shop, lenet: Path, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def make():\n    raise RuntimeError('no such layer')\n")
    before = contents(shop)
    refused = shop.cli(
        *("register", "lenet", lenet, "--reference", f"{tmp_path / 'model.py'}:make"),
        *("--inputs", LENET / "golden-v1.npz", "--json"),
    )
    assert refused.code == 1
    assert refused.document["error"]["kind"] == "reference-model"
    assert "no such layer" in refused.err
    assert contents(shop) == before


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Give a function that mounts a small file system, or skips."""
    places: list[Path] = []

    def mount(options: str) -> Path:
        place = tmp_path / f"mount{len(places)}"
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("mounting needs root")
        places.append(place)
        return place

    yield mount
    for place in places:
        subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_one_line_and_the_registry_works_when_there_is_space_again(
    mounted: Callable[[str], Path], tmp_path: Path
) -> None:
    shop = Shop(mounted("size=2m"))
    path = onnx_models.save(onnx_models.mlp(hidden=32_768), tmp_path / "large.onnx")
    assert path.stat().st_size > 2 << 20
    with shop.database() as database:
        before = row_counts(database)
    refused = shop.cli("register", "large", path)
    assert refused.code == 1
    assert "space" in refused.err
    assert len(refused.err.splitlines()) <= 2
    with shop.database() as database:
        assert row_counts(database) == before
    small = onnx_models.save(onnx_models.mlp(), tmp_path / "small.onnx")
    assert shop.cli("register", "small", small).code == 0
    assert shop.cli("verify").code == 0


def test_a_read_only_home_can_be_looked_at_and_refuses_the_rest(mounted: Callable[[str], Path], tmp_path: Path) -> None:
    place = mounted("size=8m")
    shop = Shop(place)
    shop.add_version(word=1)
    assert shop.cli("promote", "lenet:1", "--to", "production").code == 0
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    for words in (
        ("list",),
        ("show", "lenet:1"),
        ("history", "lenet"),
        ("which", "lenet@production"),
        ("verify",),
        ("promote", "lenet:1", "--to", "qa", "--dry-run"),
    ):
        assert shop.cli(*words).code == 0, words
    path = onnx_models.save(onnx_models.mlp(), tmp_path / "mlp.onnx")
    for refused in (shop.cli("register", "mlp", path), shop.cli("promote", "lenet:1", "--to", "qa")):
        assert refused.code == 1
        assert "read-only" in refused.err.lower(), refused.err
        assert len(refused.err.splitlines()) <= 2
