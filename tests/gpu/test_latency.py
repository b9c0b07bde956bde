"""How long a batch takes: engines in our runner and in a bare TensorRT loop, and PyTorch, taking turns on this GPU."""

from __future__ import annotations

import gzip
import json

import pytest

from modelreg.registry.toolchains.process import Worker
from modelreg_testing.checkout import ROOT
from modelreg_testing.gpu_lab import Lab, require_gpu
from modelreg_testing.gpu_latency import PRECISIONS, built, read_images, time_engines, timed
from modelreg_testing.gpu_timing import paired_ratio

pytestmark = pytest.mark.gpu

BATCHES = (1, 64)
FASTER_THAN_PYTORCH = 2.2
SLOWER_THAN_BARE = 1.03

each_network = pytest.mark.parametrize("network", ["lenet", "resnet18"])
each_batch = pytest.mark.parametrize("batch", BATCHES)


@each_network
def test_every_engine_is_timed_against_pytorch(lab: Lab, network: str) -> None:
    time_engines(lab, network, BATCHES)


@each_network
def test_the_inspector_tells_every_layer(lab: Lab, network: str) -> None:
    require_gpu(lab)
    job, answer, told = ROOT / "tests" / "gpu" / "bare_trt.py", lab.folder / "inspected.json", {}
    shape = (8, *read_images(lab, network, 1).shape[1:])
    for precision in built(lab, network):
        with Worker.start(lab.setting.toolchain, job, log_path=lab.folder / "inspect.log") as worker:
            worker.call("load", {"path": str(lab.plans[f"{network} {precision}"])}, timeout_s=60)
            worker.call("inspect", {"shapes": {"image": shape}, "to": str(answer)}, timeout_s=60)
        # TensorRT 8.6 puts control characters into names.
        told[precision] = json.loads(answer.read_text(encoding="utf-8"), strict=False)
    with gzip.open(lab.setting.results / f"inspector-{network}.json.gz", "wt") as file:
        json.dump(told, file)
    assert all(len(each["Layers"]) > 2 for each in told.values())


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
