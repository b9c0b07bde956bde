"""Train the three networks and write what the corpus is made of.

    python -m fault_corpus.making [--out FOLDER] [--seeds 0,1]

It needs the `dev` extra (PyTorch, scikit-learn) and some ten seconds for each network and seed. For each it writes
the ONNX, with a free batch, and a set of arrays: the golden inputs with the outputs of PyTorch, labels and slices, the
calibration inputs, and what PyTorch gives when it is left in training mode.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fault_corpus.data import CALIBRATION, GOLDEN, Data, coloured_digits, digits, text
from fault_corpus.networks import LeNet, Residual, Transformer
from fault_corpus.places import FILES

BATCH = 64

NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Data], int, float]] = {
    "lenet": (LeNet, digits, 25, 4e-3),
    "residual": (Residual, coloured_digits, 14, 6e-3),
    "transformer": (Transformer, text, 20, 3e-3),
}
"""By name: the network, its data, epochs and the peak rate."""


def to_tensor(inputs: np.ndarray[Any, Any]) -> Tensor:
    """Return what the network is fed with: images from 0 to 1, ids as they are."""
    tensor = torch.from_numpy(inputs)
    return tensor.to(torch.float32) / 255 if tensor.dtype == torch.uint8 else tensor


def train(name: str, seed: int) -> tuple[nn.Module, Data]:
    """Return a trained network and the samples that it has not seen."""
    make, load, epochs, rate = NETWORKS[name]
    data = load()
    held = data.part(len(data.labels) - GOLDEN, len(data.labels))
    seen = data.part(0, len(data.labels) - GOLDEN)
    torch.manual_seed(seed)
    net = make()
    inputs, labels = to_tensor(seen.inputs), torch.from_numpy(seen.labels)
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.01)
    steps = epochs * -(-len(labels) // BATCH)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(epochs):
        for batch in torch.split(torch.randperm(len(labels)), BATCH):
            optimizer.zero_grad()
            found = net(inputs[batch])
            both = found if isinstance(found, tuple) else (found,)
            torch.autograd.backward(
                torch.stack(
                    [nn.functional.cross_entropy(each, labels[batch], label_smoothing=0.05) for each in both]
                ).sum()
            )
            optimizer.step()
            decay.step()
    return net.eval(), held


def run(net: nn.Module, inputs: Tensor) -> dict[str, np.ndarray[Any, Any]]:
    """Return the outputs by name."""
    with torch.inference_mode():
        found = [net(part) for part in torch.split(inputs, BATCH)]
    if isinstance(found[0], tuple):
        return {name: torch.cat([each[i] for each in found]).numpy() for i, name in enumerate(("logits", "aux"))}
    return {"logits": torch.cat(found).numpy()}


def export(net: nn.Module, example: Tensor, path: Path, *, outputs: list[str]) -> None:
    """Write the ONNX with a free batch and its batch norms unfolded, by the exporter that names nodes after layers."""
    name = "ids" if example.dtype == torch.int64 else "image"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net,
            (example,),
            path,
            dynamo=False,
            opset_version=17,
            do_constant_folding=True,
            training=torch.onnx.TrainingMode.PRESERVE,
            input_names=[name],
            output_names=outputs,
            dynamic_axes={each: {0: "N"} for each in (name, *outputs)},
        )


def write(name: str, seed: int, folder: Path) -> float:
    """Train one network, write its files, and return its accuracy on the golden set."""
    net, held = train(name, seed)
    inputs = to_tensor(held.inputs)
    outputs = run(net, inputs)
    export(net, inputs[:2], folder / f"{name}-{seed}.onnx", outputs=list(outputs))
    calibration = NETWORKS[name][1]().inputs[:CALIBRATION]
    arrays = {"input": held.inputs, "label": held.labels, "slice": held.slices, "calibration": calibration}
    arrays |= {f"output.{key}": value for key, value in outputs.items()}
    torch.manual_seed(seed)
    state = {key: value.clone() for key, value in net.state_dict().items()}
    for kind in (nn.Dropout, nn.BatchNorm2d):
        if not any(isinstance(module, kind) for module in net.modules()):
            continue
        for module in net.modules():
            module.train(isinstance(module, kind))
        arrays |= {f"training.{kind.__name__}.{key}": value for key, value in run(net, inputs).items()}
        net.load_state_dict(state)
    np.savez_compressed(folder / f"{name}-{seed}.npz", **arrays, slice_names=np.array(held.slice_names))  # type: ignore[arg-type]
    return float((outputs["logits"].argmax(axis=1) == held.labels).mean())


def main(arguments: list[str]) -> None:
    """Write all files into `--out`."""
    parser = argparse.ArgumentParser(description="Make the networks of the fault corpus.")
    parser.add_argument("--out", type=Path, default=FILES, help="folder (default: beside this file)")
    parser.add_argument("--seeds", default="0,1", help="which seeds (default: 0,1)")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for seed in map(int, given.seeds.split(",")):
        for name in NETWORKS:
            sys.stdout.write(f"{name} seed {seed}: {write(name, seed, given.out):.2%} of the golden set\n")


if __name__ == "__main__":
    main(sys.argv[1:])
