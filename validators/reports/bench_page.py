"""A benchmark as one HTML page that needs nothing else: latency and throughput by batch, distributions, comparisons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from modelreg.registry.words import Json
from modelreg.validators.reports.elements import as_figure, as_name, as_table, as_text
from modelreg.validators.reports.say import clean, number
from modelreg.validators.reports.svg import LAST_OF_SERIES, Bar, Plot, Series, draw_bars, draw_intervals, draw_series

_STYLE = Path(__file__).with_name("page.css")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_FIGURES = ("min_ms", "median_ms", "mean_ms", "p90_ms", "p95_ms", "p99_ms", "max_ms")
_WIDE = 1040.0


def render_bench_page(document: Json) -> bytes:
    """Return what `bench --json` prints, with `tool`, as an HTML page, UTF-8."""
    models = ", ".join(dict.fromkeys(row["version"] for row in document["latencies"]))
    rows = [*document["latencies"], *document["pytorch"]]
    settings = document["settings"]
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>Benchmark of {as_text(models)}</title>",
        f"<style>\n{_STYLE.read_text(encoding='utf-8')}</style></head><body>",
        f'<header><p class="kicker">Benchmark on {as_name(settings["host"]["name"])}</p>',
        f"<h1>{as_name(models)}</h1></header><main>",
        *_plots(rows),
        *_matrix(document["matrix"]),
        *_pairs(document["pairs"]),
        "<h2>Every boundary</h2>",
        as_table("Milliseconds a query", _HEADERS, [cells for row in rows for cells in _cells(row)]),
        *_remarks(document["latencies"]),
        "<h2>Distributions</h2>",
        f'<div class="pair">{"".join(_histograms(rows))}</div>',
        *_facts(document),
        f"</main><footer>modelreg {as_text(document['tool']['version'])}, {as_text(document['at'])}</footer>",
        "</body></html>",
    ]
    return "\n".join(parts).encode() + b"\n"


_HEADERS = (
    *("Engine", "Batch>", "Boundary", "Min>", "Median>", "Mean>", "P90>", "P95>", "P99>", "Max>"),
    "Samples a second>",
)


def _name(row: Json) -> str:
    if row.get("framework") == "pytorch":
        return clean(f"PyTorch {row['variant']}")
    return clean(f"{row['engine']} {row['target']} {row['precision']}")


def _cells(row: Json) -> Iterator[list[str]]:
    for boundary, figures in row["boundaries"].items():
        is_shown = boundary == row["boundary"]
        times = [number(figures[figure]) for figure in _FIGURES]
        per_second = f"{row['throughput']:,.0f}" if is_shown else ""
        yield [as_name(_name(row)), str(row["batch"]), as_text(boundary), *times, per_second]


def _plots(rows: Sequence[Json]) -> Iterator[str]:
    """Yield latency and throughput by batch; for one batch size, side by side as bars."""
    boundary = " and ".join(dict.fromkeys(clean(row["boundary"]) for row in rows))
    for field, title, unit, caption in (
        ("median_ms", "Latency", "milliseconds", f"Median of a query, {boundary}"),
        ("throughput", "Throughput", "samples a second", "Samples over the wall time of all queries"),
    ):
        batches = sorted({row["batch"] for row in rows})
        draw = _draw_by_batch if len(batches) > 1 else _draw_side_by_side
        yield f"<h2>{title}</h2>"
        yield as_figure(draw(rows, field=field, title=title, unit=unit), f"{caption}.", kind="full")


def _draw_by_batch(rows: Sequence[Json], *, field: str, title: str, unit: str) -> str:
    batches = sorted({row["batch"] for row in rows})
    places = {batch: 0.04 + (LAST_OF_SERIES - 0.04) * index / (len(batches) - 1) for index, batch in enumerate(batches)}
    series: dict[str, list[tuple[float, float, str]]] = {}
    for row in sorted(rows, key=lambda each: int(each["batch"])):
        hint = f"{_name(row)}, batch {row['batch']}: {number(row[field])}"
        series.setdefault(_name(row), []).append((places[row["batch"]], row[field], hint))
    plot = Plot(
        title=f"{title} by batch size",
        description=f"{title} ({unit}) of {', '.join(series)} at batch {', '.join(map(str, batches))}.",
        y_label=unit,
        x_label="batch size",
        x_ticks={place: str(batch) for batch, place in places.items()},
        width=_WIDE,
    )
    return draw_series(plot, [Series(name=name, points=points) for name, points in series.items()], key=field)


def _draw_side_by_side(rows: Sequence[Json], *, field: str, title: str, unit: str) -> str:
    bars = [Bar(value=row[field], hint=_name(row), label=number(row[field])) for row in rows]
    plot = Plot(
        title=title,
        description=f"{title} ({unit}) of {', '.join(map(_name, rows))} at batch {rows[0]['batch']}.",
        y_label=unit,
        x_label=f"batch {rows[0]['batch']}",
        x_ticks={(index + 0.5) / len(rows): _name(row) for index, row in enumerate(rows)},
        width=_WIDE,
    )
    return draw_bars(plot, bars, key=field)


def _matrix(matrix: Sequence[Json]) -> Iterator[str]:
    batches = sorted({cell["batch"] for row in matrix for cell in row["cells"]})
    rows = []
    for row in matrix:
        cells = {cell["batch"]: cell for cell in row["cells"]}
        rows.append([as_name(_name(row)), *(_say_cell(cells.get(batch)) for batch in batches)])
    headers = ("Engine", *(f"Batch {batch}>" for batch in batches))
    yield "<h2>Precisions by batch sizes</h2>"
    yield as_table("Median milliseconds, samples a second, part of FP32's latency", headers, rows)
    yield '<p class="note">Parts are of medians that were not taken in turns; <code>--vs</code> compares in turns.</p>'


def _say_cell(cell: Json | None) -> str:
    if cell is None:
        return "-"
    return f"{number(cell['median_ms'])} ms · {cell['throughput']:,.0f}/s · {number(cell['to_fp32'])}"


def _pairs(pairs: Sequence[Json]) -> Iterator[str]:
    if not pairs:
        return
    intervals = [(each["low"], each["ratio"], each["high"], _say_pair(each)) for each in pairs]
    plot = Plot(
        title="In turns",
        description="; ".join(f"{_say_pair(each)}: {number(each['ratio'])}, {each['standing']}" for each in pairs)
        + ".",
        y_label="latency as a part of the other's (less is better)",
        x_label="comparisons, as in the table",
        x_ticks={(index + 0.5) / len(pairs): str(index + 1) for index in range(len(pairs))},
        limit=1.0,
        limit_label="1: as fast",
        width=_WIDE,
    )
    rows = [
        [
            str(index + 1),
            as_name(_say_pair(each)),
            number(each["first_ms"]),
            number(each["second_ms"]),
            number(each["ratio"]),
            f"{number(each['low'])} to {number(each['high'])}",
            as_text(each["standing"]),
        ]
        for index, each in enumerate(pairs)
    ]
    headers = ("No.", "Compared", "First, ms>", "Second, ms>", "Ratio>", "95 % interval>", "Standing")
    yield "<h2>In turns</h2>"
    yield as_figure(draw_intervals(plot, intervals, key="pairs"), "Medians with bootstrap intervals.", kind="full")
    yield as_table("Timed in turns on the same inputs", headers, rows)


def _say_pair(pair: Json) -> str:
    return f"{_name(pair['first'])} beside {_name(pair['second'])}, batch {pair['samples']}"


def _histograms(rows: Sequence[Json]) -> Iterator[str]:
    for index, row in enumerate(rows):
        found = row["histogram"]
        total = sum(found["counts"]) + found["beyond"]
        step = (found["high_ms"] - found["low_ms"]) / len(found["counts"])
        bars = [
            Bar(value=100 * count / total, hint=f"from {number(found['low_ms'] + place * step)} ms: {count} runs")
            for place, count in enumerate(found["counts"])
        ]
        name = f"{_name(row)}, batch {row['batch']}"
        plot = Plot(
            title=f"Runs of {name}",
            description=f"Half of {total} runs took up to {number(row['median_ms'])} ms.",
            y_label="% of the runs",
            x_label=f"milliseconds, {clean(row['boundary'])}",
            x_ticks={0.0: number(found["low_ms"]), 1.0: number(found["high_ms"])},
        )
        caption = f"{name}: {total} runs, {found['beyond']} of them beyond the plot"
        yield as_figure(draw_bars(plot, bars, key=f"h{index}"), caption)


def _remarks(rows: Sequence[Json]) -> Iterator[str]:
    items = [f"{_name(row)}, batch {row['batch']}: {remark}" for row in rows for remark in row["remarks"]]
    if items:
        yield f'<ul class="found warn">{"".join(f"<li>{as_name(item)}</li>" for item in items)}</ul>'


def _facts(document: Json) -> Iterator[str]:
    settings = document["settings"]
    host = settings["host"]
    gpus = ", ".join(f"{gpu['name']} (driver {gpu['driver']})" for gpu in host.get("gpus", []))
    facts: dict[str, Any] = {
        "host": as_name(host["name"]) + (f", {as_name(gpus)}" if gpus else ""),
        "warm-up": f"{number(settings['warmup_ms'])} ms",
        "duration": f"{number(settings['duration_s'])} s a batch size, {settings['iterations']} queries at least",
        "streams": str(settings["streams"]),
        "CUDA graph": "on" if settings["cuda_graph"] else "off",
        "transfers": "on" if settings["transfers"] else "off",
        "threads": str(settings["threads"] or "the backend's choice"),
    }
    facts |= {f"engine {each['engine']}": as_name(each["said"]) for each in document["clocks"]}
    rows = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts.items())
    yield f"<h2>How it was measured</h2><dl>{rows}</dl>"
