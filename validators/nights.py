"""What is compared from night to night, and with which earlier nights. Pure.

Only like is compared with like: the same plan over the same golden set and, for its latency, on the same host. A new
release starts new series: what it changes is a matter for its gates, and for `validate --against`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from modelreg.registry.words import Json
from modelreg.validators.drift import Rule, judge_series

LATENCY = "latency_ms"
_CAP_DB = 200.0
"""An engine that gives the very bits of the reference has an infinite SQNR, and infinity cannot be compared."""


def measure_report(report: Json) -> dict[str, Json]:
    """
    Return by name what a validation's report says of an engine's accuracy: `value`, and the rule it is judged by.

    Only finite numbers: NaN and infinity fail their gates, and need no comparison.
    """
    found = {name: (value, rule) for name, value, rule in _accuracies(report)}
    return {name: _entry(value, rule) for name, (value, rule) in found.items() if math.isfinite(value)}


def measure_latency(milliseconds: float) -> dict[str, Json]:
    """Return the same of a latency: noisy, so three nights must agree on a change of a tenth."""
    return {LATENCY: _entry(milliseconds, Rule(higher_is_better=False, relative=0.1, confirmed_by=3))}


def _entry(value: float, rule: Rule) -> Json:
    return {
        "value": value,
        "higher_is_better": rule.higher_is_better,
        "absolute": rule.absolute,
        "relative": rule.relative,
        "confirmed_by": rule.confirmed_by,
    }


def _accuracies(report: Json) -> Iterator[tuple[str, float, Rule]]:
    judged = [one for one in report["passes"] if one["outputs"]]
    for one in judged:
        label = f" ({one['name']})" if len(judged) > 1 else ""
        for output, measured in one["outputs"].items():
            if (value := _number(measured.get("sqnr_db"))) is not None:
                yield f"sqnr_db of {output}{label}", min(value, _CAP_DB), Rule(higher_is_better=True, absolute=0.5)
        if (task := one.get("task")) is not None:
            rule = Rule(higher_is_better=True, absolute=2.0 / task["samples"])
            for name in ("accuracy", "top1_agreement"):
                if (value := _number(task.get(name))) is not None:
                    yield f"{name}{label}", value, rule
        for score in one.get("scores") or ():
            if (value := _number(score.get("engine"))) is not None:
                rule = Rule(higher_is_better=bool(score["higher_is_better"]), relative=0.005)
                yield f"{score['metric']}{label}", value, rule


def _number(value: object) -> float | None:
    if not isinstance(value, (int, float, str)):
        return None
    found = float(value)
    return None if math.isnan(found) else found


def is_comparable(night: Json) -> bool:
    """Return whether a document of an earlier night holds what a comparison reads of it, of the right kinds."""
    try:
        entries = [each for channel in night["channels"] if channel["model"] for each in channel["engines"]]
        values = [entry["value"] for each in entries if _is_same(each, each) for entry in each["measured"].values()]
        return bool(night["host"]["name"]) and all(isinstance(value, (int, float)) for value in values)
    except (KeyError, TypeError, AttributeError):
        return False


def compare_with_nights(engine: Json, nights: Sequence[Json], *, model: str, host: str) -> list[Json]:
    """
    Return what came of each measurement of an engine.

    Args:
        engine: Tonight's entry, with `plan`, `golden_set`, `target` and `measured`.
        nights: Documents of earlier nights, the oldest first.
        model: Whose engine it is.
        host: Where it was measured.
    """
    found = []
    for name, entry in engine["measured"].items():
        history = _history(engine, nights, name, model=model, host=host if name == LATENCY else None)
        rule = Rule(**{key: value for key, value in entry.items() if key != "value"})
        drift = judge_series(history, entry["value"], rule)
        found.append({"metric": name, **drift.to_json(), "history": history})
    return found


def _history(engine: Json, nights: Sequence[Json], name: str, *, model: str, host: str | None) -> list[float]:
    """Return a measurement's values, one of each night that has it."""
    values = []
    for night in nights:
        if host is not None and night["host"]["name"] != host:
            continue
        same = (
            each
            for channel in night["channels"]
            if channel["model"] == model
            for each in channel["engines"]
            if _is_same(each, engine) and name in each["measured"]
        )
        if (one := next(same, None)) is not None:
            values.append(float(one["measured"][name]["value"]))
    return values


def _is_same(one: Mapping[str, object], two: Mapping[str, object]) -> bool:
    return all(one[key] == two[key] for key in ("plan", "golden_set", "target"))
