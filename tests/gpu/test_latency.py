"""How long a batch takes: engines in our runner and in a bare TensorRT loop, and PyTorch, taking turns on this GPU."""

from __future__ import annotations

import contextlib
import gzip
import importlib
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from modelreg.registry.tensor_sets import open_tensor_set
from modelreg.registry.toolchains.process import Worker
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

pytestmark = pytest.mark.gpu

EXAMPLES = ROOT / "examples"
BATCHES = (1, 64)
PRECISIONS = ("fp32", "fp16", "int8")
FASTER_THAN_PYTORCH = 2.2
SLOWER_THAN_BARE = 1.03

each_network = pytest.mark.parametrize("network", ["lenet", "resnet18"])
each_batch = pytest.mark.parametrize("batch", BATCHES)


@each_network
def test_every_engine_is_timed_against_pytorch(lab: Lab, network: str) -> None:
    with contextlib.ExitStack() as stack:
        opened = {}
        for precision in PRECISIONS:
            open_timers = onnxruntime_timers if lab.setting.is_rehearsal else tensorrt_timers
            log = lab.folder / f"timing-{network}-{precision}.log"
            opened[precision] = stack.enter_context(open_timers(plan_of(lab, network, precision), log))
        for batch in BATCHES:
            images = read_images(lab, network, batch)
            timers = torch_timers(lambda: load_net(lab, network), images, device=lab.setting.device)
            for precision, make in opened.items():
                timers |= {f"{precision} {name}": timer for name, timer in make({"image": images}).items()}
            record(lab, network, batch, take_turns(timers))


def record(lab: Lab, network: str, batch: int, found: Json) -> None:
    """Record one line for each engine, with what PyTorch took in the same turns."""
    eager = {name: each for name, each in found.items() if name.startswith("torch_")}
    for precision in PRECISIONS:
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
    wanted = (network, precision, batch)
    for entry in lab.recorder.body["latency"]:
        if (entry["network"], entry["precision"], entry["batch"]) == wanted:
            found: Json = entry
            return found
    raise AssertionError(f"{network} {precision} was not timed at batch {batch}")


@each_network
def test_the_inspector_tells_every_layer(lab: Lab, network: str) -> None:
    require_gpu(lab)
    job, answer, told = ROOT / "tests" / "gpu" / "bare_trt.py", lab.folder / "inspected.json", {}
    shape = (8, *read_images(lab, network, 1).shape[1:])
    for precision in PRECISIONS:
        with Worker.start(lab.setting.toolchain, job, log_path=lab.folder / "inspect.log") as worker:
            worker.call("load", {"path": str(lab.plans[f"{network} {precision}"])}, timeout_s=60)
            worker.call("inspect", {"shapes": {"image": shape}, "to": str(answer)}, timeout_s=60)
        # TensorRT 8.6 puts control characters into names.
        told[precision] = json.loads(answer.read_text(encoding="utf-8"), strict=False)
    with gzip.open(lab.setting.results / f"inspector-{network}.json.gz", "wt") as file:
        json.dump(told, file)
    assert all(len(each["Layers"]) > 2 for each in told.values())


def require_gpu(lab: Lab) -> None:
    if lab.setting.is_rehearsal:
        pytest.skip("the rehearsal on the CPU promises no speed")


def test_fp16_is_faster_than_the_best_of_pytorch_in_fp16(lab: Lab) -> None:
    require_gpu(lab)
    entry = timed(lab, "resnet18", "fp16", 64)
    assert entry["rival_to_runner"] >= FASTER_THAN_PYTORCH, entry["rival"]


@each_batch
def test_int8_is_faster_than_fp16(lab: Lab, batch: int) -> None:
    require_gpu(lab)
    int8, fp16 = (timed(lab, "resnet18", precision, batch)["runner"] for precision in ("int8", "fp16"))
    assert paired_ratio(int8, fp16) < 1


@each_batch
@pytest.mark.parametrize("precision", PRECISIONS)
def test_our_runner_costs_next_to_nothing(lab: Lab, precision: str, batch: int) -> None:
    require_gpu(lab)
    assert timed(lab, "resnet18", precision, batch)["runner_to_bare"] <= SLOWER_THAN_BARE
