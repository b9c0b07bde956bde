"""How a night is printed: a row for each engine that is active, then what was found and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelreg.cli.render import print_line, shorten_digests
from modelreg.cli.tables import Column, print_table
from modelreg.validators.reports.nightly_say import headline, say_drift, say_latency, say_way_back

if TYPE_CHECKING:
    from modelreg.registry.words import Json


def print_night(document: Json, *, no_color: bool) -> None:
    """Print the channels, the findings, and one line that sums them up."""
    rows = [row for channel in document["channels"] for row in _rows(channel)]
    if rows:
        columns = (
            Column(header="CHANNEL", folds=True),
            Column(header="VERSION", right=True),
            Column(header="ENGINE"),
            Column(header="VERDICT"),
            Column(header="OVER THE NIGHTS", folds=True, least=24, below=True),
            Column(header="LATENCY", right=True),
            Column(header="WAY BACK", folds=True, least=12),
        )
        print_table(columns, rows, no_color=no_color)
        print_line()
    for finding in document["findings"]:
        what = f"{finding['severity']}: {finding['kind']}: {finding['subject']}: {finding['message']}"
        print_line(shorten_digests(what))
        advice = f"{finding['hint']} " if finding["hint"] else ""
        print_line(f"  -> {advice}({finding['runbook']})")
    if document["findings"]:
        print_line()
    print_line(f"{document['verdict']}: {headline(document)}")


def _rows(channel: Json) -> list[tuple[str, ...]]:
    name, version = f"{channel['model']}@{channel['channel']}", str(channel["version"] or "-")
    way = say_way_back(channel)
    rows: list[tuple[str, ...]] = [
        (name, version, _cell(each["engine"]), each["verdict"], say_drift(each), say_latency(each), way)
        for each in channel["engines"]
    ]
    rows += [(name, version, _cell(each["engine"]), "skipped", each["reason"], "-", way) for each in channel["skipped"]]
    return rows or [(name, version, "-", "-", "-", "-", way)]


def _cell(engine: Json) -> str:
    return f"{engine['target']} {engine['precision']}"
