"""How long a batch takes: engines in our runner and in a bare TensorRT loop, and PyTorch, taking turns on this GPU."""

from __future__ import annotations

import gzip
import json

import pytest

from modelreg.registry.toolchains.process import Worker
from modelreg_testing.checkout import ROOT
from modelreg_testing.gpu_lab import Json, Lab
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


BOUNDARIES = {"gpu-compute", "enqueue", "h2d", "d2h", "latency"}
EXAMPLES = ROOT / "examples"


def bench(lab: Lab, network: str, *words: object, batches: str = "1,64") -> Json:
    """Run `bench` on version 1 of a network, and record what it found."""
    quick = ("--duration", "0.02", "--warmUp", "1") if lab.setting.is_rehearsal else ("--duration", "0.3")
    document = lab.modelreg("bench", f"{network}:1", "--batch", batches, *quick, *words, "--json").document
    lab.recorder.add("bench", document)
    return document


@each_network
@pytest.mark.parametrize("graph", [(), ("--useCudaGraph",)], ids=["no graph", "graph"])
def test_bench_has_the_boundaries_of_trtexec_and_they_add_up(lab: Lab, network: str, graph: tuple[str, ...]) -> None:
    found = bench(lab, network, *graph, "--html", lab.setting.results / f"bench-{network}-{len(graph)}.html")
    assert {row["precision"] for row in found["latencies"]} == set(built(lab, network))
    if lab.setting.is_rehearsal:
        return
    for row in found["latencies"]:
        parts = row["boundaries"]
        assert set(parts) == BOUNDARIES
        assert all(each["min_ms"] > 0 for each in parts.values())
        total = sum(parts[name]["mean_ms"] for name in ("h2d", "gpu-compute", "d2h"))
        assert parts["latency"]["mean_ms"] == pytest.approx(total, rel=1e-3)
        # On one stream no two runs overlap, so that all of them fit into the time that passed.
        assert parts["gpu-compute"]["mean_ms"] * row["runs"] <= row["wall_s"] * 1000 * 1.02
        assert row["told"]["cuda_graph"] is bool(graph)
    (clocks,) = {each["gpus_not_read"] for reading in found["clocks"] for each in (reading["before"], reading["after"])}
    lab.recorder.add("facts", {"what": "clocks", "not read": clocks, "told": found["clocks"][0]})
    assert clocks or all(each["after"]["gpus"][0]["sm_mhz"] > 0 for each in found["clocks"])


def test_a_large_batch_is_enqueued_faster_than_it_is_computed(lab: Lab) -> None:
    require_gpu(lab)
    found = bench(lab, "resnet18", "--precision", "fp32", batches="64")
    (row,) = found["latencies"]
    assert row["boundaries"]["enqueue"]["median_ms"] < row["boundaries"]["gpu-compute"]["median_ms"]


def test_several_streams_and_no_transfers_are_timed_and_said(lab: Lab) -> None:
    require_gpu(lab)
    for streams in ("1", "2"):  # how much more two give is recorded; a busy host may give less
        words = ("--precision", "fp16", "--streams", streams, "--noDataTransfers", "--useCudaGraph")
        (row,) = bench(lab, "resnet18", *words, batches="1")["latencies"]
        assert set(row["boundaries"]) == {"gpu-compute", "enqueue"}
        assert row["told"] == {"streams": int(streams), "cuda_graph": True, "transfers": False, "depth": 2}


def test_bench_compares_with_pytorch_and_keeps_what_it_found(lab: Lab) -> None:
    require_gpu(lab)
    weights = lab.folder / "resnet18" / "resnet18.safetensors"
    reference = f"{EXAMPLES / 'resnet50' / 'resnet.py'}:resnet18"
    words = ("--pytorch", reference, "--weights", weights, "--precision", "fp32,fp16")
    found = bench(lab, "resnet18", *words, batches="64")
    pairs = {(each["first"]["precision"], each["second"]["variant"]): each for each in found["pairs"]}
    assert set(pairs) == {("fp32", "fp32"), ("fp16", "fp16"), ("fp16", "fp16-channels-last")}
    assert all(each["standing"] == "better" for (precision, _), each in pairs.items() if precision == "fp16")
    shown = lab.modelreg("show", "resnet18:1", "--json").document["engines"]
    kept = [record for each in shown for record in each["benchmarks"] if record["comparisons"]]
    assert len(kept) == 2
