"""Plans that show what is between their layers: built by the real TensorRT-RTX, marked by a pretended network."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from modelreg.builders.tapped import OUTPUTS_A_BUILD, build_tapped, tap_parts
from modelreg.builders.trt_network import mark_taps
from modelreg.registry.errors import BuildError
from modelreg.registry.words import Backend, Precision
from modelreg_testing.onnx_models import conv_net, save
from modelreg_testing.records import make_engine
from modelreg_testing.toolchains import needs_rtx, rtx_toolchain
from modelreg_testing.workshop import Workshop


@dataclass
class Tensor:
    name: str


@dataclass
class Layer:
    outputs: list[Tensor | None]

    @property
    def num_outputs(self) -> int:
        return len(self.outputs)

    def get_output(self, index: int) -> Tensor | None:
        return self.outputs[index]


@dataclass
class Network:
    """As much of a network as marking asks for; the recorded API says that every release has it."""

    layers: list[Layer]
    ends: list[Tensor]
    debug: list[str] = field(default_factory=list)
    unwilling: tuple[str, ...] = ()

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def get_layer(self, index: int) -> Layer:
        return self.layers[index]

    @property
    def num_outputs(self) -> int:
        return len(self.ends)

    def get_output(self, index: int) -> Tensor:
        return self.ends[index]

    def mark_debug(self, tensor: Tensor) -> bool:
        if tensor.name in self.unwilling:
            return False
        self.debug.append(tensor.name)
        return True

    def mark_output(self, tensor: Tensor) -> None:
        self.ends.append(tensor)


def network(**more: Any) -> Network:
    a, b, y = Tensor("a"), Tensor("b"), Tensor("y")
    return Network(layers=[Layer([a]), Layer([b, None]), Layer([y])], ends=[y], **more)


def test_debug_tensors_are_marked_and_outputs_need_not_be() -> None:
    made = network()
    assert mark_taps(made, ["b", "y", "gone", "a"], "debug") == ["a", "b"]
    assert (made.debug, [each.name for each in made.ends]) == (["a", "b"], ["y"])


def test_a_tensor_that_tensorrt_does_not_mark_is_left_out() -> None:
    assert mark_taps(network(unwilling=("a",)), ["a", "b"], "debug") == ["b"]


def test_releases_without_debug_tensors_get_outputs() -> None:
    made = network()
    assert mark_taps(made, ["a"], "output") == ["a"]
    assert [each.name for each in made.ends] == ["y", "a"]
    assert made.debug == []


def test_nothing_is_marked_where_nothing_is_asked_for() -> None:
    assert mark_taps(network(), [], "debug") == []


@pytest.mark.parametrize(
    ("backend", "version", "how"), [("tensorrt", "8.6.0.12", "output"), ("tensorrt", "10.0.1", "debug")]
)
def test_outputs_are_marked_a_few_in_each_build_and_debug_tensors_all_at_once(
    backend: str, version: str, how: str
) -> None:
    engine = make_engine(1, Precision.FP16)
    engine = replace(engine, toolchain=replace(engine.toolchain, backend=Backend(backend), version=version))
    names = [f"t{index}" for index in range(OUTPUTS_A_BUILD + 1)]
    found, parts = tap_parts(engine, names)
    assert found == how
    assert [len(part) for part in parts] == ([OUTPUTS_A_BUILD, 1] if how == "output" else [len(names)])
    assert [name for part in parts for name in part] == names


@needs_rtx
def test_a_plan_of_the_same_recipe_is_built_with_debug_tensors(workshop: Workshop, tmp_path: Path) -> None:
    version = workshop.register(conv_net())
    request = workshop.request(version, Precision.FP32, target="sm_86", toolchain=rtx_toolchain())
    engine = workshop.fill(request).engine
    source = save(conv_net(), tmp_path / "again" / "model.onnx")
    names = [output for node in onnx.load(source).graph.node for output in node.output]
    (tmp_path / "tapped").mkdir()
    built = build_tapped(
        engine,
        version,
        model=source,
        source=source,
        plugins=(),
        names=names,
        tapped_as="debug",
        folder=tmp_path / "tapped",
        timeout_s=300,
        on_progress=lambda _part, _doing: None,
    )
    assert set(built.taps) == set(names) - {"logits"}
    assert built.files[0].read_bytes() != workshop.fetch(engine.files, "served").read_bytes()


def test_ranges_that_tensorrt_found_itself_are_not_found_again(workshop: Workshop, tmp_path: Path) -> None:
    engine = make_engine(1, Precision.INT8)
    engine = replace(engine, recipe={**engine.recipe, "implicit_calibration": {}})
    with pytest.raises(BuildError, match="an engine of an implicit calibration cannot be looked into"):
        build_tapped(
            engine,
            workshop.register(conv_net()),
            model=tmp_path,
            source=tmp_path,
            plugins=(),
            names=["a"],
            tapped_as="debug",
            folder=tmp_path,
            timeout_s=1,
            on_progress=lambda _part, _doing: None,
        )
