"""The Prometheus example: every metric and label that a rule names is one that a process serves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from modelreg.runtime.monitoring.hysteresis import HealthState
from modelreg.runtime.monitoring.rules import Rule
from modelreg_testing.checkout import ROOT, needs_checkout
from modelreg_testing.monitoring import every_family

pytestmark = needs_checkout

FOLDER = ROOT / "examples" / "prometheus"
_NAME = re.compile(r"\b((?:nv|modelreg|process|up)(?:_\w+)?)\b(?:\{([^}]*)\})?")
_LABEL = re.compile(r'(\w+)\s*(=~|!=|=)\s*"([^"]*)"')


def alerts() -> Iterator[dict[str, Any]]:
    body = yaml.safe_load((FOLDER / "alerts.yml").read_text(encoding="utf-8"))
    for group in body["groups"]:
        yield from group["rules"]


def test_prometheus_scrapes_and_reads_the_rules_beside_it() -> None:
    body = yaml.safe_load((FOLDER / "prometheus.yml").read_text(encoding="utf-8"))
    assert all((FOLDER / name).is_file() for name in body["rule_files"])
    assert [each["metrics_path"] for each in body["scrape_configs"]] == ["/metrics"]


def test_every_rule_names_metrics_and_labels_that_there_are() -> None:
    served = {name: family for family in every_family() for name in (family.name, f"{family.name}_bucket")}
    named = set()
    for alert in alerts():
        assert alert["annotations"]["summary"]
        assert alert["labels"]["severity"] in ("page", "ticket")
        for name, selector in _NAME.findall(alert["expr"]):
            if name == "up":
                continue
            named.add(name)
            samples = served[name].samples
            for label, operator, value in _LABEL.findall(selector):
                values = {sample.labels.get(label, "") for sample in samples}
                assert values - {""}, (alert["alert"], name, label)
                if operator == "=" and value and label not in ("state",):
                    assert value in values, (alert["alert"], name, label, value)
                if operator == "=~" and label != "rule":
                    assert all(word in values for word in value.split("|")), (alert["alert"], value, values)
                if label == "state":
                    assert value in tuple(map(str, HealthState))
                if label == "rule":
                    assert any(re.fullmatch(value, rule) for rule in Rule)
        for label in re.findall(r"by \(([^)]*)\)", alert["expr"]):
            assert set(re.split(r",\s*", label)) <= {"instance", "model", "le"}
    assert len(named) > 8


def test_rules_have_names_of_their_own() -> None:
    names = [alert["alert"] for alert in alerts()]
    assert len(set(names)) == len(names) > 10
