from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelreg.config.policy import Scope, TaskMetric, load_policy
from modelreg.registry.errors import ConfigError
from modelreg.registry.tensor_sets import TensorSet
from modelreg.registry.words import GateOutcome, Precision
from modelreg.validators.task_metrics import MetricError, TaskMeasure, TaskScore, load_metric, own_gates, own_metrics
from modelreg_testing.golden import golden_file

PLUGIN = """
import numpy as np

def distance(outputs, labels):
    return np.abs(outputs["y"][:, 0] - labels["label"])

distance.higher_is_better = False

def one_number(outputs, labels):
    return 0.5

class Count:
    higher_is_better = True
    def __init__(self): self.n = 0
    def update(self, outputs, labels): self.n += len(outputs["y"])
    def result(self): return float(self.n)

class Half:
    def update(self, outputs, labels): pass

def breaks(outputs, labels):
    raise ValueError("no such class")

number = 3
"""


@pytest.fixture(autouse=True)
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_metrics_of_test.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.fixture
def golden(tmp_path: Path) -> Iterator[TensorSet]:
    y = np.arange(20, dtype=np.float32).reshape(10, 2)
    arrays: dict[str, Any] = {
        "input.x": y,
        "output.y": y,
        "label": np.arange(10),
        "label.mask": np.zeros((10, 3), np.int8),
    }
    with golden_file(tmp_path / "set", arrays) as opened:
        yield opened


def score(golden: TensorSet, name: str, engine: Any = lambda y: y) -> TaskScore:
    measure = TaskMeasure(name, golden, 10)
    for start in range(0, 10, 4):
        stop = min(10, start + 4)
        measure.update({"y": engine(golden.read("output.y", start, stop))}, start, stop)
    return measure.result()


def test_a_function_is_averaged_over_the_samples_of_both_sides(golden: TensorSet) -> None:
    found = score(golden, "own_metrics_of_test:distance", lambda y: y + 1)
    assert (found.reference, found.engine, found.higher_is_better) == (4.5, 5.5, False)
    assert found.drop == 1.0
    assert found.to_json()["drop"] == 1.0


def test_a_class_adds_up_what_is_no_average(golden: TensorSet) -> None:
    found = score(golden, "own_metrics_of_test:Count")
    assert (found.reference, found.engine, found.drop) == (10.0, 10.0, 0.0)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("own_metrics_of_test:one_number", "it must give one score per sample, and gives [] for 4 samples"),
        ("own_metrics_of_test:breaks", "ValueError: no such class"),
        ("own_metrics_of_test:Half", "makes a Half without update, result or higher_is_better"),
        ("own_metrics_of_test:number", "is a int, no function and no class"),
        ("own_metrics_of_test:nothing", "cannot be loaded"),
        ("no_such_module_of_test:nothing", "cannot be loaded"),
        ("accuracy", "there is no metric 'accuracy'; there are ctc_edit_distance, edit_distance"),
        ("top_5", "no output is (samples, classes)"),
        ("mean_average_precision", "the model has no output 'boxes'"),
    ],
)
def test_what_cannot_be_computed_says_why_and_is_an_error_never_a_pass(
    golden: TensorSet, tmp_path: Path, name: str, reason: str
) -> None:
    engine = (lambda y: y.reshape(-1, 2, 1)) if name == "top_5" else (lambda y: y)
    if name == "top_5":
        arrays: dict[str, Any] = {
            "input.x": np.zeros((10, 2, 1), np.float32),
            "output.y": np.zeros((10, 2, 1), np.float32),
        }
        with golden_file(tmp_path / "other", {**arrays, "label": np.arange(10)}) as other:
            found = score(other, name, engine)
    else:
        found = score(golden, name, engine)
    assert reason in found.error
    assert "error" in found.to_json()
    path = tmp_path / "policy.toml"
    path.write_text(f'[[rules]]\nmetric = "{name}"\napplies_to = "task"\nlimit = 0.5\n')
    policy = load_policy(Precision.FP16, override=path)
    (gate,) = own_gates({name: found}, policy=policy, subject="y")
    assert (gate.outcome, gate.gate) == (GateOutcome.ERROR, name)


def test_without_labels_it_is_skipped(tmp_path: Path) -> None:
    y = np.zeros((10, 2), np.float32)
    path = tmp_path / "policy.toml"
    path.write_text('[[rules]]\nmetric = "top_1"\napplies_to = "task"\nlimit = 0.5\n')
    with golden_file(tmp_path / "none", {"input.x": y, "output.y": y}) as golden:
        found = score(golden, "top_1")
    (gate,) = own_gates({"top_1": found}, policy=load_policy(Precision.FP16, override=path), subject="y")
    assert (gate.outcome, gate.reason) == (GateOutcome.SKIPPED, "the golden set has no labels")


def test_the_gate_is_how_much_worse_the_engine_is(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('[[rules]]\nmetric = "own_metrics_of_test:distance"\nlimit = 0.5\n')
    policy = load_policy(Precision.FP16, override=path)
    (name,) = own_metrics(policy)
    assert isinstance(next(r.metric for r in policy.rules_for(Scope.TASK) if r.metric == name), TaskMetric)
    better = TaskScore(metric=name, reference=2.0, engine=1.0, higher_is_better=False)
    (gate,) = own_gates({name: better}, policy=policy, subject="y")
    assert (gate.outcome, gate.measured) == (GateOutcome.PASS, -1.0)
    worse = TaskScore(metric=name, reference=2.0, engine=2.75, higher_is_better=False)
    (gate,) = own_gates({name: worse}, policy=policy, subject="y")
    assert gate.outcome is GateOutcome.FAIL
    assert gate.reason == f"{name} rose from 2 to 2.75, the limit is <= 0.5"
    nan = TaskScore(metric=name, reference=2.0, engine=float("nan"), higher_is_better=False)
    (gate,) = own_gates({name: nan}, policy=policy, subject="y")
    assert gate.outcome is GateOutcome.FAIL


def test_an_entry_point_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch, golden: TensorSet) -> None:
    points = [
        importlib.metadata.EntryPoint("spread", "own_metrics_of_test:distance", "modelreg.metrics"),
        importlib.metadata.EntryPoint("broken", "own_metrics_of_test:nothing", "modelreg.metrics"),
    ]

    def installed(**selected: str) -> list[importlib.metadata.EntryPoint]:
        assert selected == {"group": "modelreg.metrics"}
        return points

    monkeypatch.setattr(importlib.metadata, "entry_points", installed)
    assert score(golden, "spread").reference == 4.5
    with pytest.raises(MetricError, match="the plug-in 'broken' cannot be loaded"):
        load_metric("broken")


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ('metric = "cosin"\nlimit = 1', "metric 'cosin' is unknown"),
        ('metric = "a b"\napplies_to = "task"\nlimit = 1', "neither module:function nor the name of a plug-in"),
        ('metric = "m:f"\napplies_to = "floating"\nlimit = 1', "m:f cannot apply to floating"),
        ('metric = "iou"\napplies_to = "slice"\nlimit = 1', "metric 'iou' is unknown"),
        ("metric = 3\nlimit = 1", "metric 3 is unknown"),
    ],
)
def test_a_metric_that_is_misspelt_is_refused_in_the_policy(tmp_path: Path, rule: str, reason: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(f"[[rules]]\n{rule}\n")
    with pytest.raises(ConfigError) as refused:
        load_policy(Precision.FP16, override=path)
    assert reason in str(refused.value)


def test_the_outputs_of_a_run_need_whole_rows_per_sample(tmp_path: Path) -> None:
    y = np.zeros((10, 2), np.float32)
    arrays: dict[str, Any] = {"input.x": y, "output.y": np.zeros((7, 2), np.float32), "label": np.arange(10)}
    with golden_file(tmp_path / "odd", arrays) as golden:
        measure = TaskMeasure("own_metrics_of_test:Count", golden, 10)
        measure.update({"y": np.zeros((7, 2), np.float32)}, 0, 10)
        assert measure.result().error == "output 'y' has 7 rows for 10 samples"
