"""The night as Markdown, for an issue or a chat: what was found and what to do, then the channels."""

from __future__ import annotations

from modelreg.registry.words import Json
from modelreg.validators.reports.markdown import code
from modelreg.validators.reports.nightly_say import headline, say_drift, say_latency, say_way_back
from modelreg.validators.reports.say import clean

_SIGNS = {"damage": "❌", "gate": "❌", "problem": "❌", "warning": "⚠️", "note": "💬", "ok": "✅"}


def render_nightly_markdown(document: Json) -> str:
    """Return the report as GitHub-flavoured Markdown; GitLab reads it too."""
    sign = "✅" if document["exit_code"] == 0 else "❌"
    lines = [f"### {sign} modelreg nightly, {document['started_at'][:10]}: {document['verdict']}", ""]
    lines += [f"{headline(document)}. Host {code(document['host']['name'])}.", ""]
    for finding in document["findings"]:
        lines.append(
            f"- {_SIGNS[finding['severity']]} **{finding['severity']}** {code(finding['kind'])} "
            f"{code(finding['subject'])}: {code(finding['message'])}"
        )
        advice = [code(finding["hint"])] if finding["hint"] else []
        lines.append(f"  {' '.join([*advice, code(finding['runbook'])])}")
    lines += [
        "",
        "| channel | version | engine | verdict | drift | latency | way back |",
        "|---|---:|---|---|---|---:|---|",
    ]
    for channel in document["channels"]:
        lines += _rows(channel)
    lines += ["", f"<sub>modelreg {clean(document['tool']['version'])}, {document['started_at']}</sub>", ""]
    return "\n".join(lines)


def _rows(channel: Json) -> list[str]:
    name, version = code(f"{channel['model']}@{channel['channel']}"), channel["version"] or "-"
    way = say_way_back(channel)
    rows = [
        f"| {name} | {version} | {code(_cell(each['engine']))} | {each['verdict']} | {code(say_drift(each))} "
        f"| {say_latency(each)} | {way} |"
        for each in channel["engines"]
    ]
    rows += [
        f"| {name} | {version} | {code(_cell(each['engine']))} | not validated | {code(each['reason'])} | - | {way} |"
        for each in channel["skipped"]
    ]
    return rows or [f"| {name} | {version} | - | - | - | - | {way} |"]


def _cell(engine: Json) -> str:
    return f"{engine['target']} {engine['precision']}"
