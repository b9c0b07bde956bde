"""The night as JUnit XML: a suite for each channel and one for the registry, a case for each thing that was tried."""

from __future__ import annotations

import io
from xml.etree import ElementTree as Tree

from modelreg.registry.words import Json
from modelreg.validators.reports.say import cell_of, clean, number

_BAD = ("problem", "gate", "damage")


def render_nightly_junit(document: Json) -> bytes:
    """Return the report as JUnit XML, UTF-8."""
    root = Tree.Element("testsuites", name="modelreg nightly")
    whole = Tree.SubElement(root, "testsuite", name="registry", timestamp=document["started_at"][:19])
    for check in document["checks"]:
        case = _case(whole, "registry", check["name"])
        if check["outcome"] == "not done":
            Tree.SubElement(case, "error", message=clean(check["detail"]))
        else:
            Tree.SubElement(case, "system-out").text = clean(check["detail"])
    for channel in document["channels"]:
        _add_channel(root, channel)
    _add_findings(whole, document["findings"])
    for suite in root:
        cases = suite.findall("testcase")
        suite.set("tests", str(len(cases)))
        for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            suite.set(name, str(sum(case.find(tag) is not None for case in cases)))
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    Tree.indent(root)
    stream = io.BytesIO()
    Tree.ElementTree(root).write(stream, encoding="utf-8", xml_declaration=True)
    return stream.getvalue() + b"\n"


def _add_channel(root: Tree.Element, channel: Json) -> None:
    name = f"{channel['model']}@{channel['channel']}"
    suite = Tree.SubElement(root, "testsuite", name=clean(name))
    for each in channel["engines"]:
        cell = cell_of(each["engine"])
        case = _case(suite, name, f"{cell}: gates")
        if each["verdict"] != "pass":
            tag = "failure" if each["verdict"] == "fail" else "error"  # as in the report of one validation
            found = Tree.SubElement(case, tag, type="gate", message=clean(f"{each['verdict']}"))
            found.text = "\n".join(clean(line) for line in each["failed"])
        for drift in each["drift"]:
            _add_drift(_case(suite, name, f"{cell}: {clean(drift['metric'])} over the nights"), drift)
    for each in channel["skipped"]:
        case = _case(suite, name, f"{cell_of(each['engine'])}: gates")
        Tree.SubElement(case, "skipped", message=clean(each["reason"]))
    drill = channel["rollback"]
    if drill is not None:
        case = _case(suite, name, "rollback drill")
        if drill["state"] == "none":
            Tree.SubElement(case, "skipped", message=clean(drill["error"]))
        elif drill["state"] == "fails":
            Tree.SubElement(case, "failure", type="rollback", message=clean(drill["error"]))


def _add_drift(case: Tree.Element, drift: Json) -> None:
    if drift["trend"] == "drift":
        Tree.SubElement(case, "failure", type="drift", message=clean(drift["reason"]))
    elif drift["trend"] == "inconclusive":
        Tree.SubElement(case, "skipped", message=clean(f"inconclusive: {drift['reason']}"))
    else:
        said = f"{drift['trend']}: {number(drift['tonight'])}, median {number(drift['median'])}"
        Tree.SubElement(case, "system-out").text = said


def _add_findings(suite: Tree.Element, findings: list[Json]) -> None:
    """Add a failure for each bad finding that no case of a channel shows already."""
    shown = ("gate", "accuracy-drift", "latency-drift", "rollback")
    for finding in findings:
        if finding["severity"] in _BAD and finding["kind"] not in shown:
            case = _case(suite, "findings", clean(f"{finding['kind']}: {finding['subject']}"))
            failure = Tree.SubElement(case, "failure", type=finding["kind"], message=clean(finding["message"]))
            failure.text = clean(f"{finding['hint']} {finding['runbook']}".strip())


def _case(suite: Tree.Element, place: str, name: str) -> Tree.Element:
    return Tree.SubElement(suite, "testcase", classname=f"modelreg.nightly.{clean(place)}", name=clean(name))
