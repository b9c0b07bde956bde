"""A selection of the fault corpus through the real commands; `make gate-check` runs all of it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from fault_corpus.activations import activations_of
from fault_corpus.campaign import Bench, Measured, Outcome, train_missing
from fault_corpus.cases import healthy_case
from fault_corpus.catalogue import FAULTS, NETWORKS
from fault_corpus.places import FILES
from fault_corpus.planting import matrix_of
from fault_corpus.table import summarise, to_markdown
from modelreg.registry.words import Precision
from modelreg_testing.checkout import ROOT

SELECTED = {
    "wrong-at-batches-above-one-lenet-fp32": "shape_error",
    "nan-in-one-sample-lenet-fp32": "finite",
    "confidence-collapsed-lenet-fp32": "sqnr_db",
    "one-slice-lost-lenet-int8": "slice_sqnr_db",
    "calibration-on-unnormalised-data-lenet-int8": "range_use",
    "calibration-on-too-little-data-lenet-int8": "saturation",
    "silent-fp32-instead-of-fp16-lenet-fp16": "build",
    "fp16-overflow-in-softmax-transformer-fp16": "overflows",
}
"""Faults of every kind of gate, and the gate that must be among those that catch them."""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", SELECTED)
def test_a_planted_fault_is_caught_by_the_gate_for_it(bench: Bench, name: str) -> None:
    fault = next(fault for fault in FAULTS if fault.name == name)
    outcome = bench.try_case(fault.plant(healthy_case(fault.network, fault.precision)), "net")
    assert not outcome.passed
    assert SELECTED[name] in (*outcome.gates, outcome.stage), outcome.said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "precision"), [("lenet", Precision.INT8), ("residual", Precision.FP32), ("transformer", Precision.FP16)]
)
def test_a_healthy_engine_passes(bench: Bench, network: str, precision: Precision) -> None:
    outcome = bench.try_case(healthy_case(network, precision), "net")
    assert outcome.passed, outcome.said
    assert {"cosine", "repeat_error", "batch_error", "shape_error"} <= set(outcome.measured)


def test_the_corpus_has_thirty_kinds_of_fault_on_three_networks_each_with_a_name_of_its_own() -> None:
    assert len({fault.kind for fault in FAULTS}) >= 30
    assert {fault.network for fault in FAULTS} == set(NETWORKS)
    assert max(Counter(fault.name for fault in FAULTS).values()) == 1


def test_every_layer_that_a_fault_names_is_in_its_network() -> None:
    nodes = {network: {n.name for n in healthy_case(network, Precision.FP32).model.graph.node} for network in NETWORKS}
    assert not [fault.name for fault in FAULTS if fault.layer and fault.layer not in nodes[fault.network]]


def test_the_committed_files_are_small() -> None:
    assert sum(path.stat().st_size for path in FILES.iterdir()) < 2_000_000


def test_nothing_is_trained_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.run", None)
    train_missing(1)


def outcome(stage: str = "", gates: tuple[str, ...] = (), value: float = 0.9) -> Outcome:
    return Outcome(stage=stage, gates=gates, said="", seconds=1.0, measured={"cosine": Measured(value, ">=", 0.5)})


def test_the_table_counts_what_was_missed_and_what_cried_wolf() -> None:
    caught = [
        (FAULTS[0], outcome("validate", ("cosine", "finite"))),
        (FAULTS[1], outcome("build")),
        (FAULTS[2], outcome()),
    ]
    healthy = [("lenet-fp32-seed0", outcome(value=0.8)), ("lenet-fp32-seed1", outcome("validate", ("cosine",)))]
    assert summarise(caught, healthy).startswith("caught 2 of 3 (")
    assert summarise(caught, healthy).endswith("false alarms 1 of 2")
    page = to_markdown(caught, healthy)
    assert "| cosine, finite |" in page
    assert "**missed**" in page
    assert "| fp32 | cosine | 0.8 | >= 0.5 |" in page
    assert "| lenet-fp32-seed1 | **false alarm**: cosine |" in page


def test_the_page_of_the_last_campaign_knows_every_fault_and_missed_none() -> None:
    page = (ROOT / "docs" / "gate-check.md").read_text(encoding="utf-8")
    (found,) = re.findall(r"caught (\d+) of (\d+) \(\d+ kinds of fault\), false alarms (\d+) of (\d+)", page)
    assert (found[0], found[1], found[2]) == (str(len(FAULTS)), str(len(FAULTS)), "0")
    assert int(found[3]) >= 90


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
def test_the_activations_of_the_corpus_are_those_of_pytorchs_modules(network: str) -> None:
    """The committed ONNX has the weights: given to the module, a hook on every leaf sees the same."""
    import torch

    from fault_corpus.making import NETWORKS as MADE
    from fault_corpus.making import to_tensor

    case = healthy_case(network, Precision.FP32)
    net = MADE[network][0]().eval()
    load_weights(net, case.model)
    seen: dict[str, torch.Tensor] = {}
    for name, module in net.named_modules():
        if name and not list(module.children()):
            module.register_forward_hook(keep(name, seen))
    with torch.inference_mode():
        net(to_tensor(case.arrays["input"][:32]))
    found = activations_of(network)
    # A pool is called twice, and what does nothing in eval (Dropout, Identity) has no node.
    assert set(found) - set(seen) <= {"pool_1"}
    assert {name for name in set(seen) - set(found) if "drop" not in name and "down" not in name} <= {"pool"}
    for name, array in found.items():
        if name in seen:
            scale = float(np.abs(array).max())
            np.testing.assert_allclose(array, seen[name].numpy(), atol=1e-5 * scale, rtol=1e-4, err_msg=name)


def keep(name: str, seen: dict[str, Any]) -> Any:
    """Return a hook that keeps what a module gives first, and leaves it as it is."""

    def hook(_module: Any, _inputs: Any, output: Any) -> None:
        seen.setdefault(name, output)

    return hook


def load_weights(net: Any, model: Any) -> None:
    """Give a PyTorch module the weights of its export; those of matrices were renamed and transposed."""
    import torch

    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    state = {}
    for name, value in net.state_dict().items():
        if name in arrays:
            state[name] = torch.from_numpy(arrays[name].copy())
        elif name.endswith("weight"):
            node = "/" + "/".join(name.split(".")[:-1]).replace("layers/", "layers.") + "/MatMul"
            state[name] = torch.from_numpy(arrays[matrix_of(model, node)].T.copy())
        else:
            state[name] = value
    net.load_state_dict(state)
