"""Every precision of TensorRT-RTX, built for several GPUs without one; test_rtx_networks.py of `cli` has large ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from modelreg.builders.interface import CalibrationOptions
from modelreg.registry.errors import CellRefusedError, PrecisionError
from modelreg.registry.plans import read_plan_header
from modelreg.registry.records import EngineRecord
from modelreg.registry.words import EngineStatus, Precision
from modelreg_testing.checkout import ROOT
from modelreg_testing.networks import encoder, norm_by_parts
from modelreg_testing.onnx_models import conv_net, make_model, value, weight
from modelreg_testing.toolchains import needs_rtx, rtx_toolchain
from modelreg_testing.workshop import Workshop

pytestmark = [pytest.mark.slow, needs_rtx]

FP32, FP16, BF16 = Precision.FP32, Precision.FP16, Precision.BF16
INT8, FP8 = Precision.INT8, Precision.FP8
TARGETS = ("sm_86", "sm_89", "sm_120")


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network; `weighted` counts the nodes that INT8 must reach."""

    make: Callable[[], onnx.ModelProto]
    weighted: int
    inputs: Callable[[np.random.Generator], dict[str, NDArray[np.generic]]]


def images(name: str, *shape: int) -> Callable[[np.random.Generator], dict[str, NDArray[np.generic]]]:
    return lambda rng: {f"input.{name}": rng.normal(size=shape).astype(np.float32)}


def sentences(rng: np.random.Generator) -> dict[str, NDArray[np.generic]]:
    mask = np.ones((16, 12), np.float32)
    mask[8:, 9:] = 0
    return {"input.ids": rng.integers(0, 50, size=(16, 12)), "input.mask": mask}


def lenet() -> onnx.ModelProto:
    return onnx.load(ROOT / "examples" / "lenet" / "lenet-v1.onnx")


NETWORKS = {
    "lenet": Network(make=lenet, weighted=5, inputs=images("image", 16, 1, 28, 28)),
    "encoder": Network(make=encoder, weighted=13, inputs=sentences),
}


def calibration(workshop: Workshop, network: Network) -> CalibrationOptions:
    return workshop.calibration(network.inputs(np.random.default_rng(0)), method="minmax")


def build(workshop: Workshop, name: str, precision: Precision, target: str, **options: object) -> EngineRecord:
    network = NETWORKS[name]
    version = workshop.register(network.make())
    if precision in (INT8, FP8):
        options["calibration"] = calibration(workshop, network)
    request = workshop.request(version, precision, target=target, toolchain=rtx_toolchain(), **options)
    return workshop.fill(request).engine


def require_built(workshop: Workshop, engine: EngineRecord, name: str, target: str) -> None:
    realised, precision = engine.realised, engine.precision
    assert (engine.status, realised["stayed"], realised["unwanted"]) == (EngineStatus.BUILT, [], [])
    assert realised["compute"] == str(precision)
    assert realised["storage"] == str(precision)
    edges = realised["checked"]["edges"]
    assert {each["dtype"] for each in edges["inputs"] + edges["outputs"]} <= {"float32", "int64"}
    if precision in (INT8, FP8):
        assert (realised["converted"], realised["eligible"]) == (NETWORKS[name].weighted,) * 2
    header = read_plan_header(workshop.fetch(engine.files, f"plan-{target}"))
    assert header.targets == (target,)


@pytest.mark.parametrize("precision", [FP32, FP16, INT8])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_usual_networks_are_built_for_every_kind_of_gpu(
    workshop: Workshop, name: str, precision: Precision
) -> None:
    for target in TARGETS:
        require_built(workshop, build(workshop, name, precision, target), name, target)


@pytest.mark.parametrize(
    ("precision", "targets"), [(BF16, ("sm_80", "sm_86", "sm_120")), (FP8, ("sm_89", "sm_120"))], ids=["bf16", "fp8"]
)
@pytest.mark.parametrize("name", NETWORKS)
def test_shorter_floats_are_built_where_a_gpu_has_them(
    workshop: Workshop, name: str, precision: Precision, targets: tuple[str, ...]
) -> None:
    for target in targets:
        require_built(workshop, build(workshop, name, precision, target), name, target)


@pytest.mark.parametrize(("precision", "target"), [(BF16, "sm_75"), (FP8, "sm_86")])
def test_a_gpu_that_lacks_the_type_is_refused_before_anything_is_built(
    workshop: Workshop, precision: Precision, target: str
) -> None:
    with pytest.raises(CellRefusedError, match=f"and is not built for {target}") as caught:
        build(workshop, "lenet", precision, target)
    assert "fp16" in caught.value.hint()


@pytest.mark.parametrize("precision", [BF16, FP8])
def test_excluded_nodes_are_kept_in_fp32(workshop: Workshop, precision: Precision) -> None:
    version = workshop.register(conv_net())
    data: dict[str, NDArray[np.generic]] = {
        "input.image": np.random.default_rng(0).normal(size=(16, 1, 12, 12)).astype(np.float32)
    }
    request = workshop.request(
        version,
        precision,
        target="sm_89",
        toolchain=rtx_toolchain(),
        nodes_to_exclude=("conv2",),
        calibration=workshop.calibration(data),
    )
    realised = workshop.fill(request).engine.realised
    assert "conv2 (Conv)" in realised["kept"]
    assert realised["compute"] == "mixed"


@pytest.mark.parametrize("target", ["sm_86", "cpu"])
def test_what_is_kept_behind_a_blocked_node_is_listed_and_no_reason_to_fail(workshop: Workshop, target: str) -> None:
    version = workshop.register(norm_by_parts())
    toolchain = None if target == "cpu" else rtx_toolchain()
    realised = workshop.fill(workshop.request(version, FP16, target=target, toolchain=toolchain)).engine.realised
    assert realised["stayed"] == []
    assert {label.split()[0] for label in realised["kept"]} == {"mean", "square", "variance", "stable", "root"}
    assert realised["converted"] == 4


def test_a_model_typed_in_fp16_is_built_as_fp16_and_not_as_fp32(workshop: Workshop) -> None:
    model = make_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")],
        inputs=[value("x", ["N", 4], TensorProto.FLOAT16)],
        outputs=[value("y", ["N", 4], TensorProto.FLOAT16)],
        initializers=[weight("w", np.ones((4, 4), np.float16))],
    )
    version = workshop.register(model)
    with pytest.raises(PrecisionError, match="fp32 was asked, but the model itself is typed in fp16"):
        workshop.build(version, Precision.FP32, target="sm_86", toolchain=rtx_toolchain())
    realised = workshop.build(version, Precision.FP16, target="sm_86", toolchain=rtx_toolchain()).engine.realised
    assert (realised["storage"], realised["compute"], realised["converted"]) == ("fp16", "fp16", 1)
    on_the_cpu = workshop.build(version, Precision.FP32).engine.realised
    assert (on_the_cpu["storage"], on_the_cpu["compute"]) == ("fp16", "fp32")
