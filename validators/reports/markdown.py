"""Markdown for a pull request: a short table, what failed, and all gates in a part that folds.

Every name from elsewhere stands in a code span: no markup, no mention of anybody, no link can come of it.
"""

from __future__ import annotations

import re
from collections import Counter

from modelreg.registry.words import Json
from modelreg.validators.reports.say import clean, count, explain, limit_of, number, summarise

_SIGNS = {"pass": "✅", "fail": "❌", "error": "❌", "incomplete": "⚠️", "inconclusive": "⚠️", "skipped": "⏭️"}
_SHOWN = 10


def render_markdown(document: Json) -> str:
    """Return the report as GitHub-flavoured Markdown; GitLab reads it too."""
    title = code(f"{document['model']}:{document['version']}")
    lines = [f"### {_SIGNS.get(document['verdict'], '')} {title}: {document['verdict']}", "", summarise(document), ""]
    lines += ["| engine | precision | verdict | gates | median run |", "|---|---|---|---|---:|"]
    lines += [_engine_row(each) for each in document["validations"]]
    lines += [_skipped_row(each) for each in document["skipped"]]
    bad = [
        (each["report"]["engine"], gate)
        for each in document["validations"]
        for gate in each["report"]["gates"]
        if gate["outcome"] in ("fail", "error")
    ]
    if bad:
        lines += ["", "**What failed**", ""]
        lines += [
            f"- {code(_cell(engine))} {code(_gate(gate))}: {code(explain(gate))}" for engine, gate in bad[:_SHOWN]
        ]
    if len(bad) > _SHOWN:
        lines.append(f"- and {len(bad) - _SHOWN} more below")
    objections = [each for each in document["validations"] if each["objection"]]
    if objections:
        lines += ["", "**What promote would not go by**", ""]
        lines += [f"- {code(_cell(each['report']['engine']))}: {code(each['objection'])}" for each in objections]
    for each in document["validations"]:
        lines += ["", *_details(each["report"])]
    lines += ["", f"<sub>modelreg {clean(document['tool']['version'])}, {document['created_at']}</sub>", ""]
    return "\n".join(lines)


def code(text: object) -> str:
    """Return a code span that holds any text, inside a table too."""
    flat = clean(text).strip() or "-"
    ticks = "`" * (max((len(run) for run in re.findall("`+", flat)), default=0) + 1)
    space = " " if flat.startswith("`") or flat.endswith("`") else ""
    # A table is cut at its bars before code spans are found, and `\\` is one escaped backslash there: only an odd
    # number of them before a bar keeps it in its cell.
    flat = re.sub(r"(\\*)\|", lambda found: found[1] + ("\\|" if len(found[1]) % 2 == 0 else "\\\\|"), flat)
    return f"{ticks}{space}{flat}{space}{ticks}"


def _cell(engine: Json) -> str:
    return f"{engine['target']} {engine['precision']}"


def _gate(gate: Json) -> str:
    return f"{gate['gate']} of {gate['subject']}"


def _engine_row(validation: Json) -> str:
    report = validation["report"]
    engine = report["engine"]
    outcomes = Counter(str(gate["outcome"]) for gate in report["gates"])
    gates = ", ".join(f"{found} {clean(outcome)}" for outcome, found in outcomes.items()) or "none"
    runs = next((each.get("runs") for each in report["passes"] if each.get("runs")), None)
    median = f"{number(runs['p50_ms'])} ms" if runs else "-"
    verdict = f"{_SIGNS.get(report['verdict'], '')} {report['verdict']}"
    if validation["objection"] and report["verdict"] == "pass":
        verdict = f"{_SIGNS['incomplete']} {report['verdict']}, which does not count any more"
    return f"| {engine['id']} {code(engine['target'])} | {code(engine['precision'])} | {verdict} | {gates} | {median} |"


def _skipped_row(skipped: Json) -> str:
    engine = skipped["engine"]
    return (
        f"| {engine['id']} {code(engine['target'])} | {code(engine['precision'])} "
        f"| {_SIGNS['skipped']} not validated | {code(skipped['reason'])} | - |"
    )


def _details(report: Json) -> list[str]:
    engine, gates = report["engine"], report["gates"]
    rows = [
        f"| {code(gate['gate'])} | {code(gate['subject'])} | {number(gate['measured'])} "
        f"| {limit_of(gate)} | {_SIGNS.get(gate['outcome'], '')} {clean(gate['outcome'])} |"
        for gate in gates
    ]
    summary = f"engine {engine['id']}: {count(len(gates), 'gate')}"
    table = ["| gate | output | measured | limit | outcome |", "|---|---|---:|---:|---|", *rows]
    return [f"<details><summary>{summary}</summary>", "", *table, "", "</details>"]
