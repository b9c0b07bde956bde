"""JUnit XML: one suite for each engine, one case for each gate, as CI systems read it."""

from __future__ import annotations

import io
from xml.etree import ElementTree as Tree

from modelreg.registry.words import Json
from modelreg.validators.reports.say import cell_of, clean, explain, limit_of, name_of, number

_BAD = ("fail", "error")


def render_junit(document: Json) -> bytes:
    """Return the report as JUnit XML, UTF-8."""
    root = Tree.Element("testsuites", name=f"modelreg {clean(document['model'])}:{document['version']}")
    for each in document["validations"]:
        _add_suite(root, document, each)
    for each in document["skipped"]:
        suite = _suite(root, document, each["engine"])
        case = _case(suite, document, each["engine"], "validation")
        Tree.SubElement(case, "skipped", message=clean(each["reason"]))
        _count(suite)
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    Tree.indent(root)
    stream = io.BytesIO()
    Tree.ElementTree(root).write(stream, encoding="utf-8", xml_declaration=True)
    return stream.getvalue() + b"\n"


def _add_suite(root: Tree.Element, document: Json, validation: Json) -> None:
    report = validation["report"]
    engine = report["engine"]
    suite = _suite(root, document, engine)
    suite.set("timestamp", str(report["started_at"])[:19])
    suite.set("time", f"{float(report['seconds']):.3f}")
    properties = Tree.SubElement(suite, "properties")
    facts = {
        "engine": engine["id"],
        "backend": f"{engine['backend']} {engine['backend_version']}",
        "plan": engine["plan"],
        "policy": report["policy"]["digest"],
        "golden_set": report["golden"]["digest"],
        "report": validation["report_digest"],
        "host": report["host"].get("name", ""),
        "objection": validation["objection"],
    }
    for name, value in facts.items():
        if value not in ("", None):
            Tree.SubElement(properties, "property", name=name, value=clean(value))
    for gate in report["gates"]:
        _add_gate(_case(suite, document, engine, name_of(gate)), gate)
    if report["verdict"] != "pass" and not any(gate["outcome"] in _BAD for gate in report["gates"]):
        case = _case(suite, document, engine, "verdict")
        Tree.SubElement(case, "failure", type="verdict", message="no gate passed that is evidence")
    if validation["objection"] and report["verdict"] == "pass":
        case = _case(suite, document, engine, "verdict")
        Tree.SubElement(case, "skipped", message=f"it does not count any more: {clean(validation['objection'])}")
    _count(suite)


def _add_gate(case: Tree.Element, gate: Json) -> None:
    outcome = gate["outcome"]
    if outcome in _BAD:
        tag = "failure" if outcome == "fail" else "error"
        found = Tree.SubElement(case, tag, type=clean(gate["gate"]), message=explain(gate))
        lines = [f"measured: {number(gate['measured'])}", f"limit: {limit_of(gate)}"]
        if gate["worst_samples"]:
            lines.append(f"worst samples: {', '.join(str(sample) for sample in gate['worst_samples'])}")
        found.text = "\n".join(lines)
    elif outcome != "pass":
        reason = explain(gate)
        Tree.SubElement(case, "skipped", message=reason if outcome == "skipped" else f"{clean(outcome)}: {reason}")
    else:
        Tree.SubElement(case, "system-out").text = f"measured {number(gate['measured'])}, limit {limit_of(gate)}"


def _suite(root: Tree.Element, document: Json, engine: Json) -> Tree.Element:
    name = f"{clean(document['model'])}:{document['version']} {cell_of(engine)} (engine {engine['id']})"
    return Tree.SubElement(root, "testsuite", name=name)


def _case(suite: Tree.Element, document: Json, engine: Json, name: str) -> Tree.Element:
    place = f"{clean(document['model'])}.{clean(engine['target'])}.{clean(engine['precision'])}"
    return Tree.SubElement(suite, "testcase", classname=place, name=name)


def _count(suite: Tree.Element) -> None:
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(sum(case.find(tag) is not None for case in cases)))
