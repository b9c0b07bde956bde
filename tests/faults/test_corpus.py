"""A selection of the fault corpus through the real commands; `make gate-check` runs all of it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from fault_corpus.activations import activations_of
from fault_corpus.campaign import Bench, Measured, Outcome, train_missing
from fault_corpus.cases import healthy_case, model_of
from fault_corpus.catalogue import FAULTS, NETWORKS
from fault_corpus.layer_check import NamedLayer, check_layer
from fault_corpus.places import FILES
from fault_corpus.planting import matrix_of
from fault_corpus.table import LEAST_RIGHT, share_right, summarise, to_markdown
from modelreg.registry.words import Precision
from modelreg_testing.checkout import ROOT

SELECTED = {
    "wrong-at-batches-above-one-lenet-fp32": "shape_error",
    "one-slice-lost-lenet-int8": "slice_sqnr_db",
    "silent-fp32-instead-of-fp16-lenet-fp16": "build",
}
"""Faults that other tests' networks have not, and the step or gate that must be among those that catch them."""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", SELECTED)
def test_a_planted_fault_is_caught_by_the_gate_for_it(bench: Bench, name: str) -> None:
    fault = next(fault for fault in FAULTS if fault.name == name)
    outcome = bench.try_fault(fault, "net")
    assert not outcome.passed
    assert SELECTED[name] in (*outcome.gates, outcome.stage), outcome.said
    assert outcome.layer is None if not fault.layer else outcome.layer is not None and outcome.layer.is_right


@pytest.mark.slow
def test_a_healthy_engine_passes_and_no_layer_of_it_is_named(bench: Bench) -> None:
    outcome = bench.try_healthy(healthy_case("lenet", Precision.INT8), "net")
    assert outcome.passed, outcome.said
    assert outcome.layer == NamedLayer(name="", is_right=True)
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
    assert share_right([each for _, each in caught]) == 1.0
    page = to_markdown(caught, healthy)
    assert "| cosine, finite |" in page
    assert "**missed**" in page
    assert "| fp32 | cosine | 0.8 | >= 0.5 |" in page
    assert "| lenet-fp32-seed1 | **false alarm**: cosine |" in page


def test_the_page_of_the_last_campaign_knows_every_fault_and_missed_none() -> None:
    page = (ROOT / "docs" / "gate-check.md").read_text(encoding="utf-8")
    said = r"caught (\d+) of (\d+) \(\d+ kinds of fault\), false alarms (\d+) of (\d+), "
    (found,) = re.findall(said + r"first bad layer right in (\d+) of (\d+)", page)
    caught, faults, alarms, healthy, right, asked = map(int, found)
    assert (caught, faults, alarms) == (len(FAULTS), len(FAULTS), 0)
    assert healthy >= 30
    assert asked >= 70
    assert right >= LEAST_RIGHT * asked


def test_a_layer_that_is_not_named_right_is_a_miss_with_its_reason() -> None:
    fault = FAULTS[0]
    wrong = NamedLayer(name="s2", is_right=False, reason="the fault is in `c1`")
    caught = [
        (fault, replace(outcome("validate", ("cosine",)), layer=wrong)),
        (FAULTS[1], replace(outcome("validate", ("cosine",)), layer=NamedLayer(name="one.conv1", is_right=True))),
    ]
    assert summarise(caught, []).endswith("first bad layer right in 1 of 2 (50.0%)")
    assert share_right([each for _, each in caught]) == 0.5
    assert f"| {fault.name} | `/c1/Conv` | `s2` | the fault is in `c1` |" in to_markdown(caught, [])


def row(name: str, node: str, tensor: str, *, through_relu: bool = False) -> dict[str, Any]:
    return {"name": name, "node": node, "tensor": tensor, "through_relu": through_relu}


LENET_ROWS = [
    row("c1", "/c1/Conv", "/Relu_output_0", through_relu=True),
    row("c3", "/c3/Conv", "/c3/Conv_output_0"),
    row("f5", "/f5/Gemm", "/f5/Gemm_output_0"),
    row("logits", "/output/Gemm", "logits"),
]


@pytest.mark.parametrize(
    ("planted", "named", "is_right"),
    [
        ("/c3/Conv", "c3", True),
        ("/s2/AveragePool", "c3", True),  # no row of its own: the next row shows it first
        ("/s2/AveragePool", "c1", False),
        ("/Relu", "c1", True),  # drawn into the convolution
        ("/Relu_1", "c3", False),
        ("/Relu_1", "f5", True),
        ("/f6/Gemm", "logits", True),
        ("/f6/Gemm", "f5", False),
        ("/f6/Gemm", "", False),
    ],
)
def test_a_layer_is_right_where_the_planted_node_is_in_its_part_of_the_graph(
    planted: str, named: str, is_right: bool
) -> None:
    found = check_layer(model_of("lenet", 0), planted, {"first_bad": named, "rows": LENET_ROWS})
    assert found.is_right is is_right
    assert bool(found.reason) is not is_right


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
