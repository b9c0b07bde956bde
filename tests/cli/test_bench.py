"""`bench`: figures of real engines, and a verdict that says when nobody can tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelreg_testing.cli import Shop
from modelreg_testing.released_lenet import released_lenet

pytestmark = pytest.mark.slow
QUICK = ("--duration", "0.02", "--warmUp", "1")


@pytest.fixture(scope="module")
def lenet(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop.at(released_lenet(tmp_path_factory))


def test_each_engine_and_batch_size_has_a_row_whose_figures_are_in_order(lenet: Shop) -> None:
    done = lenet.cli("bench", "lenet:1", "--batch", "1,4", *QUICK, "--json")
    assert done.code == 0, done.err
    rows = done.document["latencies"]
    assert {(row["precision"], row["batch"]) for row in rows} == {("fp32", 1), ("fp32", 4), ("int8", 1), ("int8", 4)}
    for row in rows:
        figures = [row[name] for name in ("min_ms", "median_ms", "p90_ms", "p95_ms", "p99_ms", "max_ms")]
        assert figures == sorted(figures)
        assert 0 < row["min_ms"] <= row["mean_ms"] <= row["max_ms"]
        assert row["throughput"] == pytest.approx(row["batch"] * 1000 / row["mean_ms"])
        assert (row["boundary"], row["runs"] >= 10) == ("host", True)


def test_an_engine_beside_another_has_a_ratio_with_an_interval_around_it(lenet: Shop) -> None:
    done = lenet.cli(
        "bench", "lenet@production", "--vs", "lenet:2", "--precision", "int8", "--batch", "8", *QUICK, "--json"
    )
    assert done.code == 0, done.err
    (pair,) = done.document["pairs"]
    assert pair["first"]["plan"] == pair["second"]["plan"]
    assert pair["low"] <= pair["ratio"] <= pair["high"]
    assert pair["standing"] in ("better", "worse", "inconclusive")


def test_people_get_a_table_and_one_line_for_each_pair(lenet: Shop) -> None:
    done = lenet.cli("bench", "lenet:2", "--vs", "lenet:1", "--precision", "fp32", "--batch", "1", *QUICK)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].split()[:4] == ["ENGINE", "BATCH", "MIN", "MEDIAN"]
    assert "clocks not locked" in lines[2]
    assert "of lenet:1 engine" in lines[3]


def test_what_cannot_be_compared_or_timed_is_said(lenet: Shop, tmp_path: Path) -> None:
    assert lenet.cli("bench", "lenet:1", "--precision", "fp8").code == 1
    assert lenet.cli("bench", "lenet:1", "--batch", "0").code == 2
    assert lenet.cli("bench", "lenet@nowhere").code == 1
