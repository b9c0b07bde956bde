"""`bench`: figures of real engines, kept with what they were measured in; verdicts, also that nobody can tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modelreg.registry.tensor_sets import open_tensor_set
from modelreg_testing.checkout import ROOT
from modelreg_testing.cli import CliResult, Shop
from modelreg_testing.released_lenet import copy_of_released_lenet

pytestmark = pytest.mark.slow
QUICK = ("--duration", "0.02", "--warmUp", "1")
LENET = ROOT / "examples" / "lenet"
ORDERED = ("min_ms", "median_ms", "p90_ms", "p95_ms", "p99_ms", "max_ms")


@pytest.fixture(scope="module")
def lenet(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """Give a registry of our own: what is measured is kept there."""
    return Shop.at(copy_of_released_lenet(tmp_path_factory, tmp_path_factory.mktemp("bench") / "home"))


@pytest.fixture(scope="module")
def measured(lenet: Shop, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """Give what `bench lenet:1` found, which is kept, and its page."""
    page = tmp_path_factory.mktemp("page") / "bench.html"
    done = lenet.cli("bench", "lenet:1", "--batch", "1,4", *QUICK, "--html", page, "--json")
    assert done.code == 0, done.err
    return done.document, page


def test_each_engine_and_batch_size_has_a_row_whose_figures_are_in_order(measured: tuple[dict[str, Any], Path]) -> None:
    rows = measured[0]["latencies"]
    assert {(row["precision"], row["batch"]) for row in rows} == {("fp32", 1), ("fp32", 4), ("int8", 1), ("int8", 4)}
    for row in rows:
        figures = [row[name] for name in ORDERED]
        assert figures == sorted(figures)
        assert 0 < row["min_ms"] <= row["mean_ms"] <= row["max_ms"]
        assert row["boundaries"]["host"]["median_ms"] == row["median_ms"]
        assert row["queries_per_s"] == pytest.approx(row["runs"] / row["wall_s"])
        assert row["throughput"] == pytest.approx(row["batch"] * row["queries_per_s"])
        assert (row["boundary"], row["runs"] >= 10) == ("host", True)
        assert row["told"] == {"streams": 1, "provider": "CPUExecutionProvider"}
        assert sum(row["histogram"]["counts"]) + row["histogram"]["beyond"] == row["runs"]


def test_precisions_by_batch_sizes_have_their_part_of_fp32(measured: tuple[dict[str, Any], Path]) -> None:
    fp32, int8 = measured[0]["matrix"]
    assert (fp32["precision"], int8["precision"]) == ("fp32", "int8")
    assert [cell["to_fp32"] for cell in fp32["cells"]] == [1, 1]
    for own, base in zip(int8["cells"], fp32["cells"], strict=True):
        assert own["to_fp32"] == pytest.approx(own["median_ms"] / base["median_ms"])


def test_clocks_are_read_before_and_after_or_it_says_why_not(measured: tuple[dict[str, Any], Path]) -> None:
    for clocks in measured[0]["clocks"]:
        for reading in (clocks["before"], clocks["after"]):
            assert bool(reading["gpus"]) is not bool(reading["gpus_not_read"])
        assert clocks["said"].startswith("clocks")


def test_figures_are_kept_with_their_runs_and_shown_again(lenet: Shop, measured: tuple[dict[str, Any], Path]) -> None:
    assert measured[0]["stored"] is True
    newest = lenet.cli("show", "lenet:1", "--json").document["engines"]
    wanted = {(row["engine"], row["batch"]): row["median_ms"] for row in measured[0]["latencies"]}
    assert {(each["id"], kept["batch"]): kept["median_ms"] for each in newest for kept in each["benchmarks"]} == wanted
    kept = lenet.cli("bench", "lenet:1", "--history", "--json", "--precision", "int8", "--batch", "4").document
    (record,) = kept["benchmarks"]
    assert (record["precision"], record["batch"], record["settings"]["duration_s"]) == ("int8", 4, 0.02)
    path = lenet.path / "samples.safetensors"
    lenet.storage.fetch_blob(record["samples"], path)
    with open_tensor_set(path) as samples:
        assert samples.tensors["host"].rows == record["queries"]
        assert float(samples.read("host").min()) == pytest.approx(record["min_ms"])
    told = lenet.cli("show", "lenet:1").out
    assert "ms at batch 1, " in told
    table = lenet.cli("bench", "lenet:1", "--history").out.splitlines()
    assert table[0].split()[:4] == ["TIME", "(UTC)", "ENGINE", "BATCH"]
    assert len(table) == 5
    assert lenet.cli("doctor").code == 0
    assert lenet.cli("verify", "lenet:1").code == 0


def test_a_collector_leaves_them(lenet: Shop, measured: tuple[dict[str, Any], Path]) -> None:
    del measured
    before = {each.digest for each in lenet.storage.iterate_blobs()}
    assert lenet.cli("gc", "--grace", "0s").code == 0
    history = lenet.cli("bench", "lenet:1", "--history", "--json").document["benchmarks"]
    kept = {each["samples"] for each in history}
    assert len(kept) == 4
    assert kept <= {each.digest for each in lenet.storage.iterate_blobs()} <= before


def test_the_page_needs_nothing_and_plots_every_engine(measured: tuple[dict[str, Any], Path]) -> None:
    page = measured[1].read_text(encoding="utf-8")
    assert page.count("<svg ") == 2 + 4
    assert "cpu int8" in page


def test_an_engine_beside_another_has_a_ratio_with_an_interval_around_it(lenet: Shop) -> None:
    words = ("bench", "lenet@production", "--vs", "lenet:2", "--precision", "int8", "--batch", "8", *QUICK)
    done = lenet.cli(*words, "--json")
    assert done.code == 0, done.err
    (pair,) = done.document["pairs"]
    assert pair["first"]["plan"] == pair["second"]["plan"]
    assert pair["low"] <= pair["ratio"] <= pair["high"]
    assert pair["standing"] in ("better", "worse", "inconclusive")
    (record,) = lenet.cli("bench", "lenet:2", "--history", "--json", "--batch", "8").document["benchmarks"]
    assert record["comparisons"] == [pair]


def test_people_get_tables_a_line_for_each_pair_and_pytorch_beside_them(lenet: Shop) -> None:
    reference = ("--pytorch", f"{LENET / 'model.py'}:lenet", "--weights", LENET / "lenet-v1.safetensors")
    rivals = ("--vs", "lenet:1", *reference, "--threads", "1")
    done = lenet.cli("bench", "lenet:2", *rivals, "--precision", "fp32", "--batch", "1", *QUICK, "--no-store")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].split()[:5] == ["ENGINE", "BATCH", "BOUNDARY", "MIN", "MEDIAN"]
    assert [line.split()[:2] for line in lines[1:3]] == [[*lines[1].split()[:1], "cpu"], ["PyTorch", "fp32"]]
    assert lines[3] == "milliseconds a query, samples a second; 1 stream"
    assert any("of lenet:1 engine" in line for line in lines)
    assert any("eager fp32, batch 1" in line for line in lines)
    assert lenet.cli("bench", "lenet:2", "--history", "--precision", "fp32").out.startswith("nothing measured yet")


def test_several_streams_ask_at_once(lenet: Shop) -> None:
    words = ("bench", "lenet:1", "--precision", "fp32", "--batch", "1", "--infStreams", "3", "--no-store", "--json")
    (row,) = lenet.cli(*words, *QUICK).document["latencies"]
    assert row["told"]["streams"] == 3
    assert row["runs"] * row["mean_ms"] > row["wall_s"] * 1000  # more time in calls than passed


def test_a_dry_run_says_what_would_be_timed_and_keeps_nothing(lenet: Shop) -> None:
    done = lenet.cli("bench", "lenet:2", "--vs", "lenet:1", "--precision", "fp32", "--dry-run")
    assert done.out.startswith("would time lenet:2 engine ")
    assert ", in turns with lenet:1 engine " in done.out
    assert "--useCudaGraph changes nothing" in lenet.cli("bench", "lenet:2", "--useCudaGraph", "--dry-run").err
    document = lenet.cli("bench", "lenet:2", "--dry-run", "--json").document
    assert (document["dry_run"], document["batches"], len(document["engines"])) == (True, [1, 8, 32], 2)


def refused(done: CliResult) -> tuple[int, str]:
    return done.code, done.err.splitlines()[0].removeprefix("modelreg: error: ")


def test_what_cannot_be_compared_timed_or_written_is_said_first(lenet: Shop, tmp_path: Path) -> None:
    assert lenet.cli("bench", "lenet:1", "--precision", "fp8").code == 1
    assert lenet.cli("bench", "lenet:1", "--batch", "0").code == 2
    assert lenet.cli("bench", "lenet@nowhere").code == 1
    assert refused(lenet.cli("bench", "lenet:1", "--weights", "w")) == (2, "--weights belongs to --pytorch")
    assert refused(lenet.cli("bench", "lenet:1", "--pytorch", tmp_path / "no.py:Net"))[0] == 1
    assert refused(lenet.cli("bench", "lenet:1", "--pytorch", "model.py"))[0] == 2
    assert refused(lenet.cli("bench", "lenet:1", "--html", tmp_path / "no" / "page.html"))[0] == 2
    assert refused(lenet.cli("bench", "lenet:1", "--html", "-", "--json"))[0] == 2
