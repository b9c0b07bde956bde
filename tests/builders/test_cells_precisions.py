"""What FP16 and INT8 become in cells for the CPU, and what cannot become either."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime  # noqa: TID253 - a dependency, and what these tests look at
import pytest
from numpy.typing import NDArray
from onnx import helper

from modelreg.builders.recipe import variant_recipe_digest
from modelreg.registry import engines
from modelreg.registry.errors import (
    BuildError,
    GoldenSetError,
    PrecisionError,
)
from modelreg.registry.records import EngineRecord, VersionRecord
from modelreg.registry.words import Backend, EngineStatus, Precision
from modelreg.runtime.runner import WorkerRunner
from modelreg_testing.control_flow import branching_net, looping_net
from modelreg_testing.onnx_models import (
    conv_images,
    make_model,
    value,
)
from modelreg_testing.workshop import Workshop, overflowing_net


def test_fp16_says_that_it_stores_fp16_and_computes_fp32(workshop: Workshop, version: VersionRecord) -> None:
    engine = workshop.build(version, Precision.FP16).engine
    assert (engine.realised["storage"], engine.realised["compute"]) == ("fp16", "fp32")
    assert engine.realised["converted"] == 7
    assert list(engine.realised["initialiser_bytes"]) == ["float16"]


def test_int8_reaches_every_weighted_node(workshop: Workshop, version: VersionRecord) -> None:
    calibration = workshop.calibration({"input.image": conv_images()}, method="minmax")
    outcome = workshop.build(version, Precision.INT8, calibration=calibration)
    assert (outcome.engine.realised["converted"], outcome.engine.realised["stayed"]) == (3, [])
    assert outcome.warnings == ()
    assert outcome.engine.size_bytes < workshop.build(version, Precision.FP32).engine.size_bytes


def test_a_few_samples_are_enough_but_warned_of(workshop: Workshop, version: VersionRecord) -> None:
    calibration = workshop.calibration({"image": conv_images(8)})
    outcome = workshop.build(version, Precision.INT8, calibration=calibration)
    assert "8 calibration samples are few" in outcome.warnings[0]
    assert "8 calibration samples are few" in workshop.log_of(outcome.engine)


def test_int8_without_a_calibration_set_is_refused_with_the_option(workshop: Workshop, version: VersionRecord) -> None:
    with pytest.raises(BuildError, match="int8 of net:1 needs a calibration set") as caught:
        workshop.build(version, Precision.INT8)
    assert "--calibration" in caught.value.hint()
    assert workshop.engines(version) == []


def test_a_calibration_set_of_another_model_is_refused(workshop: Workshop, version: VersionRecord) -> None:
    with pytest.raises(GoldenSetError, match="no input 'image'"):
        workshop.build(version, Precision.INT8, calibration=workshop.calibration({"input.x": conv_images()}))
    assert workshop.engines(version) == []


def test_a_calibration_set_beside_fp32_is_not_read(workshop: Workshop, version: VersionRecord) -> None:
    calibration = replace(workshop.calibration({"input.x": conv_images()}), path=Path("/nowhere"))
    assert workshop.build(version, Precision.FP32, calibration=calibration).engine.status is EngineStatus.BUILT


def test_excluded_nodes_are_kept_and_listed(workshop: Workshop, version: VersionRecord) -> None:
    calibration = workshop.calibration({"image": conv_images()})
    engine = workshop.build(
        version, Precision.INT8, calibration=calibration, nodes_to_exclude=("conv2",), op_types_to_exclude=("Gemm",)
    ).engine
    assert engine.realised["converted"] == 1
    assert len(engine.realised["kept"]) == 2
    assert engine.recipe["variant"]["excluded_nodes"] == ["conv2"]


def test_excluding_everything_is_a_failed_build(workshop: Workshop, version: VersionRecord) -> None:
    with pytest.raises(
        PrecisionError, match="no node of this model can become INT8: its 3 weighted nodes are excluded"
    ):
        workshop.build(
            version,
            Precision.INT8,
            calibration=workshop.calibration({"image": conv_images()}),
            op_types_to_exclude=("Gemm", "Conv"),
        )
    (failed,) = workshop.engines(version)
    assert failed.status is EngineStatus.FAILED
    assert "no node of this model can become INT8" in failed.error


def test_a_level_that_makes_no_integer_kernels_fails_with_the_nodes(workshop: Workshop, version: VersionRecord) -> None:
    with pytest.raises(PrecisionError, match=r"3 of 3 nodes stayed in FP32: conv1 \(Conv\), conv2 \(Conv\), fc"):
        workshop.build(
            version,
            Precision.INT8,
            calibration=workshop.calibration({"image": conv_images()}),
            optimisation_level="basic",
        )
    (failed,) = workshop.engines(version)
    assert (failed.status, failed.files) == (EngineStatus.FAILED, ())


def test_fp16_types_at_the_edge_are_built_when_asked(workshop: Workshop, version: VersionRecord) -> None:
    engine = workshop.build(version, Precision.FP16, keep_io_types=False).engine
    plan = onnx.load(workshop.fetch(engine.files, "plan"))
    assert plan.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT16


def test_an_overflow_in_fp16_is_built_and_shows_in_the_rounded_run_of_its_variant(workshop: Workshop) -> None:
    version = workshop.register(overflowing_net())
    engine = workshop.build(version, Precision.FP16).engine
    with workshop.database.read() as connection:
        variant = engines.find_variant(
            connection, source_digest=version.source.digest, recipe_digest=variant_recipe_digest(engine.recipe)
        )
    assert variant is not None
    feed = {"x": np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)}
    plan, rounded = workshop.fetch(engine.files, "plan"), workshop.fetch(variant, "variant")
    with WorkerRunner(plan, backend=Backend.ONNXRUNTIME) as runner:
        assert np.isfinite(runner.run(feed)["y"]).all()
    with WorkerRunner(rounded, backend=Backend.ONNXRUNTIME, mode="rounded") as runner:
        assert not np.isfinite(runner.run(feed)["y"]).all()


def test_a_model_without_weights_cannot_become_int8(workshop: Workshop) -> None:
    node = helper.make_node("Relu", ["x"], ["y"], name="relu")
    version = workshop.register(make_model([node], inputs=[value("x", ["N", 4])], outputs=[value("y", ["N", 4])]))
    calibration = workshop.calibration({"x": np.ones((4, 4), np.float32)})
    with pytest.raises(PrecisionError, match="can become INT8: it has no Conv, Gemm, MatMul, only Relu"):
        workshop.build(version, Precision.INT8, calibration=calibration)


def test_a_model_whose_weights_are_all_in_a_loop_cannot_become_int8(workshop: Workshop) -> None:
    version = workshop.register(looping_net())
    calibration = workshop.calibration({"x": np.ones((4, 4), np.float32)})
    with pytest.raises(PrecisionError, match=r"can become INT8: step_matmul \(MatMul\) lies inside a branch or loop"):
        workshop.build(version, Precision.INT8, calibration=calibration)


def test_products_of_two_activations_are_all_that_need_be(workshop: Workshop) -> None:
    node = helper.make_node("MatMul", ["x", "z"], ["y"], name="product")
    inputs = [value("x", ["N", 4, 4]), value("z", ["N", 4, 4])]
    version = workshop.register(make_model([node], inputs=inputs, outputs=[value("y", ["N", 4, 4])]))
    numbers = np.random.default_rng(0).normal(size=(8, 4, 4)).astype(np.float32)
    calibration = workshop.calibration({"x": numbers, "z": numbers})
    assert workshop.build(version, Precision.INT8, calibration=calibration).engine.realised["converted"] == 1


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("excluded", [(), ("choice",)])
@pytest.mark.slow
def test_fp16_reaches_into_branches_that_use_the_graph_around_them(
    workshop: Workshop, flag: bool, excluded: tuple[str, ...]
) -> None:
    version = workshop.register(branching_net())
    engine = workshop.build(version, Precision.FP16, nodes_to_exclude=excluded).engine
    assert engine.realised["stayed"] == []
    assert ("then_matmul (MatMul)" in engine.realised["kept"]) is bool(excluded)
    feed = {"x": np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32), "flag": np.array(flag)}
    check_both_modes(workshop, version, engine, feed)


def test_fp16_reaches_into_loops_that_use_the_graph_around_them(workshop: Workshop) -> None:
    version = workshop.register(looping_net())
    engine = workshop.build(version, Precision.FP16).engine
    assert engine.realised["stayed"] == []
    assert engine.realised["converted"] == 4
    check_both_modes(workshop, version, engine, {"x": np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)})


def check_both_modes(
    workshop: Workshop, version: VersionRecord, engine: EngineRecord, feed: dict[str, NDArray[Any]]
) -> None:
    """Run the plan and the rounded variant, and hold both to the source."""
    with workshop.database.read() as connection:
        variant = engines.find_variant(
            connection, source_digest=version.source.digest, recipe_digest=variant_recipe_digest(engine.recipe)
        )
    assert variant is not None
    source = workshop.fetch(version.source.files, "source")
    want = onnxruntime.InferenceSession(str(source), providers=["CPUExecutionProvider"]).run(None, feed)[0]
    with WorkerRunner(workshop.fetch(engine.files, "plan"), backend=Backend.ONNXRUNTIME) as runner:
        served: NDArray[Any] = runner.run(feed)["y"]
        np.testing.assert_allclose(served, want, rtol=2e-2, atol=2e-2)
    with WorkerRunner(workshop.fetch(variant, "v"), backend=Backend.ONNXRUNTIME, mode="rounded") as runner:
        rounded: NDArray[Any] = runner.run(feed)["y"]
        np.testing.assert_allclose(rounded, want, rtol=2e-2, atol=2e-2)
        np.testing.assert_array_equal(rounded, rounded.astype(np.float16).astype(np.float32))


BUILD_INT8 = """
import sys
from pathlib import Path
import numpy as np
from modelreg.registry.words import Precision
from modelreg_testing.onnx_models import conv_net
from modelreg_testing.workshop import Workshop

workshop = Workshop.open(Path(sys.argv[1]))
images = np.random.default_rng(0).normal(size=(110, 1, 12, 12)).astype(np.float32)
calibration = workshop.calibration({"image": images})
engine = workshop.build(workshop.register(conv_net()), Precision.INT8, calibration=calibration).engine
print(engine.variant_digest, engine.plan_digest)
"""


@pytest.mark.slow
def test_int8_has_the_same_bytes_in_every_process(tmp_path: Path) -> None:
    path = os.pathsep.join(each for each in sys.path if each)
    digests = []
    for seed in ("1", "2"):
        (tmp_path / seed).mkdir()
        done = subprocess.run(
            [sys.executable, "-c", BUILD_INT8, str(tmp_path / seed)],
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.append(done.stdout.split()[-2:])
    assert digests[0] == digests[1]
