"""How reports write numbers, names and counts. Pure; names come from files, and files from anywhere."""

from __future__ import annotations

import math
from typing import Any

from modelreg.registry.words import Json


def as_float(value: Any) -> float | None:
    """Return a number of a report, where `"inf"` and `"nan"` are texts; None for none."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def as_finite(value: Any) -> float | None:
    """Return a number of a report if it is finite, or None."""
    found = as_float(value)
    return found if found is not None and math.isfinite(found) else None


def number(value: Any) -> str:
    """Return a measurement for people: four significant digits, more just below 1, `-` for none."""
    found = as_float(value)
    if found is None:
        return "-"
    if not math.isfinite(found):
        return "NaN" if math.isnan(found) else "∞" if found > 0 else "-∞"
    if abs(found) < 1e15 and found == int(found):
        return str(int(found))
    if 0.99 <= abs(found) < 1:  # a cosine of 0.99996 is not 1
        return f"{found:.6f}".rstrip("0").rstrip(".")
    return f"{found:.4g}"


def count(number_of: int, noun: str) -> str:
    """Return `1 engine`, `2 engines`."""
    return f"{number_of} {noun}" + ("" if number_of == 1 else "s")


def clean(text: object) -> str:
    """Return a text without control characters, on one line: XML cannot hold them, and no page should."""
    return "".join(c if c.isprintable() else " " if c.isspace() else ascii(c)[1:-1] for c in str(text))


def limit_of(gate: Json) -> str:
    """Return comparison and limit of a gate, `>= 0.99`, or `-`."""
    return "-" if gate["limit"] is None else f"{gate['comparison']} {number(gate['limit'])}"


def cell_of(engine: Json) -> str:
    """Return target and precision of an engine: `cpu int8`."""
    return f"{clean(engine['target'])} {clean(engine['precision'])}"


def name_of(gate: Json) -> str:
    """Return a gate and what it measured: `cosine of logits`."""
    return f"{clean(gate['gate'])} of {clean(gate['subject'])}"


def explain(gate: Json) -> str:
    """Return one sentence on a gate that did not pass."""
    if gate["reason"]:
        return clean(gate["reason"]).removeprefix(f"{name_of(gate)} ").removeprefix("is ")
    if gate["measured"] is None:
        return clean(gate["outcome"])
    return f"measured {number(gate['measured'])}, the limit is {limit_of(gate)}"


def summarise(document: Json) -> str:
    """Return how many engines pass, how many were skipped, and what came of the gates, in one sentence."""
    validations = document["validations"]
    passed = sum(each["report"]["verdict"] == "pass" for each in validations)
    parts = [f"{passed} of {count(len(validations), 'engine')} {'passes' if passed == 1 else 'pass'}"]
    if document["skipped"]:
        parts.append(f"{count(len(document['skipped']), 'engine')} not validated")
    outcomes = [gate["outcome"] for each in validations for gate in each["report"]["gates"]]
    said = ((outcome, sum(each == outcome for each in outcomes)) for outcome in dict.fromkeys(outcomes))
    gates = ", ".join(f"{found} {clean(outcome)}" for outcome, found in said)
    return "; ".join(parts) + (f" ({count(len(outcomes), 'gate')}: {gates})" if outcomes else "")
