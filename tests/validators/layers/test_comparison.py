"""LeNet against its PyTorch model, layer by layer: faults in one layer are found in that layer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from modelreg.config.policy import Policy, load_policy
from modelreg.registry.errors import UsageError
from modelreg.registry.tensor_sets import open_tensor_set
from modelreg.registry.words import Precision
from modelreg.runtime.layer_runner import LayerRunner
from modelreg.validators.activation_capture import WantedActivations
from modelreg.validators.layers.comparison import LayerReport, compare_layers, layer_limit_db
from modelreg.validators.torch_reference import run_reference
from modelreg_testing.checkout import ROOT
from modelreg_testing.golden import LENET, version_of
from modelreg_testing.onnx_models import save

pytest.importorskip("torch")

EXAMPLE = ROOT / "examples" / "lenet"
MODULES = ["c1", "s2", "c3", "s4", "c5", "f6", "output"]


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("golden") / "golden.safetensors"
    run_reference(
        reference=f"{EXAMPLE / 'model.py'}:lenet",
        weights=EXAMPLE / "lenet-v1.safetensors",
        inputs=str(EXAMPLE / "golden-v1.npz"),
        signature=LENET,
        seed=0,
        activations=WantedActivations(budget_bytes=4 << 20),
        destination=path,
    )
    return path


def model() -> onnx.ModelProto:
    return onnx.load(EXAMPLE / "lenet-v1.onnx")


def compare(
    folder: Path,
    golden: Path,
    source: onnx.ModelProto,
    *,
    overrides: dict[str, str] | None = None,
    every_node: bool = False,
    candidate: onnx.ModelProto | None = None,
    most: int = 8,
    **more: Any,
) -> LayerReport:
    one = save(source, folder / "source" / "model.onnx")
    other = save(candidate or source, folder / "candidate" / "model.onnx")
    with LayerRunner(one, other, threads=1) as runner, open_tensor_set(golden) as opened:
        return compare_layers(
            version=version_of(LENET),
            golden=opened,
            source=runner,
            candidate=runner,
            isolating=runner,
            limit_db=60.0,
            overrides=overrides or {},
            every_node=every_node,
            most=most,
            **more,
        )


def anonymous(made: onnx.ModelProto) -> onnx.ModelProto:
    """Return the same without a name that says anything."""
    kept = {value.name for value in (*made.graph.input, *made.graph.output)}
    names = {tensor.name: f"w{index}" for index, tensor in enumerate(made.graph.initializer)}
    for index, node in enumerate(made.graph.node):
        node.name = f"n{index}"
        names |= {name: f"v{index}" for name in node.output if name not in kept}
    for node in made.graph.node:
        for field in (node.input, node.output):
            for position, name in enumerate(field):
                field[position] = names.get(name, name)
    for tensor in made.graph.initializer:
        tensor.name = names[tensor.name]
    del made.graph.value_info[:]
    return made


# -- faults, each in one layer -----------------------------------------------------------------------------
def change(made: onnx.ModelProto, name: str, how: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
    (tensor,) = (tensor for tensor in made.graph.initializer if tensor.name == name)
    array = how(numpy_helper.to_array(tensor).copy())
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), name))


def swap_channels(made: onnx.ModelProto) -> None:
    change(made, "c3.weight", lambda w: w[:, ::-1])


def flip_kernels(made: onnx.ModelProto) -> None:
    change(made, "c1.weight", lambda w: w[:, :, ::-1])


def lose_bias(made: onnx.ModelProto) -> None:
    change(made, "c5.bias", lambda b: b * 0 + 0.5)


def scale_linear(made: onnx.ModelProto) -> None:
    change(made, "f6.weight", lambda w: 1.02 * w)


def shift_padding(made: onnx.ModelProto) -> None:
    (pads,) = (a for node in made.graph.node if node.name == "/c1/Conv" for a in node.attribute if a.name == "pads")
    pads.ints[:] = [4, 4, 0, 0]


def pool_otherwise(made: onnx.ModelProto) -> None:
    (pool,) = (node for node in made.graph.node if node.name == "/s2/AveragePool")
    kept = [a for a in pool.attribute if a.name in ("kernel_shape", "strides")]
    del pool.attribute[:]
    pool.attribute.extend(kept)
    pool.op_type = "MaxPool"


def lose_relu(made: onnx.ModelProto) -> None:
    (relu,) = (node for node in made.graph.node if node.name == "/Relu_1")
    relu.op_type = "Identity"


def swap_classes(made: onnx.ModelProto) -> None:
    change(made, "output.weight", lambda w: w[::-1])


FAULTS = [
    (swap_channels, "c3"),
    (flip_kernels, "c1"),
    (lose_bias, "c5"),
    (scale_linear, "f6"),
    (shift_padding, "c1"),
    (pool_otherwise, "s2"),
    (lose_relu, "s4"),  # what lies between two modules is found in the second
    (swap_classes, "output"),
]


@pytest.mark.parametrize(("fault", "layer"), FAULTS, ids=lambda each: getattr(each, "__name__", each))
@pytest.mark.parametrize("names", ["exporter's names", "no names"])
def test_a_fault_is_found_in_its_layer_and_only_carried_behind_it(
    tmp_path: Path, golden: Path, fault: Callable[[onnx.ModelProto], None], layer: str, names: str
) -> None:
    made = model()
    fault(made)
    found = compare(tmp_path, golden, made if names != "no names" else anonymous(made))
    assert [row.row.name for row in found.rows] == MODULES
    assert found.diagnosis.first_bad == layer
    states = [found.diagnosis.states[name].value for name in MODULES]
    place = MODULES.index(layer)
    assert states == ["ok"] * place + ["born"] + ["carried"] * (len(MODULES) - place - 1)


# -- the healthy model -------------------------------------------------------------------------------------
def test_a_right_export_agrees_in_every_layer(tmp_path: Path, golden: Path) -> None:
    found = compare(tmp_path, golden, model(), most=20)
    assert (found.reference, found.unit, len(found.samples)) == ("pytorch", "sample", 20)
    assert found.diagnosis.first_bad == ""
    assert found.bad == []
    assert all(row.sqnr_db > 100 and row.own_sqnr_db is not None and row.own_sqnr_db > 100 for row in found.rows)
    assert {match.how for match in found.matches} == {"metadata"}
    nameless = compare(tmp_path / "nameless", golden, anonymous(model()))
    assert {match.how for match in nameless.matches} == {"value"}
    body = found.to_json()
    assert [row["state"] for row in body["rows"]] == ["ok"] * 7
    assert body["rows"][2]["inputs"] == ["s2"]


def test_behind_a_fault_without_names_shape_kind_and_order_find_the_tensors(tmp_path: Path, golden: Path) -> None:
    made = model()
    swap_channels(made)
    found = {match.activation: match for match in compare(tmp_path, golden, anonymous(made)).matches}
    assert [found[name].how for name in MODULES] == ["value", "value", *["order"] * 5]
    assert found["c3"].reason == "the values differ"
    assert (found["output"].tensor, found["c3"].tensor) == ("logits", "v3")


def test_a_users_table_overrides_what_is_found(tmp_path: Path, golden: Path) -> None:
    found = compare(tmp_path, golden, model(), overrides={"c3": "", "s2": "/s2/AveragePool_output_0"})
    assert "c3" not in [row.row.name for row in found.rows]
    assert found.gone["c3"] == "taken out by the mapping table"
    assert next(match for match in found.matches if match.activation == "s2").how == "override"
    with pytest.raises(UsageError, match="the golden set has no activation 'conv9' to map"):
        compare(tmp_path, golden, model(), overrides={"conv9": "logits"})
    with pytest.raises(UsageError, match="the ONNX makes no floating tensor 'nowhere'"):
        compare(tmp_path, golden, model(), overrides={"c3": "nowhere"})


def test_every_node_is_compared_with_the_source_where_that_is_asked_for(tmp_path: Path, golden: Path) -> None:
    broken = model()
    lose_bias(broken)
    found = compare(tmp_path, golden, model(), candidate=broken, every_node=True)
    assert found.reference == "onnx"
    assert found.diagnosis.first_bad == "/c5/Conv"
    assert len(found.rows) == 11  # all but Flatten


def test_values_that_become_infinite_are_counted_and_their_layer_is_named(tmp_path: Path, golden: Path) -> None:
    broken = model()
    change(broken, "c5.weight", lambda w: w * np.float32(3e38))
    found = compare(tmp_path, golden, model(), candidate=broken)
    assert found.diagnosis.first_bad == "c5"
    row = next(row for row in found.rows if row.row.name == "c5")
    assert row.odd > 0
    assert row.saturated > 0
    assert row.to_json()["max_abs"] == "inf"


class Hiding:
    """A candidate that does not show one of the tensors that it said it has."""

    def __init__(self, runner: LayerRunner, hidden: str) -> None:
        self.seen, self._runner, self._hidden = runner.seen, runner, hidden

    def run_candidate(self, names: Any, inputs: Any) -> Any:
        found, cut_off = self._runner.run_candidate(names, inputs)
        return {name: each for name, each in found.items() if name != self._hidden}, cut_off


def test_a_layer_that_the_engine_does_not_show_is_said_and_the_others_are_compared(
    tmp_path: Path, golden: Path
) -> None:
    one = save(model(), tmp_path / "model.onnx")
    with LayerRunner(one, one, threads=1) as runner, open_tensor_set(golden) as opened:
        found = compare_layers(
            version=version_of(LENET),
            golden=opened,
            source=runner,
            candidate=Hiding(runner, "/c3/Conv_output_0"),
            isolating=None,
            limit_db=60.0,
            overrides={},
            most=4,
        )
    assert found.gone == {"c3": "the engine does not show it"}
    assert [row.row.name for row in found.rows] == [name for name in MODULES if name != "c3"]
    assert found.own == "none"


def test_a_layer_is_bad_below_what_the_policy_asks_of_the_outputs() -> None:
    policy = load_policy(Precision.FP16)
    assert layer_limit_db(policy, Precision.FP16) == 40.0
    without = Policy(precision=Precision.FP16, rules=())
    assert layer_limit_db(without, Precision.INT8) == 15.0


def test_a_node_that_is_added_to_nothing_is_no_layer(tmp_path: Path, golden: Path) -> None:
    made = model()
    made.graph.node.insert(0, helper.make_node("Identity", ["c1.bias"], ["idle"], name="idle"))
    found = compare(tmp_path, golden, made, every_node=True)
    assert "idle" not in [row.row.name for row in found.rows]


# -- behind the last module, and in some samples or runs alone ----------------------------------------------
def behind(made: onnx.ModelProto, nodes: list[onnx.NodeProto], **weights: Any) -> onnx.ModelProto:
    """Put nodes between `scores`, which the last layer gives now, and the output."""
    last = made.graph.node[-1]
    assert list(last.output) == ["logits"]
    last.output[0] = "scores"
    made.graph.node.extend(nodes)
    made.graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items())
    return made


def halved(made: onnx.ModelProto) -> onnx.ModelProto:
    return behind(made, [helper.make_node("Mul", ["scores", "half"], ["logits"], name="half")], half=np.float32(0.5))


def weaker_in_large_runs(made: onnx.ModelProto) -> onnx.ModelProto:
    """Multiply the scores by 0.9 in runs of more than 60 samples."""
    nodes = [
        helper.make_node("Shape", ["scores"], ["shape"], name="shape"),
        helper.make_node("Gather", ["shape", "first"], ["rows"], name="rows"),
        helper.make_node("Greater", ["rows", "limit"], ["is_large"], name="is_large"),
        helper.make_node("Mul", ["scores", "factor"], ["weaker"], name="weaker"),
        helper.make_node("Where", ["is_large", "weaker", "scores"], ["logits"], name="where"),
    ]
    return behind(made, nodes, first=np.array(0), limit=np.array(60), factor=np.float32(0.9))


def test_what_is_done_to_an_output_behind_the_last_module_is_found_by_the_golden_sets_own_values(
    tmp_path: Path, golden: Path
) -> None:
    found = compare(tmp_path, golden, halved(model()))
    assert found.diagnosis.first_bad == "logits"
    assert {name: str(state.value) for name, state in found.diagnosis.states.items() if state.value != "ok"} == {
        "logits": "born"
    }
    assert found.rows[-1].sqnr_db == pytest.approx(6.02, abs=0.01)


def test_the_worst_samples_are_among_those_that_are_looked_at(tmp_path: Path, golden: Path) -> None:
    assert {16, 8}.isdisjoint(compare(tmp_path / "plain", golden, model(), most=4).samples)
    found = compare(tmp_path / "worst", golden, model(), most=4, worst=(16, 3, 8, 24))
    assert {16, 8} < {*found.samples}  # half of them are the worst; nothing was kept of sample 3
    assert len(found.samples) == 4
    assert 24 not in found.samples


def test_what_is_wrong_in_large_runs_alone_is_found_by_comparing_the_engine_with_itself(
    tmp_path: Path, golden: Path
) -> None:
    unnoticed = compare(tmp_path / "golden", golden, weaker_in_large_runs(model()))
    assert (unnoticed.diagnosis.first_bad, unnoticed.to_json()["batch"]) == ("", None)
    found = compare(tmp_path / "large", golden, weaker_in_large_runs(model()), batch=64)
    assert (found.diagnosis.first_bad, found.reference, found.to_json()["batch"]) == ("logits", "itself", 64)
    assert [row.row.name for row in found.bad] == ["logits"]
    assert found.rows[-1].sqnr_db == pytest.approx(20.0, abs=0.01)
    small = compare(tmp_path / "small", golden, weaker_in_large_runs(model()), batch=3)  # fewer than are looked at
    assert small.diagnosis.first_bad == ""
