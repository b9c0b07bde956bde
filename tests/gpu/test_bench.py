"""`modelreg bench` on this GPU: trtexec's boundaries, CUDA graphs, streams, and PyTorch in turns."""

from __future__ import annotations

import pytest

from modelreg_testing.checkout import ROOT
from modelreg_testing.gpu_lab import Json, Lab, require_gpu, require_time
from modelreg_testing.gpu_latency import built

pytestmark = pytest.mark.gpu

each_network = pytest.mark.parametrize("network", ["lenet", "resnet18"])

BOUNDARIES = {"gpu-compute", "enqueue", "h2d", "d2h", "latency"}
EXAMPLES = ROOT / "examples"


def bench(lab: Lab, network: str, *words: object, batches: str = "1,64") -> Json:
    """Run `bench` on version 1 of a network, and record what it found."""
    require_time(35)
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
