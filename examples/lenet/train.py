"""Train two LeNets on scikit-learn's digits and write every file that the demo uses.

    python examples/lenet/train.py [--out FOLDER]

It needs the `dev` extra (PyTorch, scikit-learn) and takes about half a minute on a CPU. The same seeds give the same
files with the same PyTorch on the same kind of CPU; elsewhere the last bits may differ.

The digits ship inside scikit-learn: 1,797 scans of 8x8 pixels, written by 13 people. They are the test part of
"Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak (UCI Machine Learning Repository, 1998,
https://doi.org/10.24432/C50P49, CC BY 4.0).
"""

from __future__ import annotations

import argparse
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from model import LeNet, lenet
from safetensors.torch import save
from sklearn.datasets import load_digits
from torch import nn

Images = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Arrays = dict[str, npt.NDArray[Any]]

SIDE = 28
# Mean and standard deviation of the grey levels (0 to 255) of the training images, rounded. They belong to the
# model: whatever feeds it must use the same two numbers.
MEAN = 78.0
STD = 82.0
TRAINING_SAMPLES = 1200
CALIBRATION_SAMPLES = 256
SPLIT_SEED = 1998
BATCH = 64


@dataclass(frozen=True)
class Schedule:
    """How one version is trained."""

    name: str
    seed: int
    epochs: int
    peak_rate: float


V1 = Schedule(name="v1", seed=3, epochs=60, peak_rate=3e-3)
V2 = Schedule(name="v2", seed=2, epochs=120, peak_rate=3e-3)


@dataclass(frozen=True)
class Digits:
    """Normalised images, float32, shape (N, 1, 28, 28), with the digit of each."""

    images: Floats
    labels: Labels


def resize(scans: npt.NDArray[np.float64], side: int = SIDE) -> Images:
    """
    Enlarge square scans bilinearly, pixel centres aligned, edges repeated.

    The result keeps to the 17 grey levels that the scans have: twice as small once compressed.

    Args:
        scans: Grey levels from 0 to 16, shape (N, H, H).
        side: Height and width of the result in pixels.

    Returns:
        Grey levels from 0 to 255, shape (N, side, side).
    """
    height = scans.shape[1]
    centres = np.clip((np.arange(side) + 0.5) * height / side - 0.5, 0, height - 1)
    weights = np.maximum(0, 1 - np.abs(centres[:, None] - np.arange(height)[None, :]))
    enlarged = weights @ scans @ weights.T
    grey: Images = np.rint(np.rint(enlarged) * (255 / 16)).astype(np.uint8)
    return grey


def normalise(images: Images) -> Floats:
    """Return images of grey levels, shape (N, 28, 28), as the model wants them: float32, shape (N, 1, 28, 28)."""
    return ((images[:, None].astype(np.float32) - MEAN) / STD).astype(np.float32)


def load_split() -> tuple[Digits, Digits]:
    """Return 1,200 digits to train on and the other 597, which training never sees."""
    digits = load_digits()
    order = np.random.default_rng(SPLIT_SEED).permutation(len(digits.target))
    images = normalise(resize(digits.images[order]))
    labels = digits.target[order].astype(np.int64)
    cut = TRAINING_SAMPLES
    return Digits(images[:cut], labels[:cut]), Digits(images[cut:], labels[cut:])


def jitter(images: torch.Tensor) -> torch.Tensor:
    """Return the images each turned by up to 10 degrees, scaled by up to 10 % and moved by up to one pixel."""
    angle, scale, right, down = (torch.rand(4, len(images)) * 2 - 1) * torch.tensor([[0.175], [0.1], [1.0], [1.0]])
    scale = 1 + scale
    row_x = torch.stack([torch.cos(angle) * scale, -torch.sin(angle) * scale, right * 2 / SIDE], dim=1)
    row_y = torch.stack([torch.sin(angle) * scale, torch.cos(angle) * scale, down * 2 / SIDE], dim=1)
    grid = nn.functional.affine_grid(torch.stack([row_x, row_y], dim=1), list(images.shape), align_corners=False)
    return nn.functional.grid_sample(images, grid, padding_mode="border", align_corners=False)


def train(digits: Digits, schedule: Schedule) -> LeNet:
    """Return a LeNet trained with Adam, the rate falling from its peak along a half cosine."""
    torch.manual_seed(schedule.seed)
    net = lenet()
    images, labels = torch.from_numpy(digits.images), torch.from_numpy(digits.labels)
    optimizer = torch.optim.Adam(net.parameters(), lr=schedule.peak_rate)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, schedule.epochs)
    for _ in range(schedule.epochs):
        for batch in torch.split(torch.randperm(len(images)), BATCH):
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(net(jitter(images[batch])), labels[batch]))
            optimizer.step()
        decay.step()
    return net.eval()


def logits_of(net: LeNet, images: Floats) -> Floats:
    """Return what PyTorch computes in FP32, shape (N, 10)."""
    with torch.inference_mode():
        logits: Floats = net(torch.from_numpy(images)).numpy()
    return logits


def accuracy(logits: Floats, labels: Labels) -> float:
    """Return the share of samples whose largest logit is the right digit, from 0 to 1."""
    return float((logits.argmax(axis=1) == labels).mean())


def export(net: LeNet, path: Path) -> None:
    """
    Write the ONNX with a free batch size.

    The exporter is the one by TorchScript: it names nodes after the layers (`/c1/Conv`) and stays at opset 17. The
    one by `torch.export` was tried too: it names them `node_conv2d_2` and reaches opset 17 by converting down.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            net,
            (torch.zeros(1, 1, SIDE, SIDE),),
            path,
            dynamo=False,
            opset_version=17,
            input_names=["image"],
            output_names=["logits"],
            dynamic_axes={"image": {0: "N"}, "logits": {0: "N"}},
        )


def write_version(schedule: Schedule, training: Digits, held_out: Digits, folder: Path) -> None:
    """Train one version and write its ONNX, its weights and its golden set."""
    net = train(training, schedule)
    logits = logits_of(net, held_out.images)
    print(f"lenet {schedule.name}: {accuracy(logits, held_out.labels):.2%} of {len(logits)} held-out digits")
    export(net, folder / f"lenet-{schedule.name}.onnx")
    (folder / f"lenet-{schedule.name}.safetensors").write_bytes(save(net.state_dict()))
    golden: Arrays = {"input.image": held_out.images, "output.logits": logits, "label": held_out.labels}
    write_set(folder / f"golden-{schedule.name}.npz", golden)


def write_set(path: Path, arrays: Arrays) -> None:
    """Write named arrays into one compressed file."""
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]  # its stub takes every name for an own option


def main(arguments: list[str]) -> None:
    """Write all files into `--out`."""
    parser = argparse.ArgumentParser(description="Train the LeNets of the demo.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder (default: beside this file)")
    folder: Path = parser.parse_args(arguments).out
    folder.mkdir(parents=True, exist_ok=True)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)  # how a sum is split over threads decides its last bits
    training, held_out = load_split()
    for schedule in (V1, V2):
        write_version(schedule, training, held_out, folder)
    chosen = Digits(training.images[:CALIBRATION_SAMPLES], training.labels[:CALIBRATION_SAMPLES])
    write_set(folder / "calibration.npz", {"input.image": chosen.images, "label": chosen.labels})


if __name__ == "__main__":
    main(sys.argv[1:])
