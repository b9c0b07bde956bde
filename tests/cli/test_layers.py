"""Layers on the command line: captured with the golden set, matched, compared, mapped by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from modelreg_testing.checkout import ROOT
from modelreg_testing.cli import Shop
from modelreg_testing.layered import register
from modelreg_testing.workshop import overflowing_net

LENET = ROOT / "examples" / "lenet"
MODULES = ["c1", "s2", "c3", "s4", "c5", "f6", "output"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def with_layers(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    pytest.importorskip("torch")
    shop = Shop(tmp_path_factory.mktemp("layers"))
    words = ("--weights", LENET / "lenet-v1.safetensors", "--inputs", LENET / "golden-v1.npz")
    reference = f"{LENET / 'model.py'}:lenet"
    activations = ("--activations", "all", "--activation-bytes", "2M")
    done = shop.cli("register", "lenet", LENET / "lenet-v1.onnx", "--reference", reference, *words, *activations)
    assert done.code == 0, done.err
    built = shop.cli("build", "lenet", "--precision", "fp16,int8", "--calibration", LENET / "calibration.npz")
    assert built.code == 0, built.err
    return shop


@pytest.fixture
def copy(with_layers: Shop, tmp_path: Path) -> Shop:
    return Shop.copy_of(with_layers, tmp_path)


def test_every_layer_of_every_precision_is_compared_with_pytorch_and_kept_in_the_report(copy: Shop) -> None:
    done = copy.cli("validate", "lenet", "--layers", "--layer-samples", 8, "--json")
    assert done.code == 0, done.err
    for validation in done.document["validations"]:
        layers = validation["layers"]
        assert (layers["reference"], layers["first_bad"], layers["own"]) == ("pytorch", "", "exact")
        assert [row["name"] for row in layers["rows"]] == MODULES
        assert {row["state"] for row in layers["rows"]} == {"ok"}
        assert len(layers["samples"]) == 8
        assert set(layers["taps"]) == {"logits"}
        stored = json.loads(copy.storage.read_blob(validation["report"]))
        assert stored["layers"] == layers
    half, quantised = (validation["layers"]["rows"] for validation in done.document["validations"])
    assert all(60 < row["sqnr_db"] < 90 and not row["through_relu"] for row in half)
    assert [row["through_relu"] for row in quantised] == [True, False, True, False, True, True, False]
    assert all(30 < row["sqnr_db"] < 60 for row in quantised)


def test_the_mapping_is_shown_written_changed_and_kept_with_the_version(
    copy: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    shown = copy.cli("layers", "lenet", "--write", tmp_path / "map.toml")
    assert shown.code == 0, shown.err
    assert "7 of 7 layers found" in shown.out
    table = tmp_path / "map.toml"
    assert '"c3" = "/c3/Conv_output_0"  # metadata' in table.read_text()
    assert "cannot be written: File exists" in copy.cli("layers", "lenet", "--write", table).err
    mine = tmp_path / "mine.json"
    mine.write_text(json.dumps({"layers": {"c3": "/Relu_1_output_0", "s4": ""}}))
    tried = copy.cli("layers", "lenet", "--map", mine, "--dry-run")
    assert "lenet:1 would keep a table of 2 layers" in tried.out
    kept = copy.cli("layers", "lenet", "--map", mine, "-m", "s4 is of no interest")
    assert "lenet:1 keeps a table of 2 layers" in kept.out
    assert "has already a table" in copy.cli("layers", "lenet", "--map", mine).out
    again = copy.cli("layers", "lenet", "--json").document["layers"]
    by_name = {each["activation"]: each for each in again}
    assert (by_name["c3"]["tensor"], by_name["c3"]["how"]) == ("/Relu_1_output_0", "override")
    assert (by_name["s4"]["tensor"], by_name["s4"]["reason"]) == ("", "taken out by the mapping table")
    assert copy.cli("verify", "--events").code == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[layers]\n"c9" = "logits"\n', "the golden set has no activation 'c9' to map"),
        ('[layers]\n"c3" = "nothing"\n', "the ONNX makes no floating tensor 'nothing'"),
        ('c3 = "logits"\n', "has no table of layers"),
        ("[layers]\nc3 = 3\n", "has no table of layers"),
    ],
)
def test_a_table_that_means_nothing_is_refused(copy: Shop, tmp_path: Path, text: str, message: str) -> None:
    table = tmp_path / "map.toml"
    table.write_text(text)
    done = copy.cli("layers", "lenet", "--map", table)
    assert done.code == 2
    assert message in done.err


def test_without_activations_the_source_is_the_reference_and_the_mapping_says_what_is_missing(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    register(shop, overflowing_net(factor=2.0), tmp_path / "in")
    assert shop.cli("build", "net", "--precision", "fp16").code == 0
    done = shop.cli("validate", "net", "--layers")
    assert done.code == 0, done.err
    assert "layers of engine 1 (cpu fp16) against the source in FP32, 32 samples, bad below 40 dB" in done.out
    header = next(line for line in done.out.splitlines() if line.startswith("#"))
    assert header.split()[:7] == ["#", "LAYER", "OP", "COSINE", "SQNR", "OWN", "MAX"]
    assert "no bad layer\n" in done.out
    assert "--activations all -m WHY" in done.err
    assert "looking inside changes y by " in done.out
    missing = shop.cli("layers", "net")
    assert missing.code == 1
    assert "the golden set of net:1 has no activations" in missing.err
    assert "--nodes belongs to --layers" in shop.cli("validate", "net", "--nodes").err


def test_a_lost_variant_concerns_only_what_looks_inside(copy: Shop) -> None:
    variants = [path for path in (copy.path / "store" / "blobs").rglob("*") if path.is_file()]
    document = copy.cli("show", "lenet:1", "--json").document
    gone = {engine["variant"] for engine in document["engines"] if engine["precision"] == "int8"}
    for path in variants:
        if path.name in gone:
            path.unlink()
    done = copy.cli("validate", "lenet", "--precision", "int8", "--layers", "--json")
    assert done.code == 0, done.err
    (validation,) = done.document["validations"]
    unseen = {gate["gate"]: gate for gate in validation["gates"] if "is not in the store" in gate["reason"]}
    assert {(name, gate["outcome"]) for name, gate in unseen.items()} == {
        ("saturation", "skipped"),
        ("range_use", "skipped"),
    }
    assert set(validation["layers"]) == {"error"}
    assert "the layers of engine 2 are not compared" in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--activation-bytes", "64M"], "--activation-bytes belongs to --reference"),
        (["--reference", "m.py:f", "--inputs", "x.npz", "--activation-bytes", "1G"], "belongs to --activations"),
        (["--activation-bytes", "much"], "'much' is no number of bytes"),
    ],
)
def test_options_of_activations_that_contradict_are_refused(shop: Shop, words: list[str], message: str) -> None:
    done = shop.cli("register", "lenet", LENET / "lenet-v1.onnx", *words)
    assert done.code == 2
    assert message in done.err
