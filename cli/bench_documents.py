"""What `bench` found as JSON: one document, from which the tables and the page are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from modelreg.registry.clock import iso

if TYPE_CHECKING:
    from datetime import datetime

    from modelreg.cli.bench_choosing import Side
    from modelreg.cli.benching import EagerRow, Pair, Request, Results
    from modelreg.registry.records import BenchmarkRecord, EngineRecord
    from modelreg.registry.words import Json
    from modelreg.runtime.latency import Measurement


def results_document(results: Results, request: Request, *, host: Json, at: datetime, stored: bool) -> Json:
    """Return everything that was measured, as one document."""
    from modelreg.runtime.clocks import say_clocks

    latencies = [
        {**_side_document(each.side), **_measured_document(measured)}
        for each in results.engines
        for measured in each.measured
    ]
    return {
        "at": iso(at),
        "settings": {**request.settings, "host": host},
        "clocks": [
            {
                "engine": each.side.engine.id,
                **each.clocks,
                "said": say_clocks(each.clocks["before"], each.clocks["after"]),
            }
            for each in results.engines
        ],
        "latencies": latencies,
        "pytorch": [_eager_document(row) for row in results.eager],
        "pairs": [pair_document(pair) for pair in results.pairs],
        "matrix": make_matrix(latencies),
        "stored": stored,
    }


def make_matrix(latencies: Sequence[Json]) -> list[Json]:
    """
    Return one row for each engine: median, throughput and the part of the FP32 engine's latency, by batch. Pure.

    The FP32 engine is that of the same target and backend; `to_fp32` is None where there is none. It was not timed in
    turns: `--vs` does that.
    """
    medians = {
        (row["target"], row["backend"], row["batch"]): row["median_ms"]
        for row in reversed(latencies)
        if row["precision"] == "fp32"
    }
    found: dict[int, Json] = {}
    for row in latencies:
        engine = found.setdefault(
            row["engine"], {name: row[name] for name in ("engine", "target", "precision", "backend")} | {"cells": []}
        )
        fp32_ms = medians.get((row["target"], row["backend"], row["batch"]))
        engine["cells"].append(
            {
                "batch": row["batch"],
                "median_ms": row["median_ms"],
                "throughput": row["throughput"],
                "to_fp32": None if fp32_ms is None else row["median_ms"] / fp32_ms,
            }
        )
    return [*found.values()]


def pair_document(pair: Pair) -> Json:
    """Return one comparison, with both sides of it."""
    if isinstance(pair.second, tuple):
        variant, info = pair.second
        second: Json = {"framework": "pytorch", "variant": str(variant), **info}
    else:
        second = _side_document(pair.second)
    return {"first": _side_document(pair.first), "second": second, **pair.latency.to_json()}


def _side_document(side: Side) -> Json:
    return {"version": side.version.reference, **engine_facts(side.engine)}


def engine_facts(engine: EngineRecord) -> Json:
    """Return which engine it is."""
    return {
        "engine": engine.id,
        "target": engine.target.name,
        "precision": str(engine.precision),
        "backend": str(engine.toolchain.backend),
        "backend_version": engine.toolchain.version,
        "plan": engine.plan_digest,
    }


def _eager_document(row: EagerRow) -> Json:
    about = {"framework": "pytorch", "variant": str(row.variant), **row.info}
    return {**about, **_measured_document(row.measured)}


def _measured_document(measured: Measurement) -> Json:
    from modelreg.runtime.latency import count_bins, find_remarks

    shown = measured.shown
    return {
        "boundary": str(shown.boundary),
        "batch": measured.batch,
        "runs": shown.runs,
        **shown.to_json(),
        **measured.figures(),
        "histogram": count_bins(measured.samples[shown.boundary]),
        "remarks": find_remarks(measured),
    }


def stored_document(record: BenchmarkRecord, engine: EngineRecord | None = None) -> Json:
    """Return a benchmark that was kept."""
    found: dict[str, Any] = {} if engine is None else engine_facts(engine)
    return {
        **found,
        "benchmark": record.id,
        "at": iso(record.created_at),
        "by": record.created_by,
        "batch": record.batch,
        "boundary": record.boundary,
        **record.shown,
        **record.figures,
        "comparisons": list(record.comparisons),
        "settings": record.settings,
        "clocks": record.clocks,
        "host": record.host,
        "samples": record.samples_digest,
    }
