"""The JSON document of a serving process, which `modelreg top` shows. Pure.

Its fields may grow in number; none changes its meaning while `monitor` is the same number.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

from modelreg.registry.clock import iso, utc_now
from modelreg.registry.words import Json
from modelreg.runtime.monitoring.facts import Facts, ModelFacts
from modelreg.runtime.monitoring.health import HealthReport
from modelreg.runtime.monitoring.metrics import Totals
from modelreg.runtime.monitoring.series import Latencies, quantiles_of
from modelreg.runtime.monitoring.tracking import RATE_S, ModelTracker

if TYPE_CHECKING:
    from modelreg.runtime.monitoring.parity import OnlineParity

FORMAT = 1
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def describe(
    facts: Facts,
    report: HealthReport,
    *,
    trackers: Mapping[str, ModelTracker],
    totals: Mapping[str, Totals],
    latencies: Mapping[str, Latencies],
    parity: Mapping[str, OnlineParity],
    pending: Mapping[str, int] | None,
) -> Json:
    """Return the document of one look."""
    return {
        "monitor": FORMAT,
        "at": iso(utc_now()),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "health": report.to_json(),
        "models": {
            each.name: _describe_model(
                each,
                trackers[each.name],
                describe_requests(totals[each.name], latencies[each.name], trackers[each.name]),
                health=str(report.models[each.name]),
                parity=parity.get(each.name),
                pending=None if pending is None else pending.get(each.name),
            )
            for each in facts.models
        },
        "devices": facts.devices.to_json(),
        "load": facts.host.to_json(),
    }


def _describe_model(
    facts: ModelFacts,
    tracker: ModelTracker,
    requests: Json,
    *,
    health: str,
    parity: OnlineParity | None,
    pending: int | None,
) -> Json:
    return {
        "health": health,
        "state": None if facts.state is None else facts.state.to_json(),
        "stale_s": facts.stale_s,
        "swaps": dict(tracker.swaps),
        "pending": pending,
        "requests": requests,
        "parity": None if parity is None else describe_parity(parity),
    }


def describe_requests(totals: Totals, latencies: Latencies, tracker: ModelTracker) -> Json:
    """Return counts since the start, rates of the last seconds, and latencies of the last minute in milliseconds."""
    lately, minute = tracker.recent(RATE_S), tracker.recent(60.0)
    parts = {"latency_ms": latencies.request_s, "queue_ms": latencies.queue_s}
    quantiles = {
        name: {word: quantiles_of(values, [part])[part] * 1e3 for word, part in _QUANTILES.items()} if values else None
        for name, values in parts.items()
    }
    return {
        "total": totals.requests,
        "outcomes": {str(outcome): number for outcome, number in totals.outcomes.items()},
        "answered": totals.answered,
        "faults": totals.faults,
        "per_second": None if lately is None else lately.per_second,
        "error_rate": None if minute is None or not minute.requests else minute.faults / minute.requests,
        "rows_per_request": totals.rows / totals.answered if totals.answered else None,
        "batch": totals.rows / totals.executions if totals.executions else None,
        **quantiles,
    }


def describe_parity(parity: OnlineParity) -> Json:
    """Return what online parity found."""
    outputs = [
        {
            "output": each.output,
            "generation": each.served.generation,
            "precision": str(each.served.precision),
            "samples": each.difference.samples,
            **{
                name: _json_number(getattr(each.difference, name))
                for name in ("max_abs", "relative_rmse", "sqnr_db", "cosine", "top1_agreement", "not_finite")
            },
        }
        for each in parity.found()
    ]
    return {
        "compared": parity.compared,
        "dropped": {str(reason): number for reason, number in parity.dropped.items()},
        "problem": parity.problem,
        "outputs": outputs,
    }


def _json_number(value: float | None) -> float | str | None:
    return value if value is None or abs(value) < float("inf") else str(value)
