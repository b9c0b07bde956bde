"""A residual network with batch norms, a layer norm and attention, exported by both exporters of PyTorch."""

from __future__ import annotations

import textwrap
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelreg.registry.tensor_sets import TensorSet, open_tensor_set, write_tensor_set
from modelreg.runtime.layer_runner import LayerRunner
from modelreg.validators.activation_capture import WantedActivations
from modelreg.validators.layers.comparison import LayerReport, compare_layers
from modelreg.validators.torch_reference import run_reference
from modelreg.validators.user_code import load_function
from modelreg_testing.golden import signature, spec, version_of

torch: Any = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

pytestmark = pytest.mark.slow

DECLARED = signature([spec("x", ("N", 3, 8, 8))], [spec("y", ("N", 10))])
NET = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))) + x)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.layer = nn.Conv2d(3, 8, 3, padding=1), nn.Sequential(Block(8), Block(8))
        self.norm, self.attention = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.fc = nn.Linear(8, 10)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.weight, 0.5, 1.5)
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)

    def forward(self, x):
        x = self.layer(torch.relu(self.stem(x)))
        x = self.norm(x.flatten(2).transpose(1, 2))
        return self.fc((x + self.attention(x, x, x)[0]).mean(1))
"""
SEEN = ["stem", "layer.0.bn1", "layer.0.relu", "layer.0.bn2", "layer.0.relu#2", "layer.1.bn1", "layer.1.relu"]
SEEN += ["layer.1.bn2", "layer.1.relu#2", "norm", "attention[0]", "fc"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    (folder / "net.py").write_text(textwrap.dedent(NET))
    rows = np.random.default_rng(0).standard_normal((12, 3, 8, 8)).astype(np.float32)
    np.savez(folder / "x.npz", x=rows)
    run_reference(
        reference=f"{folder / 'net.py'}:Net",
        weights=None,
        inputs=str(folder / "x.npz"),
        signature=DECLARED,
        seed=0,
        activations=WantedActivations(),
        destination=folder / "golden.safetensors",
    )
    return folder


def export(made: Path, target: Path, *, dynamo: bool, fault: str = "") -> Path:
    with load_function(made / "net.py", "Net") as factory, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = factory().eval()
        x = torch.zeros(2, 3, 8, 8)
        with torch.no_grad():
            if fault == "mean and variance":
                norm = net.layer[1].bn1
                norm.running_mean, norm.running_var = norm.running_var.clone(), norm.running_mean.abs() + 0.1
            elif fault == "epsilon":
                net.norm.eps = 0.1
            elif fault == "lost norm":
                net.layer[0].bn2 = torch.nn.Identity()
        names = {"input_names": ["x"], "output_names": ["y"]}
        if dynamo:
            shapes = {"x": {0: torch.export.Dim("N")}}
            torch.onnx.export(net, (x,), target, dynamo=True, dynamic_shapes=shapes, verbose=False, **names)
        else:
            torch.onnx.export(net, (x,), target, dynamo=False, dynamic_axes={"x": {0: "N"}, "y": {0: "N"}}, **names)
    return target


def compare(folder: Path, exported: Path, golden: TensorSet) -> LayerReport:
    with LayerRunner(exported, exported, threads=1) as runner:
        return compare_layers(
            version=version_of(DECLARED),
            golden=golden,
            source=runner,
            candidate=runner,
            isolating=runner,
            limit_db=60.0,
            overrides={},
        )


@pytest.mark.parametrize("dynamo", [False, True], ids=["TorchScript", "dynamo"])
def test_modules_are_found_in_what_an_exporter_wrote(
    made: Path, tmp_path: Path, dynamo: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    exported = export(made, tmp_path / "net.onnx", dynamo=dynamo)
    with open_tensor_set(made / "golden.safetensors") as golden:
        found = compare(tmp_path, exported, golden)
    assert [row.row.name for row in found.rows] == SEEN
    assert found.bad == []
    assert min(row.sqnr_db for row in found.rows) > 100
    how = {match.activation: match.how for match in found.matches}
    assert [how[name] for name in ("stem", "layer.0.relu#2", "norm", "fc")] == ["metadata"] * 4
    assert {"layer.0.conv1", "layer.1.conv2", "attention.out_proj"} <= set(found.gone)


@pytest.mark.parametrize(
    ("fault", "layer"), [("mean and variance", "layer.1.bn1"), ("epsilon", "norm"), ("lost norm", "layer.0.relu#2")]
)
def test_a_fault_of_the_export_is_found_in_its_module_though_norms_are_folded(
    made: Path, tmp_path: Path, fault: str, layer: str
) -> None:
    exported = export(made, tmp_path / "net.onnx", dynamo=False, fault=fault)
    with open_tensor_set(made / "golden.safetensors") as golden:
        found = compare(tmp_path, exported, golden)
    assert found.diagnosis.first_bad == layer
    assert found.missing_before == (("layer.0.bn2",) if fault == "lost norm" else ())


def test_layers_that_were_captured_elsewhere_say_nothing_of_themselves_and_are_taken_as_whole(
    made: Path, tmp_path: Path
) -> None:
    exported = export(made, tmp_path / "net.onnx", dynamo=False)
    with open_tensor_set(made / "golden.safetensors") as golden:
        arrays = {name: golden.read(name) for name in golden.tensors}
    write_tensor_set(tmp_path / "bare.safetensors", arrays | {"activation.odd": np.zeros((5, 2), np.float32)}, {})
    with open_tensor_set(tmp_path / "bare.safetensors") as golden:
        found = compare(tmp_path, exported, golden)
    assert found.reference == "pytorch"
    assert [row.row.name for row in found.rows] == SEEN
    assert found.gone["odd"] == "it has no row for each sample"
