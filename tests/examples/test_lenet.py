"""The files that the demo uses are what `train.py` and `model.py` say: checked by computing them again."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import numpy_helper

from modelreg_testing.checkout import ROOT

LENET = ROOT / "examples" / "lenet"
LAYERS = ["c1", "s2", "c3", "s4", "c5", "f6", "output"]
TOLERANCE = 1e-4  # of logits around 10: what another CPU's order of summing may change

each_version = pytest.mark.parametrize("version", ["v1", "v2"])

Arrays = dict[str, npt.NDArray[Any]]


@pytest.fixture(scope="module")
def train() -> Iterator[ModuleType]:
    """Return the training script as a module; it finds `model` beside it, as a script does."""
    spec = importlib.util.spec_from_file_location("lenet_train", LENET / "train.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(LENET)
        patch.setitem(sys.modules, "lenet_train", module)
        spec.loader.exec_module(module)
        yield module
        sys.modules.pop("model")


def read_set(name: str) -> Arrays:
    """Read a golden set or the calibration set."""
    with np.load(LENET / f"{name}.npz") as arrays:
        return dict(arrays)


def load_net(train: ModuleType, version: str) -> Any:
    """Return the module with the committed weights."""
    from safetensors.torch import load_file

    net = train.lenet()
    net.load_state_dict(load_file(LENET / f"lenet-{version}.safetensors"))
    return net.eval()


def accuracy(logits: npt.NDArray[Any], labels: npt.NDArray[Any]) -> float:
    """Return the share of right digits."""
    return float((logits.argmax(axis=1) == labels).mean())


@each_version
def test_pytorch_with_the_weights_gives_the_golden_outputs(train: ModuleType, version: str) -> None:
    golden = read_set(f"golden-{version}")
    logits = train.logits_of(load_net(train, version), golden["input.image"])
    np.testing.assert_allclose(logits, golden["output.logits"], rtol=0, atol=TOLERANCE)


@each_version
def test_the_onnx_gives_the_golden_outputs_for_any_batch_size(version: str) -> None:
    import onnxruntime

    golden = read_set(f"golden-{version}")
    session = onnxruntime.InferenceSession(LENET / f"lenet-{version}.onnx", providers=["CPUExecutionProvider"])
    for count in (1, 7, len(golden["label"])):
        (logits,) = session.run(["logits"], {"image": golden["input.image"][:count]})
        np.testing.assert_allclose(logits, golden["output.logits"][:count], rtol=0, atol=TOLERANCE)


@each_version
def test_at_least_98_percent_of_the_held_out_digits_are_told_right(version: str) -> None:
    golden = read_set(f"golden-{version}")
    assert accuracy(golden["output.logits"], golden["label"]) >= 0.98


def test_version_2_is_at_least_as_good_as_version_1() -> None:
    first, second = (read_set(f"golden-{version}") for version in ("v1", "v2"))
    assert accuracy(second["output.logits"], second["label"]) >= accuracy(first["output.logits"], first["label"])


@each_version
def test_the_golden_set_is_the_held_out_part_of_the_digits(train: ModuleType, version: str) -> None:
    _, held_out = train.load_split()
    golden = read_set(f"golden-{version}")
    assert set(golden) == {"input.image", "output.logits", "label"}
    assert golden["output.logits"].shape == (597, 10)
    assert golden["output.logits"].dtype == np.float32
    np.testing.assert_array_equal(golden["input.image"], held_out.images, strict=True)
    np.testing.assert_array_equal(golden["label"], held_out.labels, strict=True)


def test_the_calibration_set_comes_from_the_training_part_alone(train: ModuleType) -> None:
    training, held_out = train.load_split()
    calibration = read_set("calibration")
    count = len(calibration["label"])
    assert set(calibration) == {"input.image", "label"}
    assert count >= 128
    np.testing.assert_array_equal(calibration["input.image"], training.images[:count], strict=True)
    np.testing.assert_array_equal(calibration["label"], training.labels[:count], strict=True)
    seen = {image.tobytes() for image in training.images}
    assert not any(image.tobytes() in seen for image in held_out.images)


def test_the_constants_centre_and_scale_the_training_images(train: ModuleType) -> None:
    training, _ = train.load_split()
    assert training.images.shape == (1200, 1, 28, 28)
    assert abs(float(training.images.mean())) < 0.01
    assert abs(float(training.images.std()) - 1) < 0.01


def test_resizing_keeps_corners_and_means(train: ModuleType) -> None:
    scans = np.zeros((2, 8, 8))
    scans[0, 0, 0] = 16
    scans[1] = 8
    images = train.resize(scans)
    assert images.shape == (2, 28, 28)
    assert images.dtype == np.uint8
    assert images[0, 0, 0] == 255
    assert not images[0, 14:].any()
    assert (images[1] == 128).all()  # 127.5, to even


@each_version
def test_the_onnx_is_one_file_with_a_free_batch_size_and_no_trace_of_its_maker(version: str) -> None:
    model = onnx.load(LENET / f"lenet-{version}.onnx", load_external_data=False)
    onnx.checker.check_model(model, full_check=True)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 17)]
    assert not any(tensor.external_data for tensor in model.graph.initializer)
    assert signature(model.graph.input) == {"image": ["N", 1, 28, 28]}
    assert signature(model.graph.output) == {"logits": ["N", 10]}
    described = [model, model.graph, *model.graph.node, *model.graph.initializer]
    assert not any(part.doc_string or list(part.metadata_props) for part in described)


@each_version
def test_nodes_and_weights_carry_the_names_of_lenet_5(train: ModuleType, version: str) -> None:
    model = onnx.load(LENET / f"lenet-{version}.onnx")
    layers = [node.name.split("/")[1] for node in model.graph.node if node.name.count("/") == 2]
    assert layers == LAYERS == [name for name, _ in load_net(train, version).named_children()]


@each_version
def test_the_onnx_holds_the_committed_weights(version: str) -> None:
    from safetensors.numpy import load_file

    weights = load_file(LENET / f"lenet-{version}.safetensors")
    initialisers = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in onnx.load(LENET / f"lenet-{version}.onnx").graph.initializer
    }
    assert initialisers.keys() == weights.keys()
    for name, weight in weights.items():
        np.testing.assert_array_equal(initialisers[name], weight, strict=True)


def test_exporting_the_weights_again_gives_the_same_graph(train: ModuleType, tmp_path: Path) -> None:
    train.export(load_net(train, "v1"), tmp_path / "again.onnx")
    again, committed = onnx.load(tmp_path / "again.onnx"), onnx.load(LENET / "lenet-v1.onnx")
    assert again.graph == committed.graph


@pytest.mark.slow
def test_a_few_epochs_already_learn_most_digits(train: ModuleType) -> None:
    training, held_out = train.load_split()
    net = train.train(training, train.Schedule(name="short", seed=1, epochs=4, peak_rate=3e-3))
    assert accuracy(train.logits_of(net, held_out.images), held_out.labels) > 0.6


def test_a_padding_that_became_one_sided_costs_accuracy(tmp_path: Path) -> None:
    import onnxruntime

    model = onnx.load(LENET / "lenet-v1.onnx")
    (pads,) = (attribute for attribute in model.graph.node[0].attribute if attribute.name == "pads")
    pads.ints[:] = [0, 0, 4, 4]
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    golden = read_set("golden-v1")
    (logits,) = session.run(["logits"], {"image": golden["input.image"]})
    assert accuracy(logits, golden["label"]) < 0.9


def test_all_committed_files_together_stay_below_2_mb() -> None:
    files = [path for path in LENET.iterdir() if path.suffix in {".onnx", ".npz", ".safetensors"}]
    assert len(files) == 7
    assert sum(path.stat().st_size for path in files) < 2_000_000


def signature(values: Any) -> dict[str, list[int | str]]:
    """Return the shape of each input or output."""
    return {
        value.name: [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim] for value in values
    }
