"""How the reports of a night say things. Pure."""

from __future__ import annotations

from modelreg.registry.words import Json
from modelreg.validators.reports.nightly import Severity
from modelreg.validators.reports.say import clean, count, number


def headline(document: Json) -> str:
    """Return one sentence: how many channels, engines and findings."""
    channels = document["channels"]
    validated = sum(len(channel["engines"]) for channel in channels)
    severities = [finding["severity"] for finding in document["findings"]]
    said = [f"{severities.count(str(each))} {each}" for each in reversed(Severity) if severities.count(str(each))]
    found = f"{count(len(severities), 'finding')} ({', '.join(said)})" if said else "nothing found"
    return f"{count(len(channels), 'channel')}, {count(validated, 'engine')} validated: {found}"


def say_way_back(channel: Json) -> str:
    """Return whether a rollback would work, in words."""
    drill = channel["rollback"]
    if drill is None:
        return "not tried"
    if drill["state"] != "works":
        return str(drill["state"])
    return f"version {drill['version']} in {number(drill['seconds'])} s"


def say_drift(engine: Json) -> str:
    """Return what the comparison with earlier nights came to, in words."""
    trends = [each["trend"] for each in engine["drift"]]
    bad = [
        f"{clean(each['metric'])}: {each['trend']}"
        for each in engine["drift"]
        if each["trend"] in ("drift", "outlier", "better")
    ]
    if bad:
        return ", ".join(bad)
    return "steady" if trends and "inconclusive" not in trends else "inconclusive" if trends else "-"


def say_latency(engine: Json) -> str:
    """Return the latency of tonight, or `-`."""
    latency = engine["measured"].get("latency_ms")
    return "-" if latency is None else f"{number(latency['value'])} ms"
