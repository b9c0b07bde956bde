"""SARIF 2.1.0: one result for each gate that failed, could not run or is inconclusive; passes are no findings.

A finding keeps its fingerprint from version to version, so that a code scanning service follows it: it is made of
model, target, precision, gate and subject.
"""

from __future__ import annotations

import json
from urllib.parse import quote

from modelreg.registry.digests import sha256_hex
from modelreg.registry.words import Json
from modelreg.validators.reports.say import as_finite, cell_of, clean, explain, limit_of, name_of

SCHEMA_URI = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {"fail": "error", "error": "error", "inconclusive": "warning"}
_NO_EVIDENCE = "verdict"
_INFORMATION = "https://pypi.org/project/modelreg/"


def render_sarif(document: Json) -> bytes:
    """Return the report as SARIF 2.1.0, UTF-8."""
    results = [result for each in document["validations"] for result in _results(document, each)]
    rules = sorted({result["ruleId"] for result in results})
    for result in results:
        result["ruleIndex"] = rules.index(result["ruleId"])
    run = {
        "tool": {
            "driver": {
                "name": "modelreg",
                "version": clean(document["tool"]["version"]),
                "informationUri": _INFORMATION,
                "rules": [_rule(rule) for rule in rules],
            }
        },
        "automationDetails": {"id": f"modelreg/{clean(document['model'])}/"},
        "invocations": [_invocation(document)],
        "results": results,
        "columnKind": "unicodeCodePoints",
        "properties": {"model": document["model"], "version": document["version"], "verdict": document["verdict"]},
    }
    body = {"$schema": SCHEMA_URI, "version": "2.1.0", "runs": [run]}
    return json.dumps(body, indent=2, allow_nan=False).encode() + b"\n"


def _rule(rule: str) -> Json:
    return {
        "id": rule,
        "name": "".join(part.capitalize() for part in rule.replace(".", "_").split("_")) or "Gate",
        "shortDescription": {"text": f"The gate {rule}."},
        "help": {"text": f"An engine of a release must pass the gate {rule}: see docs/policies.md of modelreg."},
        "defaultConfiguration": {"level": "error"},
    }


def _results(document: Json, validation: Json) -> list[Json]:
    report = validation["report"]
    engine, gates = report["engine"], report["gates"]
    found = [_result(document, engine, gate) for gate in gates if gate["outcome"] in _LEVELS]
    if report["verdict"] != "pass" and not any(gate["outcome"] in ("fail", "error") for gate in gates):
        nothing: Json = {
            "gate": _NO_EVIDENCE,
            "subject": "engine",
            "outcome": "fail",
            "measured": None,
            "comparison": "<=",
            "limit": None,
            "reason": "no gate passed that is evidence",
            "worst_samples": [],
        }
        found.append(_result(document, engine, nothing))
    return found


def _result(document: Json, engine: Json, gate: Json) -> Json:
    model, cell = clean(document["model"]), cell_of(engine)
    identity = [model, engine["target"], engine["precision"], gate["gate"], gate["subject"]]
    return {
        "ruleId": clean(gate["gate"]) or "gate",
        "level": _LEVELS[gate["outcome"]],
        "kind": "fail" if gate["outcome"] != "inconclusive" else "review",
        "message": {"text": f"{model}:{document['version']} {cell}: {name_of(gate)}: {explain(gate)}"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": quote(str(document["source"]["path"]))},
                    "region": {"startLine": 1},
                },
                "logicalLocations": [
                    {
                        "name": clean(gate["subject"]),
                        "fullyQualifiedName": f"{model}/{cell.replace(' ', '/')}/{clean(gate['subject'])}",
                        "kind": "member",
                    }
                ],
            }
        ],
        "partialFingerprints": {"modelregGate/v1": sha256_hex(json.dumps(identity).encode())},
        "properties": {
            "engine": engine["id"],
            "plan": engine["plan"],
            "measured": as_finite(gate["measured"]),
            "limit": limit_of(gate),
            "outcome": gate["outcome"],
            "worstSamples": gate["worst_samples"],
        },
    }


def _invocation(document: Json) -> Json:
    """Return how the run went; what was skipped is told here, since it is no finding."""
    notes = [
        (f"{cell_of(each['report']['engine'])}: {name_of(gate)} was skipped", explain(gate))
        for each in document["validations"]
        for gate in each["report"]["gates"]
        if gate["outcome"] == "skipped"
    ]
    missing = [(f"{cell_of(each['engine'])} was skipped", clean(each["reason"])) for each in document["skipped"]]
    stale = [
        (f"the verdict on {cell_of(each['report']['engine'])} does not count any more", clean(each["objection"]))
        for each in document["validations"]
        if each["objection"] and each["report"]["verdict"] == "pass"
    ]
    return {
        "executionSuccessful": not missing and not stale,
        "endTimeUtc": document["created_at"],
        "toolExecutionNotifications": [
            {"level": level, "message": {"text": f"{what}: {reason}"}}
            for level, some in (("note", notes), ("warning", missing), ("warning", stale))
            for what, reason in some
        ],
    }
