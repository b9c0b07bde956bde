"""What a report plots: errors by layer, their distribution, times of runs, and metrics over versions."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from modelreg.registry.words import Json
from modelreg.validators.reports.say import as_finite, as_float, clean, limit_of, name_of, number
from modelreg.validators.reports.svg import Bar, Plot, draw_bars, draw_intervals, draw_line

_LEAST_DB = -20.0
_WIDE = 1040.0
_LABELLED_LAYERS = 3
_MOST_TICKS = 8
_HALF = 480.0
"""The width of plots that stand side by side: all of one must be in sight."""


def layer_rows(layers: Any) -> list[Json]:
    """Return the layers of a report in order of execution: `rows` of an object, or a list."""
    rows = layers.get("rows", []) if isinstance(layers, dict) else layers
    return [row for row in rows or [] if isinstance(row, dict)] if isinstance(rows, list) else []


def plot_layers(layers: Any, *, key: str) -> str:
    """Return the signal-to-noise ratio of every layer, or an empty string where none was measured."""
    rows = [row for row in layer_rows(layers) if as_float(row.get("sqnr_db")) is not None]
    if not rows:
        return ""
    born = [row for row in rows if state_of(row) == "born"]
    limit = as_finite(layers.get("limit_db")) if isinstance(layers, dict) else None
    finite = [found for row in rows if (found := as_finite(row["sqnr_db"])) is not None]
    exact = 1.1 * max([20.0, limit or 0.0, *finite])  # where a layer without any error is drawn
    bars, labelled = [], 0
    for row in rows:
        state, found = state_of(row), as_float(row["sqnr_db"])
        shown = min(exact, max(_LEAST_DB, found)) if found is not None and not math.isnan(found) else _LEAST_DB
        label = ""
        if state == "born" and labelled < _LABELLED_LAYERS:
            label, labelled = str(row.get("name", "")), labelled + 1
        hint = f"{row.get('name', '')}: {number(row['sqnr_db'])} dB, {state}"
        bars.append(Bar(value=shown, hint=hint, kind=state if state in ("born", "carried") else "plain", label=label))
    names = ", ".join(clean(row.get("name", "")) for row in born[:_LABELLED_LAYERS])
    said = f"The error is born in {names}." if born else "No layer is below the limit."
    plot = Plot(
        title="Error by layer",
        description=f"Signal to noise of {len(rows)} layers in order of execution. {said}",
        y_label="signal to noise, dB (more is better)",
        x_label="layers in order of execution",
        x_ticks=_ends(len(rows)),
        limit=limit,
        limit_label="" if limit is None else f"limit {number(limit)} dB",
        width=_WIDE,
    )
    return draw_bars(plot, bars, key=key)


def state_of(row: Mapping[str, Any]) -> str:
    """Return whether a layer's error is `born` there, `carried` or `ok`."""
    if "state" in row:
        return str(row["state"])
    return "born" if row.get("born") else "ok"


def _ends(count: int) -> dict[float, str]:
    width = 1 / max(1, count)
    return {width / 2: "1"} | ({1 - width / 2: str(count)} if count > 1 else {})


def plot_histogram(histogram: Json, *, output: str, key: str) -> str:
    """Return how an output's errors are distributed, or an empty string where there is no error at all."""
    counts = histogram.get("counts") or []
    total = sum(counts) + histogram.get("zeros", 0) + histogram.get("not_finite", 0)
    if not counts or not total:
        return ""
    first = histogram["first_exponent"]
    bars = [
        Bar(
            value=100.0 * found / total,
            hint=f"{number(_power(first + index))} to {number(_power(first + index + 1))}: "
            f"{number(round(100.0 * found / total, 4))} %",
        )
        for index, found in enumerate(counts)
    ]
    largest = max(range(len(counts)), key=lambda index: counts[index])
    plot = Plot(
        title=f"Distribution of the errors of {clean(output)}",
        description=(
            f"Most errors lie between {number(_power(first + largest))} and {number(_power(first + largest + 1))}; "
            f"{number(round(100.0 * histogram.get('zeros', 0) / total, 4))} % of the values have none."
        ),
        y_label="% of the values",
        x_label="absolute error",
        x_ticks=_decades(first, len(counts)),
        width=_HALF,
    )
    return draw_bars(plot, bars, key=key)


def _power(exponent: int) -> float:
    """Return a power of two, infinity for one that no double holds."""
    return math.ldexp(1.0, exponent) if exponent < sys.float_info.max_exp else math.inf


def _decades(first: int, count: int) -> dict[float, str]:
    """Return ticks at powers of ten on an axis of powers of two, not too many; at both ends where there is none."""
    low, high = first * math.log10(2), (first + count) * math.log10(2)
    powers = range(math.ceil(low), math.floor(high) + 1)
    if len(powers) < 2:
        return {0.0: number(_power(first)), 1.0: number(_power(first + count))}
    every = math.ceil(len(powers) / _MOST_TICKS)
    return {(power - low) / (high - low): f"1e{power}" for power in powers if power % every == 0}


def plot_runs(passes: Sequence[Json], *, key: str) -> str:
    """Return the times of an engine's runs by pass, or an empty string where none was taken."""
    bars: list[Bar] = []
    ticks: dict[float, str] = {}
    timed = [each for each in passes if each.get("runs")]
    names = (("min_ms", "min"), ("p50_ms", "p50"), ("p90_ms", "p90"), ("p99_ms", "p99"), ("max_ms", "max"))
    for each in timed:
        for field, name in names:
            found = as_finite(each["runs"].get(field)) or 0.0
            label = f"{name} ({each['name']})" if len(timed) > 1 else name
            ticks[(len(bars) + 0.5) / (len(names) * len(timed))] = label if len(timed) <= 2 else name
            bars.append(Bar(value=found, hint=f"{label}: {number(found)} ms", label=number(found)))
    if not bars:
        return ""
    first = timed[0]["runs"]
    plot = Plot(
        title="Time of a run",
        description=f"Half of the runs took up to {number(first['p50_ms'])} ms, 99 % {number(first['p99_ms'])} ms.",
        y_label="milliseconds",
        x_label="percentiles of the runs over the golden set",
        x_ticks=ticks,
    )
    return draw_bars(plot, bars, key=key)


def latencies(report: Json) -> list[tuple[str, Json]]:
    """Return what an engine was timed against in turns, with the result: its FP16 sibling, what a channel serves."""
    found = []
    for field, name in (("value", "its FP16 sibling"), ("active", "what is active")):
        body = report.get(field)
        latency = body.get("latency") if isinstance(body, dict) else None
        if isinstance(latency, dict) and all(
            as_finite(latency.get(end)) is not None for end in ("low", "ratio", "high")
        ):
            found.append((name, latency))
    return found


def plot_latencies(report: Json, *, key: str) -> str:
    """Return the paired latencies of an engine with their intervals, or an empty string where none was measured."""
    found = latencies(report)
    if not found:
        return ""
    intervals = [
        (float(each["low"]), float(each["ratio"]), float(each["high"]), f"beside {name}: {number(each['ratio'])}")
        for name, each in found
    ]
    said = "; ".join(
        f"beside {name} {number(each['ratio'])} ({number(each['low'])} to {number(each['high'])})"
        for name, each in found
    )
    plot = Plot(
        title="Latency beside other engines",
        description=f"Latency as a part of the other engine's, below 1 is faster: {said}.",
        y_label="latency as a part of the other's (less is better)",
        x_label="timed in turns on the same inputs",
        x_ticks={(index + 0.5) / len(found): name for index, (name, _) in enumerate(found)},
        limit=1.0,
        limit_label="1: as fast",
    )
    return draw_intervals(plot, intervals, key=key)


def plot_history(history: Sequence[Json], *, target: str, precision: str, key: str) -> Iterator[tuple[str, str]]:
    """
    Yield name and plot of each gate that was measured in two versions or more.

    Args:
        history: Verdicts, the oldest version first.
        target: Of which engines.
        precision: Of which engines.
        key: Unique on the page.
    """
    of_this = [each for each in history if (each["target"], each["precision"]) == (target, precision)]
    series: dict[str, dict[int, Json]] = {}
    for each in of_this:  # of several engines of a version the one that was validated last counts
        for gate in each["gates"]:
            if as_finite(gate["measured"]) is not None and gate["limit"] is not None:
                series.setdefault(name_of(gate), {})[each["version"]] = gate
    for index, (name, gates) in enumerate(series.items()):
        values = {as_finite(gate["measured"]) for gate in gates.values()}
        if len(gates) > 1 and values != {0.0}:
            yield name, _plot_series(name, gates, key=f"{key}-{index}")


def _plot_series(name: str, gates: Mapping[int, Json], *, key: str) -> str:
    versions = sorted(gates)
    first, last = versions[0], versions[-1]
    newest = gates[last]
    points = []
    for version in versions:
        gate = gates[version]
        value = as_finite(gate["measured"]) or 0.0
        position = 0.04 + 0.92 * (version - first) / (last - first)
        points.append((position, value, str(gate["outcome"]), f"version {version}: {number(value)}, {gate['outcome']}"))
    every = math.ceil(len(versions) / _MOST_TICKS)
    plot = Plot(
        title=f"{name} over versions",
        description=(
            f"From {number(gates[first]['measured'])} in version {first} to {number(newest['measured'])} "
            f"in version {last}; the limit is {limit_of(newest)}."
        ),
        y_label=name,
        x_label="version",
        x_ticks={points[i][0]: str(version) for i, version in enumerate(versions) if i % every == 0},
        limit=as_finite(newest["limit"]),
        limit_label=f"limit {limit_of(newest)}",
        width=_HALF,
    )
    return draw_line(plot, points, key=key)
