"""Real networks on TensorRT-RTX, through the command line: what every plan became, for what, and how large it is."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import pytest

from modelreg.config.settings import Home
from modelreg.registry.plans import PlanHeader, read_plan_header
from modelreg.registry.storage.open import open_storage
from modelreg_testing.cli import Shop, run_cli, save_npz
from modelreg_testing.example_files import example_module, resnet18_files
from modelreg_testing.networks import light_model
from modelreg_testing.once import made_once
from modelreg_testing.toolchains import needs_rtx, rtx_toolchain

TARGETS = ("sm_89", "sm_120")
PRECISIONS = ("fp32", "fp16", "int8")

pytestmark = [pytest.mark.slow, needs_rtx]

Cell = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Network:
    """
    A model and what must come of it.

    Attributes:
        files: Makes the ONNX and the calibration set.
        weighted: How many nodes INT8 must reach.
        int8_shrinks: Whether the INT8 plan must be smaller than the FP16 one. Where each layer is small, the kernels
            and scales of INT8 weigh more than its weights save; grouped convolutions are even padded.
    """

    files: Callable[[pytest.TempPathFactory], tuple[Path, Path]]
    weighted: int
    int8_shrinks: bool = False


def resnet18(factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = resnet18_files(factory)
    return folder / "resnet18.onnx", folder / "calibration.safetensors"


def light(name: str) -> Callable[[pytest.TempPathFactory], tuple[Path, Path]]:
    def make(factory: pytest.TempPathFactory) -> tuple[Path, Path]:
        folder = factory.mktemp(name)
        model = light_model(name)
        onnx.save(model, folder / f"{name}.onnx")
        (entry,) = model.graph.input
        with example_module("images") as images:
            pixels, _ = images.make_images(4, side=224, seed=7)
            save_npz(folder / "calibration.npz", {f"input.{entry.name}": images.normalise(pixels)})
        return folder / f"{name}.onnx", folder / "calibration.npz"

    return make


NETWORKS = {
    "resnet18": Network(files=resnet18, weighted=21, int8_shrinks=True),
    "squeezenet": Network(files=light("squeezenet"), weighted=26),
    "shufflenet": Network(files=light("shufflenet"), weighted=50),
}


@dataclass(frozen=True, kw_only=True)
class Built:
    """A registry with the engines of one network, as `build` told of them, and the headers of their plans."""

    name: str
    home: Path
    cells: dict[Cell, dict[str, Any]]
    headers: dict[Cell, PlanHeader]

    @property
    def network(self) -> Network:
        """Return what must come of it."""
        return NETWORKS[self.name]

    def size(self, precision: str) -> int:
        """Return the bytes of the plan for the first target."""
        size_bytes: int = self.cells[TARGETS[0], precision]["engine"]["size_bytes"]
        return size_bytes

    def weights(self, precision: str) -> int:
        """Return the bytes of its weights alone."""
        weight_bytes = self.headers[TARGETS[0], precision].weight_bytes
        assert weight_bytes is not None
        return weight_bytes


@pytest.fixture(scope="module", params=NETWORKS)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Register a network and build it for every target in every precision, two at a time; once a run."""
    name: str = request.param
    model, calibration = NETWORKS[name].files(tmp_path_factory)

    def build(folder: Path) -> None:
        shop = Shop(folder)
        assert shop.cli("register", name, model).code == 0
        assert shop.cli("toolchain", "add", "rtx", "--python", sys.executable).code == 0
        told = shop.cli(
            *("build", f"{name}:1", "--target", ",".join(TARGETS), "--precision", ",".join(PRECISIONS), "--jobs", 2),
            *("--calibration", calibration, "--calibration-samples", 4, "--json"),
        )
        assert told.code == 0, told.err
        (folder / "build.json").write_text(told.out)

    folder = made_once(tmp_path_factory, f"rtx-{name}", build)
    home = Home(folder / "home")
    told = json.loads((folder / "build.json").read_text())["cells"]
    cells = {(cell["target"], cell["precision"]): cell for cell in told}
    headers = {}
    for cell, body in cells.items():
        plan = tmp_path_factory.mktemp(name) / "model.plan"
        open_storage(home.store_url).fetch_blob(body["engine"]["plan"], plan)
        headers[cell] = read_plan_header(plan)
    return Built(name=name, home=home.path, cells=cells, headers=headers)


def test_every_cell_is_built_and_its_header_names_its_target_and_version(built: Built) -> None:
    assert set(built.cells) == {(target, precision) for target in TARGETS for precision in PRECISIONS}
    assert {cell["status"] for cell in built.cells.values()} == {"built"}
    version = rtx_toolchain().version
    for (target, _), header in built.headers.items():
        assert (header.version, header.targets) == (version, (target,))
    assert len({cell["engine"]["plan"] for cell in built.cells.values()}) == len(built.cells)


def test_every_plan_became_what_was_asked(built: Built) -> None:
    for (_, precision), cell in built.cells.items():
        realised = cell["engine"]["realised"]
        assert (realised["compute"], realised["storage"]) == (precision, precision)
        assert realised["stayed"] == realised["unwanted"] == realised["flags"] == []
        if precision == "int8":
            assert (realised["converted"], realised["eligible"]) == (built.network.weighted, built.network.weighted)
        if precision == "fp16":
            assert realised["converted"] == realised["eligible"] > built.network.weighted
            assert realised["kept"] == []


def test_half_the_bits_make_about_half_the_plan_and_a_quarter_less_again_where_weights_rule(built: Built) -> None:
    assert built.size("fp16") < 0.65 * built.size("fp32")
    assert built.weights("fp16") < 0.55 * built.weights("fp32")
    assert built.weights("int8") < 0.65 * built.weights("fp32")
    if built.network.int8_shrinks:
        assert built.size("int8") < 0.65 * built.size("fp16")
        assert built.weights("int8") < 0.55 * built.weights("fp16")


def test_one_variant_serves_every_target_and_engines_are_reused(built: Built) -> None:
    variants: dict[str, set[str]] = {}
    for (_, precision), cell in built.cells.items():
        variants.setdefault(precision, set()).add(cell["engine"]["variant"])
    assert [len(found) for found in variants.values()] == [1, 1, 1]
    words = ("build", f"{built.name}:1", "--target", ",".join(TARGETS), "--precision", "fp32,fp16", "--json")
    again = run_cli(*words, home=built.home).document["cells"]
    assert {cell["status"] for cell in again} == {"reused"}
