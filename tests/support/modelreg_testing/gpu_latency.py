"""The timing stage of the GPU run: engines in our runner and in a bare loop, and PyTorch, taking turns."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from modelreg.registry.tensor_sets import open_tensor_set
from modelreg_testing.checkout import ROOT
from modelreg_testing.gpu_lab import Json, Lab
from modelreg_testing.gpu_timing import (
    Plan,
    onnxruntime_timers,
    paired_ratio,
    take_turns,
    tensorrt_timers,
    torch_timers,
)

EXAMPLES = ROOT / "examples"
PRECISIONS = ("fp32", "fp16", "int8")


def time_engines(lab: Lab, network: str, batches: Sequence[int]) -> None:
    """Time every engine of a network that was built, at each batch size, and record one line for each."""
    with contextlib.ExitStack() as stack:
        opened = {}
        for precision in built(lab, network):
            open_timers = onnxruntime_timers if lab.setting.is_rehearsal else tensorrt_timers
            log = lab.folder / f"timing-{network}-{precision}.log"
            opened[precision] = stack.enter_context(open_timers(plan_of(lab, network, precision), log))
        for batch in batches:
            images = read_images(lab, network, batch)
            timers = torch_timers(lambda: load_net(lab, network), images, device=lab.setting.device)
            for precision, make in opened.items():
                timers |= {f"{precision} {name}": timer for name, timer in make({"image": images}).items()}
            record(lab, network, batch, take_turns(timers))


def built(lab: Lab, network: str) -> list[str]:
    """Return the precisions that were built: one that failed has failed its own stage, and the others are timed."""
    found = [precision for precision in PRECISIONS if f"{network} {precision}" in lab.plans]
    assert found, f"nothing of {network} was built"
    return found


def record(lab: Lab, network: str, batch: int, found: Json) -> None:
    """Record one line for each engine, with what PyTorch took in the same turns."""
    eager = {name: each for name, each in found.items() if name.startswith("torch_")}
    for precision in built(lab, network):
        parts = {name.split()[1]: each for name, each in found.items() if name.startswith(f"{precision} ")}
        entry = {"network": network, "precision": precision, "batch": batch, **parts, **eager}
        lab.recorder.add("latency", entry | ratios(entry))


def ratios(entry: Json) -> Json:
    """Return our runner against the bare loop, and PyTorch's best of comparable precision against our runner."""
    runner = entry["runner"]
    found: Json = {}
    if "bare" in entry:
        found["runner_to_bare"] = paired_ratio(runner, entry["bare"])
    rivals = ["torch_fp32"] if entry["precision"] == "fp32" else ["torch_fp16", "torch_fp16_channels_last"]
    known = [name for name in rivals if name in entry]
    if known:
        best = min(known, key=lambda name: entry[name]["median_ms"])
        found |= {"rival": best, "rival_to_runner": paired_ratio(entry[best], runner)}
    return found


def plan_of(lab: Lab, network: str, precision: str) -> Plan:
    """Return the plan that was built, as the timers take it."""
    engine = lab.recorder.engine(network, precision)
    return Plan(
        path=lab.plans[f"{network} {precision}"],
        digest=engine["plan"],
        version=engine["backend_version"],
        target=lab.setting.target,
        python=lab.setting.toolchain,
    )


def read_images(lab: Lab, network: str, batch: int) -> Any:
    """Return real inputs: the first of the golden set, repeated where it has fewer."""
    path = EXAMPLES / "lenet" / "golden-v1.npz" if network == "lenet" else lab.folder / network / "golden.safetensors"
    with open_tensor_set(path) as tensors:
        images = tensors.read("input.image", 0, batch)
    return np.ascontiguousarray(np.resize(images, (batch, *images.shape[1:])))


def load_net(lab: Lab, network: str) -> Any:
    """Return the example's module with its weights, in evaluation mode."""
    from safetensors.torch import load_file

    folder, module = ("lenet", "model") if network == "lenet" else ("resnet50", "resnet")
    sys.path.insert(0, str(EXAMPLES / folder))
    try:
        factory: Callable[[], Any] = getattr(importlib.import_module(module), network)
    finally:
        sys.path.pop(0)
    net = factory()
    weights = EXAMPLES / "lenet" / "lenet-v1.safetensors"
    net.load_state_dict(load_file(weights if network == "lenet" else lab.folder / network / f"{network}.safetensors"))
    return net.eval()


def timed(lab: Lab, network: str, precision: str, batch: int) -> Json:
    """Return the line of one engine at one batch size."""
    wanted = (network, precision, batch)
    for entry in lab.recorder.body["latency"]:
        if (entry["network"], entry["precision"], entry["batch"]) == wanted:
            found: Json = entry
            return found
    raise AssertionError(f"{network} {precision} was not timed at batch {batch}")
