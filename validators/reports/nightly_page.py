"""The night as one HTML page that needs nothing else: what was found first, then each channel over the nights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from modelreg.registry.words import Json
from modelreg.validators.reports.elements import as_badge, as_figure, as_name, as_table, as_text
from modelreg.validators.reports.nightly_say import headline, say_drift, say_latency, say_way_back
from modelreg.validators.reports.say import cell_of, clean, number
from modelreg.validators.reports.svg import Plot, draw_line

_STYLE = Path(__file__).with_name("page.css")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_BADGES = {
    "damage": "error",
    "gate": "fail",
    "problem": "fail",
    "warning": "inconclusive",
    "note": "skipped",
    "ok": "pass",
}
_FEWEST_POINTS = 3
_PLOT_WIDTH = 480.0  # two side by side, and the newest night in sight


def render_nightly_page(document: Json) -> bytes:
    """Return the report as an HTML page, UTF-8."""
    day = document["started_at"][:10]
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>Nightly {as_text(day)}: {as_text(document['verdict'])}</title>",
        f"<style>\n{_STYLE.read_text(encoding='utf-8')}</style></head><body>",
        f'<header><p class="kicker">Nightly report of {as_name(document["registry"])}</p>',
        f"<h1>{as_text(day)} {_badge(document['verdict'])}</h1><p>{as_text(headline(document))}.</p></header><main>",
        *_findings(document["findings"]),
        *_overview(document["channels"]),
        *(part for index, each in enumerate(document["channels"]) for part in _channel(each, f"c{index}")),
        *_checks(document["checks"]),
        f"</main><footer>modelreg {as_text(document['tool']['version'])}, {as_text(document['started_at'])} on "
        f"{as_name(document['host']['name'])}, {number(document['seconds'])} s</footer></body></html>",
    ]
    return "\n".join(parts).encode() + b"\n"


def _badge(word: str) -> str:
    return as_badge(word).replace('class="badge "', f'class="badge {_BADGES.get(word, "")}"', 1)


def _findings(findings: list[Json]) -> Iterator[str]:
    if not findings:
        yield "<p>Nothing was found.</p>"
        return
    rows = [
        [
            _badge(each["severity"]),
            as_text(each["kind"]),
            as_name(each["subject"]),
            as_name(each["message"]),
            f"{as_name(each['hint'])} <code>{as_text(each['runbook'])}</code>",
        ]
        for each in findings
    ]
    yield as_table("Findings, the worst first", ("Severity", "Kind", "What", "Found", "What to do"), rows)


def _overview(channels: list[Json]) -> Iterator[str]:
    rows = []
    for channel in channels:
        name = _link(channel)
        served = f"version {channel['version']}, generation {channel['generation']}" if channel["version"] else "-"
        way = as_text(say_way_back(channel))
        for each in channel["engines"]:
            drift = as_name(say_drift(each))
            cell = as_name(cell_of(each["engine"]))
            rows.append([name, served, cell, as_badge(each["verdict"]), drift, say_latency(each), way])
        for each in channel["skipped"]:
            cell = as_name(cell_of(each["engine"]))
            rows.append([name, served, cell, "not validated", as_name(each["reason"]), "-", way])
        if not channel["engines"] and not channel["skipped"]:
            rows.append([name, served, "-", "-", "-", "-", way])
    headers = ("Channel", "Serves", "Engine", "Verdict", "Over the nights", "Latency>", "Way back")
    yield as_table("What is active", headers, rows) if rows else "<p>No channel serves anything.</p>"


def _link(channel: Json) -> str:
    """Return the name of a channel, as a link to its full report where there is one beside the page."""
    name = as_name(f"{channel['model']}@{channel['channel']}")
    return f'<a href="./{quote(channel["page"])}">{name}</a>' if channel.get("page") else name


def _channel(channel: Json, key: str) -> Iterator[str]:
    figures = []
    for place, each in enumerate(channel["engines"]):
        for index, drift in enumerate(each["drift"]):
            values = [*drift["history"], drift["tonight"]]
            if len(values) >= _FEWEST_POINTS:
                name = f"{cell_of(each['engine'])}: {clean(drift['metric'])}"
                words = f"{name}, {drift['trend']}" + (f": {drift['reason']}" if drift["reason"] else "")
                figures.append(as_figure(_plot(drift, values, key=f"{key}-{place}-{index}"), words))
    if figures or any(each["failed"] for each in channel["engines"]):
        name = as_name(f"{channel['model']}@{channel['channel']}")
        yield f'<section aria-labelledby="{key}"><h2 id="{key}">{name}</h2>'
        for each in channel["engines"]:
            if each["failed"]:
                items = "".join(f"<li>{as_name(line)}</li>" for line in each["failed"])
                yield f'<ul class="found">{items}</ul>'
        yield f'<div class="pair nights">{"".join(figures)}</div></section>'


def _plot(drift: Json, values: list[float], *, key: str) -> str:
    last = len(values) - 1
    kind = "fail" if drift["trend"] == "drift" else "pass"
    points = [
        (
            0.04 + 0.92 * index / last,
            value,
            kind if index == last else "pass",
            f"{'tonight' if index == last else f'{last - index} nights ago'}: {number(value)}",
        )
        for index, value in enumerate(values)
    ]
    plot = Plot(
        width=_PLOT_WIDTH,
        title=f"{clean(drift['metric'])} over the nights",
        description=f"From {number(values[0])} {last} nights ago to {number(values[-1])} tonight; {drift['trend']}.",
        y_label=clean(drift["metric"]),
        x_label="nights ago",
        x_ticks={points[0][0]: str(last), points[last][0]: "0"},
        limit=drift["median"],
        limit_label=f"median {number(drift['median'])}" if drift["median"] is not None else "",
    )
    return draw_line(plot, points, key=key)


def _checks(checks: list[Json]) -> Iterator[str]:
    rows = [[as_text(each["name"]), as_text(each["outcome"]), as_name(each["detail"])] for each in checks]
    yield as_table("What was looked at in the whole registry", ("Check", "Outcome", "Found"), rows, kind="narrow")
