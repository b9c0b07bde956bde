"""One HTML page that needs nothing else: no network, no script; light and dark, readable aloud and on paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from modelreg.registry.words import Json
from modelreg.validators.reports import plots
from modelreg.validators.reports.elements import as_badge, as_digest, as_figure, as_name, as_table, as_text
from modelreg.validators.reports.say import (
    as_finite,
    cell_of,
    clean,
    count,
    explain,
    limit_of,
    name_of,
    number,
    summarise,
)

_STYLE = Path(__file__).with_name("page.css")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def render_page(document: Json) -> bytes:
    """Return the report as an HTML page, UTF-8."""
    name = f"{document['model']}:{document['version']}"
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{as_text(name)}: {as_text(document['verdict'])}</title>",
        f"<style>\n{_STYLE.read_text(encoding='utf-8')}</style></head><body>",
        *_head(document, name),
        "<main>",
        *_overview(document),
        *(part for each in document["validations"] for part in _engine(each)),
        *_history(document),
        "</main>",
        f"<footer>modelreg {as_text(document['tool']['version'])}, {as_text(document['created_at'])} · golden set "
        f"{as_digest(document['golden_set'])} · source {as_digest(document['source']['sha256'])}</footer>",
        "</body></html>",
    ]
    return "\n".join(parts).encode() + b"\n"


def _head(document: Json, name: str) -> Iterator[str]:
    channel = f", channel {as_name(document['channel'])}" if document["channel"] else ""
    yield f'<header><p class="kicker">Validation report{channel}</p>'
    yield f"<h1>{as_name(name)} {as_badge(document['verdict'])}</h1><p>{as_text(summarise(document))}.</p>"
    if len(document["validations"]) > 1:
        links = "".join(
            f'<li><a href="#engine-{each["report"]["engine"]["id"]}">engine {each["report"]["engine"]["id"]}: '
            f"{as_name(cell_of(each['report']['engine']))}</a></li>"
            for each in document["validations"]
        )
        yield f'<nav aria-label="Engines"><ul>{links}</ul></nav>'
    yield "</header>"


def _overview(document: Json) -> Iterator[str]:
    rows = []
    for each in document["validations"]:
        report = each["report"]
        engine, outcomes = report["engine"], Counter(gate["outcome"] for gate in report["gates"])
        runs = next((one["runs"] for one in report["passes"] if one.get("runs")), None)
        rows.append(
            [
                f"engine {engine['id']}",
                as_name(cell_of(engine)),
                as_text(f"{engine['backend']} {engine['backend_version']}"),
                as_badge(report["verdict"]),
                as_text(", ".join(f"{found} {outcome}" for outcome, found in outcomes.items()) or "none"),
                f"{number(runs['p50_ms'])} ms" if runs else "-",
            ]
        )
    for each in document["skipped"]:
        engine = each["engine"]
        backend = as_text(f"{engine['backend']} {engine['backend_version']}")
        rows.append(
            [
                f"engine {engine['id']}",
                as_name(cell_of(engine)),
                backend,
                "not validated",
                as_name(each["reason"]),
                "-",
            ]
        )
    if not rows:
        yield "<p>No engine of this version was validated.</p>"
        return
    headers = ("Engine", "Cell", "Backend", "Verdict", "Gates", "Median run>")
    yield as_table("The engines of this version, with their newest verdicts", headers, rows)


def _engine(validation: Json) -> Iterator[str]:
    report = validation["report"]
    engine = report["engine"]
    key = f"engine-{engine['id']}"
    yield f'<section aria-labelledby="{key}"><h2 id="{key}">Engine {engine["id"]}: {as_name(cell_of(engine))} '
    yield f"{as_badge(report['verdict'])}</h2>"
    bad = [gate for gate in report["gates"] if gate["outcome"] in ("fail", "error")]
    if bad:
        items = "".join(f"<li><strong>{as_name(name_of(gate))}</strong>: {as_name(explain(gate))}</li>" for gate in bad)
        yield f'<ul class="found">{items}</ul>'
    if validation["objection"]:
        said = f"<li>promote would not go by this verdict: {as_name(validation['objection'])}</li>"
        yield f'<ul class="found warn">{said}</ul>'
    yield _gates(report["gates"])
    yield from _layers(report, key)
    yield from _errors(report, key)
    yield from _slices(report["passes"])
    runs = plots.plot_runs(report["passes"], key=f"{key}-runs")
    if runs:
        first = next(each["runs"]["runs"] for each in report["passes"] if each.get("runs"))
        note = (
            f"{count(first, 'run')} over the golden set, the way to the engine's process included: compare on one host."
        )
        yield f"<h3>Time of a run</h3>{as_figure(runs, note)}"
    yield from _latencies(report, key)
    yield _facts(validation)
    yield "</section>"


def _gates(gates: Sequence[Json]) -> str:
    rows = [
        [
            as_name(gate["gate"]),
            as_name(gate["subject"]),
            number(gate["measured"]),
            as_text(limit_of(gate)),
            as_badge(gate["outcome"]),
            "" if gate["outcome"] in ("pass", "fail") and not gate["reason"] else as_name(explain(gate)),
        ]
        for gate in gates
    ]
    headers: tuple[str, ...] = ("Gate", "Output", "Measured>", "Limit>", "Outcome", "Reason")
    if not any(row[-1] for row in rows):
        headers, rows = headers[:-1], [row[:-1] for row in rows]
    return as_table(f"{count(len(rows), 'gate')}: what was measured against which limit", headers, rows)


def _layers(report: Json, key: str) -> Iterator[str]:
    layers = report.get("layers")
    if isinstance(layers, dict) and layers.get("error"):
        yield f"<h3>Error by layer</h3><p>The layers could not be compared: {as_name(layers['error'])}</p>"
    plot = plots.plot_layers(layers, key=f"{key}-layers")
    if not plot:
        return
    rows = [
        [
            as_name(row.get("name", "")),
            as_text(row.get("op", "")),
            number(row.get("cosine")),
            number(row.get("sqnr_db")),
            number(row.get("max_abs", row.get("max_error"))),
            f"<strong>{as_text(plots.state_of(row))}</strong>"
            if plots.state_of(row) == "born"
            else as_text(plots.state_of(row)),
        ]
        for row in plots.layer_rows(layers)
    ]
    headers = ("Layer", "Operator", "Cosine>", "SQNR, dB>", "Max error>", "Error")
    table = as_table("Layers in order of execution", headers, rows)
    note = (
        "Red: the error is born here. Amber: it is carried on. A layer without any error is drawn as high as the plot."
    )
    yield f"<h3>Error by layer</h3>{as_figure(plot, note, kind='full')}"
    yield f"<details><summary>All {len(rows)} layers in numbers</summary>{table}</details>"


def _errors(report: Json, key: str) -> Iterator[str]:
    figures, tables = [], []
    several = len(report["passes"]) > 1
    for index, one in enumerate(report["passes"]):
        for place, (output, measured) in enumerate(one["outputs"].items()):
            name = f"{output} ({one['name']})" if several else output
            histogram = measured.get("histogram") or {}
            plot = plots.plot_histogram(histogram, output=name, key=f"{key}-h{index}-{place}")
            if plot:
                figures.append(as_figure(plot, f"{name}: {_say_values(measured, histogram)}"))
            if measured["worst"]:
                tables.append(_worst(name, measured["worst"]))
    if figures:
        yield f'<h3>Distribution of errors</h3><div class="pair">{"".join(figures)}</div>'
    if tables:
        yield "<h3>Worst samples</h3>" + "".join(tables)


def _say_values(measured: Json, histogram: Json) -> str:
    zeros, odd = histogram.get("zeros", 0), histogram.get("not_finite", 0)
    looked = "a part of " if histogram.get("sampled") else ""
    text = f"{looked}{measured['values']} values, {zeros} without any error"
    return text + (f", {odd} not finite" if odd else "")


def _latencies(report: Json, key: str) -> Iterator[str]:
    plot = plots.plot_latencies(report, key=f"{key}-latency")
    if not plot:
        return
    rows = [
        [
            as_text(name),
            f"{number(each.get('first_ms'))} ms",
            f"{number(each.get('second_ms'))} ms",
            number(each["ratio"]),
            f"{number(each['low'])} to {number(each['high'])}",
            as_text(each.get("standing", "")),
        ]
        for name, each in plots.latencies(report)
    ]
    headers = ("Beside", "This engine>", "The other>", "Ratio>", "95 % interval>", "Standing")
    note = "Medians with bootstrap intervals; an interval that holds 1 decides nothing."
    yield f"<h3>Latency</h3>{as_figure(plot, note)}"
    yield as_table("Engines timed in turns on the same inputs", headers, rows, kind="narrow")


def _slices(passes: Sequence[Json]) -> Iterator[str]:
    """Yield a table of every output that was measured slice by slice, the worst slice first."""
    tables = []
    for one in passes:
        for output, slices in (one.get("slices") or {}).items():
            ordered = sorted(slices, key=lambda each: -(as_finite(each.get("accuracy_drop")) or 0.0))
            rows = [
                [
                    as_name(each.get("slice", "")),
                    number(each.get("samples")),
                    number(each.get("sqnr_db")),
                    number(each.get("top1_agreement")),
                    number(each.get("accuracy_drop")),
                ]
                for each in ordered
            ]
            name = f"{output} ({one['name']})" if len(passes) > 1 else output
            headers = ("Slice", "Samples>", "SQNR, dB>", "Top-1 agreement>", "Accuracy lost>")
            if rows:
                tables.append(as_table(f"{name}: slices of the samples, the worst first", headers, rows, kind="narrow"))
    if tables:
        yield "<h3>Slices</h3>" + "".join(tables)


def _worst(name: str, worst: Sequence[Json]) -> str:
    has_classes = any("got" in row for row in worst)
    headers = ("Row>", "Largest error>", *(("Reference says>", "Engine says>", "Label>") if has_classes else ()))
    rows = [
        [
            str(row["row"]),
            number(row["max_abs"]),
            *([str(row.get(field, "-")) for field in ("expected", "got", "label")] if has_classes else []),
        ]
        for row in worst
    ]
    return as_table(f"{name}: the rows of the golden set with the largest errors", headers, rows, kind="narrow")


def _history(document: Json) -> Iterator[str]:
    cells = dict.fromkeys((each["target"], each["precision"]) for each in document["history"])
    shown: list[str] = []
    for index, (target, precision) in enumerate(cells):
        figures = [
            as_figure(plot, name)
            for name, plot in plots.plot_history(
                document["history"], target=target, precision=precision, key=f"history-{index}"
            )
        ]
        if figures:
            cell = as_name(f"{clean(target)} {clean(precision)}")
            shown.append(f'<h3>{cell}</h3><div class="pair">{"".join(figures)}</div>')
    if shown:
        yield '<section aria-labelledby="history"><h2 id="history">History over versions</h2>'
        yield '<p class="note">The newest verdict of each version; the dashed line is the limit of now.</p>'
        yield from shown
        yield "</section>"


def _facts(validation: Json) -> str:
    report = validation["report"]
    engine, host = report["engine"], report["host"]
    gpus = ", ".join(f"{gpu.get('name')} (driver {gpu.get('driver')})" for gpu in host.get("gpus", []))
    facts = {
        "validated": f"{as_text(validation['created_at'])} by {as_name(validation['created_by'])}",
        "host": as_name(host.get("name", "unknown")) + (f", {as_name(gpus)}" if gpus else ""),
        "built for": as_name(" ".join(part for part in (engine["target"], engine["gpu"]) if part)),
        "golden set": f"{as_digest(report['golden']['digest'])}, {count(report['golden']['samples'], 'sample')}",
        "policy": f"{as_digest(report['policy']['digest'])} from {as_name(' + '.join(report['policy']['origins']))}",
        "plan": as_digest(engine["plan"]),
        "recipe": as_digest(engine["recipe"]),
        "report": as_digest(validation["report_digest"]),
    }
    rows = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts.items())
    return f"<h3>Where and by what</h3><dl>{rows}</dl>"
