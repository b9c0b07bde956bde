"""Tables on a terminal of 80 columns: no row is broken, and what has no room is said; a pipe gets all of it."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest

from modelreg.cli.bench_tables import print_results
from modelreg.cli.cells import print_engines
from modelreg.cli.layer_tables import print_layers
from modelreg.cli.leases import print_leases
from modelreg.cli.main import run
from modelreg.cli.night_tables import print_night
from modelreg.cli.table_widths import Column, arrange
from modelreg.registry.leases import Holder, Lease
from modelreg.registry.promotion import Candidate
from modelreg.registry.records import EngineRecord, ToolchainRecord
from modelreg.registry.words import Backend, GateOutcome, Precision, Verdict
from modelreg.validators.layers.birth import diagnose
from modelreg.validators.layers.comparison import LayerReport
from modelreg.validators.layers.measuring import LayerMeasurement, Row
from modelreg_testing.cli import Shop
from modelreg_testing.records import ORT, make_engine, make_gate, make_validation
from modelreg_testing.registry import add_benchmark

AT = datetime(2026, 11, 30, 22, 16, 5, tzinfo=timezone.utc)
RTX = ToolchainRecord(
    id=3, name="rtx", backend=Backend.TENSORRT_RTX, version="1.4.0.77", python="/opt/rtx/bin/python", details={}
)


class Screen(io.StringIO):
    """A standard output that is a terminal."""

    def isatty(self) -> bool:
        return True


def on_screen(work: Callable[[], object]) -> tuple[list[str], str]:
    """Return the lines of a terminal, and what was said beside them."""
    with redirect_stdout(Screen()) as screen, redirect_stderr(io.StringIO()) as notes:
        work()
    lines = screen.getvalue().splitlines()
    assert max(map(len, lines)) <= 80, "\n".join(lines)
    return lines, notes.getvalue()


def in_pipe(work: Callable[[], object]) -> tuple[list[str], str]:
    with redirect_stdout(io.StringIO()) as pipe, redirect_stderr(io.StringIO()) as notes:
        work()
    return pipe.getvalue().splitlines(), notes.getvalue()


COLUMNS = (
    Column(header="A", short=lambda cell: cell.replace("long", "l")),
    Column(header="B", folds=True, least=10, below=True),
    Column(header="C", leaves=2),
    Column(header="D", leaves=1),
)
ROW = ("a long word", "b says a lot of things", "c is here", "d as well")


@pytest.mark.parametrize(
    ("width", "headers", "first", "below", "left_out"),
    [
        (80, "ABCD", "a long word", (), ()),
        (45, "ABCD", "a long word", (), ()),
        (43, "ABCD", "a l word", (), ()),
        (34, "ACD", "a l word", ("b says a lot of things",), ()),
        (20, "AC", "a l word", ("b says a lot of things",), ("D",)),
        (9, "A", "a l word", ("b says a lot of things",), ("D", "C")),
    ],
)
def test_a_table_is_changed_as_little_as_its_width_asks(
    width: int, headers: str, first: str, below: tuple[str, ...], left_out: tuple[str, ...]
) -> None:
    made = arrange(COLUMNS, [[column.header for column in COLUMNS], ROW], width=width)
    assert "".join(made.rows[0]) == headers
    assert (made.rows[1][0], made.below[1], made.left_out) == (first, below, left_out)
    assert sum(made.widths) + 2 * (len(made.widths) - 1) <= width


def engine(number: int, precision: Precision, toolchain: ToolchainRecord, target: str) -> EngineRecord:
    made = make_engine(number, precision, toolchain=toolchain, target=target)
    return replace(made, realised={"storage": "fp16", "compute": "fp32"})


@pytest.mark.parametrize(("toolchain", "target", "realised"), [(ORT, "cpu", "FP16/FP32"), (RTX, "sm_120", "FP16/FP32")])
def test_what_an_engine_became_is_one_line_of_show(toolchain: ToolchainRecord, target: str, realised: str) -> None:
    made = engine(12, Precision.FP16, toolchain, target)
    skipped = make_gate(GateOutcome.SKIPPED)
    judged = {12: make_validation(made, gates=(*[make_gate()] * 15, skipped, make_gate(GateOutcome.INCONCLUSIVE)))}
    candidates = [Candidate(engine=made, usable=True, reason="")]
    lines, _ = on_screen(lambda: print_engines(candidates, judged, no_color=True))
    assert [realised in line for line in lines].count(True) == 1
    assert len(lines) <= 4
    header, row = in_pipe(lambda: print_engines(candidates, judged, no_color=True))[0]
    assert "FP16 storage, FP32 compute" in row
    assert header.split()[-1] == "GATES"
    assert "15 pass, 1 skipped, 1 inconclusive" in row


def lease(instance: str) -> Lease:
    return Lease(
        model="resnet50",
        channel="production",
        version=12,
        generation=7,
        release="a" * 64,
        holder=Holder(host="edge-host-12", pid=12345, instance=instance),
        since=AT,
        renewed_at=AT,
        ttl_s=90.0,
    )


def test_leases_leave_out_times_where_there_is_no_room() -> None:
    held = [lease("/srv/models/resnet50")]
    lines, notes = on_screen(lambda: print_leases(held, no_color=True))
    assert lines[0].split()[0] == "LEASE"
    assert "/srv/models/resnet50" in lines[1]
    assert notes.startswith("no room for SINCE (UTC)")
    (_, row), notes = in_pipe(lambda: print_leases(held, no_color=True))
    assert row.endswith("edge-host-12 pid 12345  /srv/models/resnet50  2026-11-30 22:16:05  2026-11-30 22:16:05")
    assert notes == ""


def layers() -> LayerReport:
    row = Row(name="/layer1/layer1.0/conv1", tensor="t", node="/layer1/layer1.0/conv1/Conv", op="FusedConv", inputs=())
    measured = LayerMeasurement(
        row=row,
        values=8,
        cosine=0.999912,
        sqnr_db=12.5,
        own_sqnr_db=13.25,
        max_abs=0.123456,
        odd=0,
        own_odd=0,
        saturated=0.015,
        reference_range=(-1.234, 2.345),
        candidate_range=(-1.235, 2.346),
    )
    return LayerReport(
        rows=(measured,),
        diagnosis=diagnose([measured.error], limit_db=15.0),
        reference="pytorch",
        unit="sample",
        samples=(0,),
        limit_db=15.0,
        matches=(),
        gone={},
        taps=None,
        own="exact",
    )


def test_layers_leave_out_ranges_first_and_keep_where_the_error_is_born(monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> None:
        print_layers(layers(), name="engine 1 (cpu int8)", verdict=Verdict.FAIL, no_color=True)

    with redirect_stdout(Screen()) as screen, redirect_stderr(io.StringIO()) as notes:
        work()
    header, row = screen.getvalue().splitlines()[1:3]
    assert max(len(header), len(row)) <= 80
    assert row.endswith("<- born here")
    assert "SQNR" in header
    assert notes.getvalue().startswith("no room for REFERENCE, ENGINE")
    lines, told = in_pipe(work)
    assert "-1.23 … 2.35" in lines[2]
    assert told == ""


def bench_document() -> dict[str, Any]:
    figures = {f"{name}_ms": 1.2345 for name in ("min", "median", "mean", "p90", "p95", "p99", "max")}
    about = {"engine": 12, "target": "sm_120", "precision": "fp16"}
    boundaries = dict.fromkeys(("GPU compute", "latency"), figures)
    latency = {**about, "batch": 32, "boundaries": boundaries, "throughput": 123456.0, "told": {}, "remarks": []}
    cells = [{"batch": batch, "median_ms": 1.2345, "throughput": 123456.0, "to_fp32": 0.51} for batch in (1, 8, 32)]
    return {
        "latencies": [latency],
        "pytorch": [],
        "settings": {"streams": 1, "cuda_graph": False, "transfers": True},
        "clocks": [],
        "matrix": [{**about, "cells": cells}] * 2,
    }


def test_bench_leaves_out_figures_and_folds_its_matrix() -> None:
    def work() -> None:
        print_results(bench_document(), [], no_color=True)

    lines, notes = on_screen(work)
    assert lines[0].split() == ["ENGINE", "BATCH", "BOUNDARY", "MEDIAN", "MEAN", "P99", "MAX", "PER", "SECOND"]
    assert notes == "no room for P90, P95, MIN: a wider terminal, a pipe or --json has them\n"
    lines, notes = in_pipe(work)
    assert "P90" in lines[0]
    assert "1.234 ms  123,456/s  0.51  1.234 ms" in lines[-2]
    assert notes == ""


def test_history_puts_a_long_reason_below_its_row(shop: Shop) -> None:
    shop.add_version(verdict=Verdict.FAIL)
    why = "the fix of last night must be out before the shop opens, and the gate is known to be too strict"
    assert shop.cli("promote", "lenet:1", "--to", "production", "--override-gates", "-m", why).code == 0

    def work() -> None:
        assert run(["--home", str(shop.path), "history", "lenet", "--no-color"]) == 0

    results, _ = on_screen(work)
    assert results[0].split() == ["CHANNEL", "GEN", "VERSION", "KIND", "WHEN", "(UTC)", "WHO"]
    assert results[1] == "    WHY"
    assert results[3].startswith(f"    {why[:40]}")
    assert len(results) <= 6
    lines, _ = in_pipe(work)
    assert len(lines) == 2
    assert lines[1].endswith(f"{why}; gates overridden: cpu fp32: validation fail: max_relative_error of y")


def test_earlier_figures_leave_out_clock_and_host(shop: Shop) -> None:
    (made,) = shop.add_version(model="a-network-of-many-layers")
    with shop.database() as database, database.write() as connection:
        add_benchmark(connection, made, host="worker-17.gpu.example.org")

    def work() -> None:
        assert run(["--home", str(shop.path), "bench", "a-network-of-many-layers:1", "--history", "--no-color"]) == 0

    lines, notes = on_screen(work)
    assert lines[0].split()[:4] == ["TIME", "(UTC)", "ENGINE", "BATCH"]
    assert notes.startswith("no room for SM MHZ")
    (header, _), notes = in_pipe(work)
    assert header.split()[-3:] == ["HOST", "SM", "MHZ"]
    assert notes == ""


def test_a_night_puts_its_reasons_below() -> None:
    engine = {"target": "sm_120", "precision": "int8"}
    skipped = {"engine": engine, "reason": "needs sm_120; this host has cpu"}
    way = {"state": "works", "version": 11, "seconds": 0.0123}
    place = {"model": "resnet50", "channel": "production", "version": 12}
    channel = {**place, "engines": [], "skipped": [skipped], "rollback": way}

    def work() -> None:
        print_night({"channels": [channel], "findings": [], "verdict": "ok"}, no_color=True)

    lines, _ = on_screen(work)
    assert "    needs sm_120; this host has cpu" in lines
    assert "skipped  needs sm_120; this host has cpu" in in_pipe(work)[0][1]
