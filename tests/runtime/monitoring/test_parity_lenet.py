"""The example's LeNet beside its own source: INT8 and FP16 as built are quiet, an INT8 with a wrong scale is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from modelreg.registry.manifest import Manifest, parse_manifest
from modelreg.registry.words import Precision
from modelreg.runtime.active import ActiveModel
from modelreg.runtime.monitoring.monitor import Monitor
from modelreg.runtime.monitoring.parity import OnlineParity
from modelreg.runtime.monitoring.references import ReleasedReference, choose_fp32
from modelreg.runtime.monitoring.rules import Rule
from modelreg.runtime.monitoring.wrapped import MonitoredModel
from modelreg.runtime.trying import ServingOptions
from modelreg_testing.cli import Shop
from modelreg_testing.monitoring import engine, value_of
from modelreg_testing.released_lenet import LENET, copy_of_released_lenet
from modelreg_testing.serving import activate, eventually
from modelreg_testing.storage import stored_files

pytestmark = pytest.mark.slow
Array = NDArray[Any]


@pytest.fixture
def lenet(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop.at(copy_of_released_lenet(tmp_path_factory, tmp_path / "home"))


def active_manifest(shop: Shop) -> Manifest:
    pointer = shop.storage.read_pointer("lenet", "production")
    assert pointer is not None
    return parse_manifest(shop.storage.read_manifest(pointer.release), where="test")


def publish(shop: Shop, plan: bytes, precision: Precision) -> None:
    """Make a plan active as the engine of the release that is active."""
    manifest = active_manifest(shop)
    (old,) = manifest.engines
    new = old._replace(precision=precision, files=stored_files(shop.storage, {"cpu/model.onnx": plan}))
    made = manifest._replace(engines=(new,))
    activate(shop.storage, shop.storage.publish_release(made.to_bytes(), made.files))


def planted(plan: bytes) -> bytes:
    """Return an INT8 plan whose widest activation scale is a tenth: as if calibrated on much too small inputs."""
    model = onnx.load_from_string(plan)
    scales = {node.input[1] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    values = {each.name: each for each in model.graph.initializer if each.name in scales}
    widest = max(values.values(), key=lambda each: float(numpy_helper.to_array(each).max()))
    narrow = numpy_helper.to_array(widest) * np.float32(0.1)
    widest.CopyFrom(numpy_helper.from_array(narrow.astype(np.float32), widest.name))
    content: bytes = model.SerializeToString()
    return content


def in_half(source: bytes) -> bytes:
    """Return an FP32 model whose weights are those of its FP16 engine: FP16 storage, FP32 compute, as on the CPU."""
    model = onnx.load_from_string(source)
    for each in model.graph.initializer:
        array = numpy_helper.to_array(each)
        if array.dtype == np.float32:
            each.CopyFrom(numpy_helper.from_array(array.astype(np.float16).astype(np.float32), each.name))
    content: bytes = model.SerializeToString()
    return content


def ask(model: MonitoredModel, parity: OnlineParity, images: Array) -> None:
    before = parity.compared
    for start in range(0, 96, 8):
        model.infer({"image": images[start : start + 8]})
    eventually(lambda: parity.compared == before + 12)


def test_a_wrong_scale_is_found_while_serving_and_what_was_built_is_quiet(lenet: Shop, tmp_path: Path) -> None:
    with np.load(LENET / "golden-v2.npz") as golden:
        images = golden["input.image"].astype(np.float32)
    manifest = active_manifest(lenet)
    int8 = lenet.storage.read_blob(manifest.engines[0].plan.digest)
    source = lenet.storage.read_blob(manifest.source_digest)
    parity = OnlineParity(ReleasedReference(lenet.home.store_url), share=1.0, max_per_s=1e9, queue_size=100)
    options = ServingOptions(threads=1, trial=False)
    with (
        ActiveModel(
            "lenet@production", store=lenet.home.store_url, cache=tmp_path / "c", interval_s=0.05, options=options
        ) as served,
        Monitor({"lenet": served}, parity={"lenet": parity}, period_s=60) as monitor,
    ):
        model = monitor.wrap("lenet")
        assert served.served.precision is Precision.INT8
        ask(model, parity, images)
        assert monitor.look().findings == ()
        publish(lenet, in_half(source), Precision.FP16)
        eventually(lambda: served.served.generation == 3)
        ask(model, parity, images)
        assert monitor.look().findings == ()
        publish(lenet, planted(int8), Precision.INT8)
        eventually(lambda: served.served.generation == 4)
        ask(model, parity, images)
        (finding,) = monitor.look().findings
        assert (finding.rule, finding.subject, finding.part) == (Rule.PARITY_DRIFT, "lenet", "logits")
        text, _ = monitor.render()
    assert value_of(text, "modelreg_parity_sqnr_db", generation="2", output="logits") > 25
    assert value_of(text, "modelreg_parity_sqnr_db", generation="3", output="logits") > 50
    assert value_of(text, "modelreg_parity_sqnr_db", generation="4", output="logits") < 12
    assert value_of(text, "modelreg_parity_top1_agreement", generation="3") == 1
    assert value_of(text, "modelreg_health_finding", rule="parity_drift") == 1
    assert sum(parity.dropped.values()) == 0


def test_the_fp32_engine_of_the_release_goes_before_its_source(lenet: Shop) -> None:
    manifest = active_manifest(lenet)
    (int8,) = manifest.engines
    served = engine(1, precision=Precision.INT8, digest=int8.plan.digest, target="sm_90")
    assert choose_fp32(manifest, served) == ()
    fp32 = int8._replace(precision=Precision.FP32)
    both = manifest._replace(engines=(fp32, int8._replace(target="sm_90")))
    assert choose_fp32(both, replace(served, digest="ab" * 32)) == fp32.files
    assert choose_fp32(both, served) == ()  # the very plan that is served shows nothing
