"""Make every file of the ResNet example: ONNX, weights, golden set and calibration set. Nothing is downloaded.

    python examples/resnet50/make.py --into FOLDER [--arch resnet18] [--weights FILE]

Without `--weights` the convolutions are random and everything else is fitted to the images, so that the network acts
as a trained one does: the running statistics of its batch norms are measured, so that no activation leaves the range
of FP16, and ten rows of its last layer are solved for by ridge regression to tell the ten kinds of images apart, so
that top-1 means something and a broken engine loses it. With `--weights` (a state dict of torchvision: safetensors, or
a file of `torch.save`, read with `weights_only=True`) nothing is fitted.

The same seed gives the same files with the same PyTorch on the same kind of CPU; elsewhere the last bits may differ.
It needs PyTorch, NumPy, ONNX and safetensors. The default, ResNet-50 at 224 pixels, takes about a minute on two cores.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from images import KINDS, Floats, Labels, make_images, normalise
from resnet import CLASSES, BasicBlock, Bottleneck, ResNet, resnet18, resnet50
from safetensors.torch import load_file, save
from torch import nn

ARCHITECTURES = {"resnet18": resnet18, "resnet50": resnet50}
OPSET = 17
BATCH = 32
# Logits as trained networks have them: the right class some ten deviations above the others.
_RIGHT, _OTHERS, _SPREAD = 12.0, -2.0, 1.0
_RIDGE = 0.1
_SMOOTHNESS = 0.85


@dataclass(frozen=True, kw_only=True)
class Order:
    """What to make: the command line's options."""

    arch: str
    side: int
    samples: int
    calibration_samples: int
    seed: int
    weights: Path | None
    folder: Path


def make_files(order: Order) -> None:
    """Write `ARCH.onnx`, `ARCH.safetensors`, `golden.safetensors` and `calibration.safetensors`; say what they are."""
    order.folder.mkdir(parents=True, exist_ok=True)
    pixels, kinds = make_images(order.calibration_samples, side=order.side, seed=order.seed + 1)
    calibration = normalise(pixels)
    net = make_net(order, calibration, kinds)
    (order.folder / f"{order.arch}.safetensors").write_bytes(save(net.state_dict()))
    export(net, order.folder / f"{order.arch}.onnx", side=order.side)
    write_set(order.folder / "calibration.safetensors", {"input.image": calibration})
    images, kinds = make_images(order.samples, side=order.side, seed=order.seed + 2)
    golden = normalise(images)
    logits = logits_of(net, golden)
    answers = logits.argmax(axis=1).astype(np.int64)
    # Weights from elsewhere know other classes: what they answer in FP32 is then what is right.
    labels = kinds if order.weights is None else answers
    write_set(order.folder / "golden.safetensors", {"input.image": golden, "output.logits": logits, "label": labels})
    print(f"{order.arch}: {np.mean(answers == labels):.1%} of {order.samples} images of {order.side} pixels told right")


def make_net(order: Order, images: Floats, kinds: Labels) -> ResNet:
    """Return the network with the weights given, or with random ones that are fitted to the images."""
    torch.manual_seed(order.seed)
    net = ARCHITECTURES[order.arch]()
    if order.weights is not None:
        net.load_state_dict(read_weights(order.weights))
        return net.eval()
    randomise(net)
    calibrate_norms(net, images)
    fit_head(net, images, kinds)
    return net.eval()


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Return a state dict from safetensors, or from a file of plain tensors by `torch.save`; never from a pickle."""
    if path.suffix == ".safetensors":
        return load_file(path)
    state: dict[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return state


def randomise(net: ResNet) -> None:
    """
    Draw weights that resemble trained ones.

    Convolutions are drawn as He et al. do, and smoothed: a deep stack of white filters forgets its image. Batch norms
    are uneven, and weak at the end of each branch, as training leaves them.
    """
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            side = module.kernel_size[0]
            smooth = module.weight.detach().mean((2, 3), keepdim=True) * side  # as much variance as one weight has
            module.weight.data = (1 - _SMOOTHNESS) * module.weight.detach() + _SMOOTHNESS * smooth
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.2)
    for module in net.modules():
        if isinstance(module, BasicBlock | Bottleneck):
            last = module.bn2 if isinstance(module, BasicBlock) else module.bn3
            nn.init.uniform_(last.weight, 0.1, 0.3)


def calibrate_norms(net: ResNet, images: Floats) -> None:
    """Measure the running statistics of every batch norm on the images."""
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain average over the batches
    net.train()
    with torch.inference_mode():
        for batch in _batches(images):
            net.features(batch)
    net.eval()
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


def fit_head(net: ResNet, images: Floats, kinds: Labels) -> None:
    """Solve for a last layer whose first rows tell the kinds apart; the other rows are random, and lower."""
    with torch.inference_mode():
        found = torch.cat([net.features(batch) for batch in _batches(images)]).double()
    mean = found.mean(0)
    # Centred, but not scaled each by itself: features that hardly move would count for as much as their noise.
    centred = found - mean
    # Ridge regression by way of the samples, which are fewer than the features.
    targets = nn.functional.one_hot(torch.from_numpy(kinds), KINDS).double() * _RIGHT
    level = targets.mean(0)
    grams = centred @ centred.T
    penalty = _RIDGE * grams.diagonal().mean() * torch.eye(len(grams), dtype=torch.float64)
    rows = (centred.T @ torch.linalg.solve(grams + penalty, targets - level)).T
    others = torch.randn(CLASSES - KINDS, found.shape[1], dtype=torch.float64)
    others *= _SPREAD / (centred @ others.T).std()
    weight = torch.cat([rows, others])
    bias = torch.cat([level, torch.full((CLASSES - KINDS,), _OTHERS, dtype=torch.float64)]) - weight @ mean
    with torch.no_grad():
        net.fc.weight.copy_(weight)
        net.fc.bias.copy_(bias)


def logits_of(net: ResNet, images: Floats) -> Floats:
    """Return what PyTorch computes in FP32, shape (N, 1000)."""
    with torch.inference_mode():
        logits: Floats = torch.cat([net(batch) for batch in _batches(images)]).numpy()
    return logits


def _batches(images: Floats) -> Iterator[torch.Tensor]:
    yield from torch.split(torch.from_numpy(images), BATCH)


def export(net: ResNet, path: Path, *, side: int) -> None:
    """
    Write the ONNX with a free batch size.

    The exporter is the one by TorchScript: it writes opset 17, the newest that TensorRT 8.6 parses, without converting
    down, and folds the batch norms into the convolutions. The one by `torch.export` begins at opset 18.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            net,
            (torch.zeros(1, 3, side, side),),
            path,
            dynamo=False,
            opset_version=OPSET,
            input_names=["image"],
            output_names=["logits"],
            dynamic_axes={"image": {0: "N"}, "logits": {0: "N"}},
        )


def write_set(path: Path, arrays: dict[str, npt.NDArray[np.generic]]) -> None:
    """Write named arrays as safetensors: read by parts, which compressed files are not."""
    path.write_bytes(save({name: torch.from_numpy(array) for name, array in arrays.items()}))


def read_order(arguments: list[str]) -> Order:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description="Make the files of the ResNet example.")
    parser.add_argument("--into", type=Path, required=True, help="folder for the files")
    parser.add_argument("--arch", choices=list(ARCHITECTURES), default="resnet50", help="default: resnet50")
    parser.add_argument("--image-size", type=int, default=224, help="side in pixels (default: 224)")
    parser.add_argument("--samples", type=int, default=64, help="images of the golden set (default: 64)")
    parser.add_argument("--calibration-samples", type=int, default=128, help="default: 128")
    parser.add_argument("--seed", type=int, default=0, help="of weights and images (default: 0)")
    parser.add_argument("--weights", type=Path, help="a state dict of torchvision, instead of random weights")
    found = parser.parse_args(arguments)
    if found.image_size < 33 or found.samples < 1 or found.calibration_samples < 2 * KINDS:
        parser.error(f"at least 33 pixels, 1 sample and {2 * KINDS} calibration samples")
    return Order(
        arch=found.arch,
        side=found.image_size,
        samples=found.samples,
        calibration_samples=found.calibration_samples,
        seed=found.seed,
        weights=found.weights,
        folder=found.into,
    )


if __name__ == "__main__":
    make_files(read_order(sys.argv[1:]))
