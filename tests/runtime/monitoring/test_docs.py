"""docs/monitoring.md: its tables have every metric and rule and no other, and its example serves."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

from modelreg.registry.storage.local import LocalStorage
from modelreg.runtime.monitoring.rules import Rule
from modelreg_testing.checkout import ROOT, needs_checkout
from modelreg_testing.monitoring import every_family, value_of
from modelreg_testing.serving import activate_plan, adder

pytestmark = needs_checkout

PAGE = ROOT / "docs" / "monitoring.md"


def rows() -> dict[str, list[str]]:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0].strip("`"): row[1:] for row in cells}


def test_the_tables_have_every_metric_with_its_type_and_labels_and_every_rule() -> None:
    families = {family.name: family for family in every_family()}
    metrics = {name: row for name, row in rows().items() if name not in tuple(Rule)}
    assert metrics.keys() == families.keys()
    who = ["model", "version", "channel", "generation", "release", "precision", "digest"]
    for name, (kind, labels, meaning) in metrics.items():
        family = families[name]
        assert kind == str(family.kind), name
        assert meaning, name
        said = re.sub(r"who answer(ed|s)", ", ".join(f"`{each}`" for each in who), labels)
        shown = {label for sample in family.samples for label in sample.labels}
        assert shown == set(re.findall(r"`(\w+)`", said)), name
    assert rows().keys() - metrics.keys() == set(map(str, Rule))


def test_the_example_serves(in_memory: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(in_memory / "cache"))
    store = LocalStorage.create(in_memory / "store")
    activate_plan(store, adder(1))
    example = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)[0]
    example = example.replace("/srv/models/store", str(store.root)).replace("9400", "0").replace('"image"', '"x"')
    example = example.replace("monitor.serve_http(0)", "monitor.serve_http(0) as exporter")
    example += "    with urlopen(exporter.url + '/metrics') as page:\n        text = page.read()\n"
    names: dict[str, Any] = {"images": np.ones((2, 3), np.float32), "urlopen": urllib.request.urlopen}
    exec(compile(example, str(PAGE), "exec"), names)
    np.testing.assert_array_equal(names["answer"]["y"], np.full((2, 3), 2.0))
    assert value_of(names["text"], "nv_inference_request_success", model="lenet") == 1
