"""The ResNet example: torchvision's layout, images as photographs are, and files that belong together."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from modelreg_testing.example_files import SAMPLES, SIDE, example_module, make_example, resnet18_files

# As torchvision 0.28 has them; a published state dict has the same.
LAYOUTS = {
    "resnet18": (
        122,
        11_689_512,
        {
            "conv1.weight": (64, 3, 7, 7),
            "bn1.num_batches_tracked": (),
            "layer1.0.conv1.weight": (64, 64, 3, 3),
            "layer1.1.bn2.running_var": (64,),
            "layer2.0.downsample.0.weight": (128, 64, 1, 1),
            "layer2.0.downsample.1.running_mean": (128,),
            "layer4.1.conv2.weight": (512, 512, 3, 3),
            "fc.weight": (1000, 512),
            "fc.bias": (1000,),
        },
    ),
    "resnet50": (
        320,
        25_557_032,
        {
            "conv1.weight": (64, 3, 7, 7),
            "layer1.0.conv1.weight": (64, 64, 1, 1),
            "layer1.0.downsample.0.weight": (256, 64, 1, 1),
            "layer1.2.conv3.weight": (256, 64, 1, 1),
            "layer2.0.conv2.weight": (128, 128, 3, 3),
            "layer3.5.bn3.weight": (1024,),
            "layer4.0.downsample.1.num_batches_tracked": (),
            "fc.weight": (1000, 2048),
        },
    ),
}
TOLERANCE = 1e-3  # of logits around 10: what another CPU's order of summing may change


@pytest.fixture(scope="module")
def resnet() -> Iterator[ModuleType]:
    with example_module("resnet") as module:
        yield module


@pytest.fixture(scope="module")
def images() -> Iterator[ModuleType]:
    with example_module("images") as module:
        yield module


@pytest.fixture
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return resnet18_files(tmp_path_factory)


def read_set(path: Path) -> dict[str, npt.NDArray[Any]]:
    from safetensors.numpy import load_file

    arrays: dict[str, npt.NDArray[Any]] = load_file(path)
    return arrays


@pytest.mark.parametrize("arch", LAYOUTS)
def test_parameters_have_the_names_and_shapes_of_torchvision(resnet: ModuleType, arch: str) -> None:
    entries, parameters, shapes = LAYOUTS[arch]
    net = getattr(resnet, arch)()
    found = {name: tuple(tensor.shape) for name, tensor in net.state_dict().items()}
    assert len(found) == entries
    assert sum(parameter.numel() for parameter in net.parameters()) == parameters
    assert {name: found.get(name) for name in shapes} == shapes


def test_the_stride_of_a_bottleneck_is_in_its_3x3_convolution(resnet: ModuleType) -> None:
    block = resnet.resnet50().layer2[0]
    assert [block.conv1.stride, block.conv2.stride, block.conv3.stride] == [(1, 1), (2, 2), (1, 1)]


@pytest.mark.slow
def test_images_come_from_their_seed_alone(images: ModuleType) -> None:
    first, kinds = images.make_images(20, side=40, seed=1)
    again, _ = images.make_images(20, side=40, seed=1)
    other, _ = images.make_images(20, side=40, seed=2)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert first.shape == (20, 3, 40, 40)
    assert first.dtype == np.uint8
    assert sorted(kinds.tolist()) == sorted([*range(10), *range(10)])


@pytest.mark.slow
def test_images_have_the_colours_and_the_spectrum_of_photographs(images: ModuleType) -> None:
    pixels, _ = images.make_images(60, side=96, seed=3)
    normalised = images.normalise(pixels)
    assert normalised.dtype == np.float32
    assert np.abs(normalised.mean(axis=(0, 2, 3))).max() < 0.5
    assert np.all((normalised.std(axis=(0, 2, 3)) > 0.8) & (normalised.std(axis=(0, 2, 3)) < 1.6))
    grey = normalised.mean(axis=1)
    assert np.corrcoef(normalised[:, 0].ravel(), normalised[:, 2].ravel())[0, 1] > 0.5  # neither grey nor noise
    amplitudes = np.abs(np.fft.fft2(grey - grey.mean(axis=(1, 2), keepdims=True))).mean(axis=0)
    frequencies = np.hypot(*np.meshgrid(np.fft.fftfreq(96), np.fft.fftfreq(96)))
    middle = (frequencies > 0.03) & (frequencies < 0.35)
    slope = np.polyfit(np.log(frequencies[middle]), np.log(amplitudes[middle]), 1)[0]
    assert -1.6 < slope < -0.7  # white noise has 0, photographs about -1


def test_normalising_takes_imagenet_s_mean_and_deviation(images: ModuleType) -> None:
    grey = np.full((1, 3, 1, 1), 255, np.uint8)
    expected = (1 - np.array([0.485, 0.456, 0.406])) / np.array([0.229, 0.224, 0.225])
    np.testing.assert_allclose(images.normalise(grey).ravel(), expected, rtol=1e-6)


@pytest.mark.slow
def test_the_onnx_takes_any_batch_size_and_gives_what_pytorch_gave(made: Path) -> None:
    import onnxruntime

    model = onnx.load(made / "resnet18.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 17)]
    ops = {node.op_type for node in model.graph.node}
    assert ops == {"Conv", "Relu", "Add", "MaxPool", "GlobalAveragePool", "Flatten", "Gemm"}  # no batch norm is left
    golden = read_set(made / "golden.safetensors")
    assert golden["input.image"].shape == (SAMPLES, 3, SIDE, SIDE)
    session = onnxruntime.InferenceSession(made / "resnet18.onnx", providers=["CPUExecutionProvider"])
    for count in (1, 7):
        (logits,) = session.run(["logits"], {"image": golden["input.image"][:count]})
        np.testing.assert_allclose(logits, golden["output.logits"][:count], rtol=0, atol=TOLERANCE)


@pytest.mark.slow
def test_top_1_means_something_and_no_activation_comes_near_the_end_of_fp16(made: Path, resnet: ModuleType) -> None:
    import torch
    from safetensors.torch import load_file

    golden = read_set(made / "golden.safetensors")
    logits, labels = golden["output.logits"], golden["label"]
    assert (logits.argmax(axis=1) == labels).mean() >= 0.85
    best, second = -np.sort(-logits, axis=1)[:, :2].T
    assert np.median(best - second) > 3
    net = resnet.resnet18()
    net.load_state_dict(load_file(made / "resnet18.safetensors"))
    largest: list[float] = []
    for module in net.modules():
        module.register_forward_hook(lambda _module, _inputs, output: largest.append(float(output.abs().max())))
    with torch.inference_mode():
        again = net.eval()(torch.from_numpy(golden["input.image"][:16]))
    np.testing.assert_allclose(again.numpy(), logits[:16], rtol=0, atol=TOLERANCE)
    assert len(largest) > 50
    assert max(largest) < 1000


@pytest.mark.slow
def test_images_in_the_wrong_order_of_colours_lose_accuracy(made: Path) -> None:
    import onnxruntime

    golden = read_set(made / "golden.safetensors")
    session = onnxruntime.InferenceSession(made / "resnet18.onnx", providers=["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {"image": np.ascontiguousarray(golden["input.image"][:, ::-1])})
    assert (logits.argmax(axis=1) == golden["label"]).mean() < 0.6


@pytest.mark.slow
def test_given_weights_are_taken_as_they_are_and_say_what_is_right(made: Path, tmp_path: Path) -> None:
    weights = made / "resnet18.safetensors"
    sizes = ("--image-size", "64", "--samples", "4", "--calibration-samples", "20", "--seed", "9")
    told = make_example("--arch", "resnet18", *sizes, "--weights", str(weights), "--into", str(tmp_path))
    assert "100.0% of 4 images" in told
    assert (tmp_path / "resnet18.safetensors").read_bytes() == weights.read_bytes()
    golden = read_set(tmp_path / "golden.safetensors")
    np.testing.assert_array_equal(golden["label"], golden["output.logits"].argmax(axis=1))


def test_weights_are_never_unpickled(tmp_path: Path) -> None:
    import torch

    class Trap:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return (exec, ("raise SystemExit('the pickle was run')",))

    (tmp_path / "trap.pt").write_bytes(pickle.dumps(Trap(), protocol=2))
    torch.save({"fc.bias": torch.zeros(2)}, tmp_path / "plain.pt")
    with example_module("make") as make:
        assert make.read_weights(tmp_path / "plain.pt")["fc.bias"].shape == (2,)
        with pytest.raises(pickle.UnpicklingError):
            make.read_weights(tmp_path / "trap.pt")


@pytest.mark.parametrize(
    "words", [("--image-size", "32"), ("--samples", "0"), ("--calibration-samples", "10"), ("--arch", "resnet34")]
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, words: tuple[str, str]) -> None:
    with example_module("make") as make, pytest.raises(SystemExit) as refused:
        make.read_order([*words, "--into", str(tmp_path / "none")])
    assert refused.value.code == 2
    assert not (tmp_path / "none").exists()
