"""One HTML page that needs nothing else: no network, no script; light and dark, readable aloud and on paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from modelreg.registry.words import Json
from modelreg.validators.reports import plots
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
_SIGNS = {"pass": "✓", "fail": "✗", "error": "✗", "incomplete": "!", "inconclusive": "?", "skipped": "-"}


def render_page(document: Json) -> bytes:
    """Return the report as an HTML page, UTF-8."""
    name = f"{document['model']}:{document['version']}"
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{_text(name)}: {_text(document['verdict'])}</title>",
        f"<style>\n{_STYLE.read_text(encoding='utf-8')}</style></head><body>",
        *_head(document, name),
        "<main>",
        *_overview(document),
        *(part for each in document["validations"] for part in _engine(each)),
        *_history(document),
        "</main>",
        f"<footer>modelreg {_text(document['tool']['version'])}, {_text(document['created_at'])} · golden set "
        f"{_digest(document['golden_set'])} · source {_digest(document['source']['sha256'])}</footer>",
        "</body></html>",
    ]
    return "\n".join(parts).encode() + b"\n"


def _text(value: object) -> str:
    """Return a text that is nothing but text, with its own direction of writing."""
    return escape(clean(value))


def _name(value: object) -> str:
    return f"<bdi>{_text(value)}</bdi>"


def _digest(digest: object) -> str:
    return f'<code title="{_text(digest)}">{_text(digest)[:12]}</code>' if digest else "none"


def _badge(word: object) -> str:
    sign = _SIGNS.get(str(word), "")
    kind = str(word) if str(word) in _SIGNS else ""
    return f'<span class="badge {kind}"><span aria-hidden="true">{sign}</span> {_text(word)}</span>'


def _head(document: Json, name: str) -> Iterator[str]:
    channel = f", channel {_name(document['channel'])}" if document["channel"] else ""
    yield f'<header><p class="kicker">Validation report{channel}</p>'
    yield f"<h1>{_name(name)} {_badge(document['verdict'])}</h1><p>{_text(summarise(document))}.</p>"
    if len(document["validations"]) > 1:
        links = "".join(
            f'<li><a href="#engine-{each["report"]["engine"]["id"]}">engine {each["report"]["engine"]["id"]}: '
            f"{_name(cell_of(each['report']['engine']))}</a></li>"
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
                _name(cell_of(engine)),
                _text(f"{engine['backend']} {engine['backend_version']}"),
                _badge(report["verdict"]),
                _text(", ".join(f"{found} {outcome}" for outcome, found in outcomes.items()) or "none"),
                f"{number(runs['p50_ms'])} ms" if runs else "-",
            ]
        )
    for each in document["skipped"]:
        engine = each["engine"]
        backend = _text(f"{engine['backend']} {engine['backend_version']}")
        rows.append(
            [f"engine {engine['id']}", _name(cell_of(engine)), backend, "not validated", _name(each["reason"]), "-"]
        )
    if not rows:
        yield "<p>No engine of this version was validated.</p>"
        return
    headers = ("Engine", "Cell", "Backend", "Verdict", "Gates", "Median run>")
    yield _table("The engines of this version, with their newest verdicts", headers, rows)


def _engine(validation: Json) -> Iterator[str]:
    report = validation["report"]
    engine = report["engine"]
    key = f"engine-{engine['id']}"
    yield f'<section aria-labelledby="{key}"><h2 id="{key}">Engine {engine["id"]}: {_name(cell_of(engine))} '
    yield f"{_badge(report['verdict'])}</h2>"
    bad = [gate for gate in report["gates"] if gate["outcome"] in ("fail", "error")]
    if bad:
        items = "".join(f"<li><strong>{_name(name_of(gate))}</strong>: {_name(explain(gate))}</li>" for gate in bad)
        yield f'<ul class="found">{items}</ul>'
    if validation["objection"]:
        said = f"<li>promote would not go by this verdict: {_name(validation['objection'])}</li>"
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
        yield f"<h3>Time of a run</h3>{_figure(runs, note)}"
    yield _facts(validation)
    yield "</section>"


def _gates(gates: Sequence[Json]) -> str:
    rows = [
        [
            _name(gate["gate"]),
            _name(gate["subject"]),
            number(gate["measured"]),
            _text(limit_of(gate)),
            _badge(gate["outcome"]),
            "" if gate["outcome"] in ("pass", "fail") and not gate["reason"] else _name(explain(gate)),
        ]
        for gate in gates
    ]
    headers: tuple[str, ...] = ("Gate", "Output", "Measured>", "Limit>", "Outcome", "Reason")
    if not any(row[-1] for row in rows):
        headers, rows = headers[:-1], [row[:-1] for row in rows]
    return _table(f"{count(len(rows), 'gate')}: what was measured against which limit", headers, rows)


def _layers(report: Json, key: str) -> Iterator[str]:
    layers = report.get("layers")
    if isinstance(layers, dict) and layers.get("error"):
        yield f"<h3>Error by layer</h3><p>The layers could not be compared: {_name(layers['error'])}</p>"
    plot = plots.plot_layers(layers, key=f"{key}-layers")
    if not plot:
        return
    rows = [
        [
            _name(row.get("name", "")),
            _text(row.get("op", "")),
            number(row.get("cosine")),
            number(row.get("sqnr_db")),
            number(row.get("max_abs", row.get("max_error"))),
            f"<strong>{_text(plots.state_of(row))}</strong>"
            if plots.state_of(row) == "born"
            else _text(plots.state_of(row)),
        ]
        for row in plots.layer_rows(layers)
    ]
    headers = ("Layer", "Operator", "Cosine>", "SQNR, dB>", "Max error>", "Error")
    table = _table("Layers in order of execution", headers, rows)
    note = (
        "Red: the error is born here. Amber: it is carried on. A layer without any error is drawn as high as the plot."
    )
    yield f"<h3>Error by layer</h3>{_figure(plot, note, kind='full')}"
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
                figures.append(_figure(plot, f"{name}: {_say_values(measured, histogram)}"))
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


def _slices(passes: Sequence[Json]) -> Iterator[str]:
    """Yield a table of every output that was measured slice by slice, the worst slice first."""
    tables = []
    for one in passes:
        for output, slices in (one.get("slices") or {}).items():
            ordered = sorted(slices, key=lambda each: -(as_finite(each.get("accuracy_drop")) or 0.0))
            rows = [
                [
                    _name(each.get("slice", "")),
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
                tables.append(_table(f"{name}: slices of the samples, the worst first", headers, rows, kind="narrow"))
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
    return _table(f"{name}: the rows of the golden set with the largest errors", headers, rows, kind="narrow")


def _history(document: Json) -> Iterator[str]:
    cells = dict.fromkeys((each["target"], each["precision"]) for each in document["history"])
    shown: list[str] = []
    for index, (target, precision) in enumerate(cells):
        figures = [
            _figure(plot, name)
            for name, plot in plots.plot_history(
                document["history"], target=target, precision=precision, key=f"history-{index}"
            )
        ]
        if figures:
            cell = _name(f"{clean(target)} {clean(precision)}")
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
        "validated": f"{_text(validation['created_at'])} by {_name(validation['created_by'])}",
        "host": _name(host.get("name", "unknown")) + (f", {_name(gpus)}" if gpus else ""),
        "built for": _name(" ".join(part for part in (engine["target"], engine["gpu"]) if part)),
        "golden set": f"{_digest(report['golden']['digest'])}, {count(report['golden']['samples'], 'sample')}",
        "policy": f"{_digest(report['policy']['digest'])} from {_name(' + '.join(report['policy']['origins']))}",
        "plan": _digest(engine["plan"]),
        "recipe": _digest(engine["recipe"]),
        "report": _digest(validation["report_digest"]),
    }
    rows = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts.items())
    return f"<h3>Where and by what</h3><dl>{rows}</dl>"


def _figure(plot: str, caption: str, *, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f"<figure{named}>{plot}<figcaption>{_name(caption)}</figcaption></figure>"


def _table(caption: str, headers: Sequence[str], rows: Sequence[Sequence[Any]], *, kind: str = "plain") -> str:
    """Return a table of cells that are HTML already; a header that ends with `>` is of numbers, to the right."""
    kinds = [' class="right"' if header.endswith(">") else "" for header in headers]
    head = "".join(
        f'<th scope="col"{kind}>{_text(header.rstrip(">"))}</th>' for header, kind in zip(headers, kinds, strict=True)
    )
    body = []
    for row in rows:
        first = f'<th scope="row"{kinds[0]}>{row[0]}</th>'
        rest = "".join(f"<td{kind}>{cell}</td>" for cell, kind in zip(row[1:], kinds[1:], strict=True))
        body.append(f"<tr>{first}{rest}</tr>")
    said = _text(caption)
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{said}"><table class="{kind}"><caption>{said}'
        f"</caption><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )
