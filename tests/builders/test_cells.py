from __future__ import annotations

import importlib.metadata
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime  # noqa: TID253 - a dependency, and what these tests look at
import pytest
from numpy.typing import NDArray
from onnx import helper

from modelreg.builders import backends
from modelreg.builders.backends import embedded_toolchain
from modelreg.builders.cells import CellRequest, build_cell, plan_cells
from modelreg.builders.recipe import variant_recipe_digest
from modelreg.builders.reusing import renew_damaged
from modelreg.registry import engines
from modelreg.registry.clock import utc_now
from modelreg.registry.digests import json_digest
from modelreg.registry.errors import (
    BuildError,
    GoldenSetError,
    IntegrityError,
    MissingDependencyError,
    PrecisionError,
    StorageError,
    UsageError,
    WorkerError,
)
from modelreg.registry.garbage.database_facts import forget_blobs
from modelreg.registry.records import EngineRecord, VersionRecord
from modelreg.registry.storage.marks import Mark, MarkedKind, MarkState, parse_mark
from modelreg.registry.words import Backend, EngineStatus, Precision
from modelreg.runtime.runner import WorkerRunner
from modelreg_testing.control_flow import branching_net, looping_net
from modelreg_testing.onnx_models import conv_net, make_model, mlp, save_with_external_data, sequence_output, value
from modelreg_testing.workshop import Workshop, overflowing_net


def images(count: int = 110) -> NDArray[np.float32]:
    return np.random.default_rng(0).normal(size=(count, 1, 12, 12)).astype(np.float32)


@pytest.fixture
def version(workshop: Workshop) -> VersionRecord:
    return workshop.register(conv_net())


def test_fp32_is_built_recorded_and_stored(workshop: Workshop, version: VersionRecord) -> None:
    outcome = workshop.build(version, Precision.FP32)
    engine = outcome.engine
    assert (engine.status, outcome.reused, engine.error) == (EngineStatus.BUILT, False, "")
    assert engine.target.name == "cpu"
    assert (engine.toolchain.backend, engine.toolchain.version) == (Backend.ONNXRUNTIME, onnxruntime.__version__)
    assert engine.variant_digest == version.source.digest
    assert engine.recipe_digest == json_digest(engine.recipe)
    assert engine.build_s > 0
    plan = workshop.fetch(engine.files, "plan")
    image = images(3)
    session = onnxruntime.InferenceSession(str(plan), providers=["CPUExecutionProvider"])
    source = workshop.fetch(version.source.files, "source")
    want = onnxruntime.InferenceSession(str(source), providers=["CPUExecutionProvider"]).run(None, {"image": image})
    np.testing.assert_allclose(session.run(None, {"image": image})[0], want[0], rtol=1e-4, atol=1e-5)
    assert workshop.engines(version) == [engine]


def test_the_log_says_what_was_asked_and_how_it_was_translated(workshop: Workshop, version: VersionRecord) -> None:
    engine = workshop.build(version, Precision.FP16).engine
    log = workshop.log_of(engine)
    assert f"cell: net:1 fp16 for cpu with onnxruntime {onnxruntime.__version__}" in log
    assert "computes in FP32 between casts" in log
    assert engine.realised["translation"] == log.splitlines()[1:4]


def test_progress_never_runs_backwards(workshop: Workshop, version: VersionRecord) -> None:
    workshop.build(version, Precision.INT8, calibration=workshop.calibration({"input.image": images()}))
    fractions = [fraction for fraction, _ in workshop.progress if fraction is not None]
    assert fractions == sorted(fractions)
    assert 0.0 <= fractions[0] <= fractions[-1] <= 1.0
    assert any("calibrating, pass 2 of 2: 110 of 110" in message for _, message in workshop.progress)


def test_fp16_says_that_it_stores_fp16_and_computes_fp32(workshop: Workshop, version: VersionRecord) -> None:
    engine = workshop.build(version, Precision.FP16).engine
    assert (engine.realised["storage"], engine.realised["compute"]) == ("fp16", "fp32")
    assert engine.realised["converted"] == 7
    assert list(engine.realised["initialiser_bytes"]) == ["float16"]


def test_the_variant_is_found_by_the_recipe_of_its_engine(workshop: Workshop, version: VersionRecord) -> None:
    engine = workshop.build(version, Precision.FP16).engine
    with workshop.database.read() as connection:
        files = engines.find_variant(
            connection, source_digest=version.source.digest, recipe_digest=variant_recipe_digest(engine.recipe)
        )
    assert files is not None
    assert files[0].digest == engine.variant_digest
    assert workshop.storage.verify_blob(files[0].digest) == files[0].size_bytes


def test_int8_reaches_every_weighted_node(workshop: Workshop, version: VersionRecord) -> None:
    calibration = workshop.calibration({"input.image": images()}, method="minmax")
    outcome = workshop.build(version, Precision.INT8, calibration=calibration)
    assert (outcome.engine.realised["converted"], outcome.engine.realised["stayed"]) == (3, [])
    assert outcome.warnings == ()
    assert outcome.engine.size_bytes < workshop.build(version, Precision.FP32).engine.size_bytes


def test_a_few_samples_are_enough_but_warned_of(workshop: Workshop, version: VersionRecord) -> None:
    calibration = workshop.calibration({"image": images(8)})
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
        workshop.build(version, Precision.INT8, calibration=workshop.calibration({"input.x": images()}))
    assert workshop.engines(version) == []


def test_a_calibration_set_beside_fp32_is_not_read(workshop: Workshop, version: VersionRecord) -> None:
    calibration = replace(workshop.calibration({"input.x": images()}), path=Path("/nowhere"))
    assert workshop.build(version, Precision.FP32, calibration=calibration).engine.status is EngineStatus.BUILT


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16])
def test_the_same_cell_is_reused_and_says_so(workshop: Workshop, version: VersionRecord, precision: Precision) -> None:
    first = workshop.build(version, precision)
    again = workshop.build(version, precision)
    assert again.reused
    assert again.engine == first.engine
    assert len(workshop.engines(version)) == 1


def test_another_recipe_is_another_engine_that_shares_the_variant(workshop: Workshop, version: VersionRecord) -> None:
    one = workshop.build(version, Precision.FP16).engine
    two = workshop.build(version, Precision.FP16, optimisation_level="basic").engine
    assert one.recipe_digest != two.recipe_digest
    assert one.variant_digest == two.variant_digest
    assert sum("converting to FP16" in message for _, message in workshop.progress) == 1


def test_an_older_recipe_is_reused_as_it_is_and_hides_no_other(workshop: Workshop, version: VersionRecord) -> None:
    one = workshop.build(version, Precision.FP32).engine
    two = workshop.build(version, Precision.FP32, optimisation_level="basic").engine
    again = workshop.build(version, Precision.FP32)
    assert again.reused
    assert again.engine == one
    with workshop.database.read() as connection:
        assert engines.current_engines(connection, version_id=version.id) == [one, two]


def test_an_engine_whose_plan_was_swept_is_planned_as_a_build_and_built(
    workshop: Workshop, version: VersionRecord
) -> None:
    engine = workshop.build(version, Precision.FP32).engine
    workshop.storage.delete_blob(engine.plan_digest)
    with workshop.database.write() as connection:
        forget_blobs(connection, [engine.plan_digest])
    (swept,) = workshop.engines(version)
    assert swept == replace(engine, is_swept=True)
    (plan,) = plan_cells([workshop.request(version, Precision.FP32)], database=workshop.database)
    assert plan.action == "build"
    again = workshop.build(version, Precision.FP32)
    assert not again.reused
    assert not again.engine.is_swept


def test_an_engine_that_is_reused_is_taken_back_from_a_collector(workshop: Workshop, version: VersionRecord) -> None:
    engine = workshop.build(version, Precision.FP32).engine
    mark = Mark(
        kind=MarkedKind.BLOB,
        digest=engine.plan_digest,
        state=MarkState.MARKED,
        at=utc_now(),
        reason="",
        size_bytes=1,
        actor="gc",
    )
    assert workshop.storage.write_note(mark.name, mark.to_bytes(), replaces=None)
    assert workshop.build(version, Precision.FP32).reused
    note = workshop.storage.read_note(mark.name)
    assert note is not None
    assert parse_mark(note).state is MarkState.KEPT


def test_an_engine_whose_plan_is_gone_is_built_again(workshop: Workshop, version: VersionRecord) -> None:
    engine = workshop.build(version, Precision.FP16).engine
    for digest in (engine.plan_digest, engine.variant_digest):
        path = next((workshop.folder / "store" / "blobs").rglob(digest))
        path.unlink()
    again = workshop.build(version, Precision.FP16)
    assert not again.reused
    assert again.engine.plan_digest == engine.plan_digest  # the same recipe gives the same bytes
    assert again.engine.variant_digest == engine.variant_digest


def test_external_data_goes_along(workshop: Workshop, tmp_path: Path) -> None:
    path = save_with_external_data(conv_net(), tmp_path / "in" / "model.onnx", location="data/w.bin")
    version = workshop.register(path)
    for precision in (Precision.FP32, Precision.FP16):
        engine = workshop.build(version, precision).engine
        plan = workshop.fetch(engine.files, str(precision))
        session = onnxruntime.InferenceSession(str(plan), providers=["CPUExecutionProvider"])
        assert session.run(None, {"image": images(1)})[0].shape == (1, 10)


def test_the_golden_set_s_first_samples_are_tried(workshop: Workshop, version: VersionRecord) -> None:
    workshop.add_golden(version, {"input.image": images(9), "output.logits": np.zeros((9, 10), np.float32)})
    engine = workshop.build(version, Precision.FP32).engine
    assert engine.realised["checked"] == {"inputs": "golden", "shapes": [{"image": [2, 1, 12, 12]}], "runs": 1}


def test_a_golden_set_smaller_than_the_fixed_batch_is_not_tried(workshop: Workshop) -> None:
    version = workshop.register(conv_net(batch=4))
    workshop.add_golden(version, {"input.image": images(3)})
    assert workshop.build(version, Precision.FP32).engine.realised["checked"]["inputs"] == "random"


def test_a_golden_set_without_the_input_is_not_tried(workshop: Workshop, version: VersionRecord) -> None:
    workshop.add_golden(version, {"input.other": images(3)})
    assert workshop.build(version, Precision.FP32).engine.realised["checked"]["inputs"] == "random"


def test_excluded_nodes_are_kept_and_listed(workshop: Workshop, version: VersionRecord) -> None:
    calibration = workshop.calibration({"image": images()})
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
            calibration=workshop.calibration({"image": images()}),
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
            calibration=workshop.calibration({"image": images()}),
            optimisation_level="basic",
        )
    (failed,) = workshop.engines(version)
    assert (failed.status, failed.files) == (EngineStatus.FAILED, ())


def test_a_failed_cell_leaves_its_row_and_its_log_and_nothing_else(workshop: Workshop, version: VersionRecord) -> None:
    before = {blob.digest for blob in workshop.storage.iterate_blobs()}
    with pytest.raises(BuildError, match="no node 'conv9'"):
        workshop.build(version, Precision.FP16, nodes_to_exclude=("conv9",))
    (failed,) = workshop.engines(version)
    assert (failed.status, failed.files, failed.realised) == (EngineStatus.FAILED, (), {})
    assert failed.error == "the model has no node 'conv9' to exclude"
    after = {blob.digest for blob in workshop.storage.iterate_blobs()}
    assert after - before == {failed.log_digest}
    assert "VariantError" in workshop.log_of(failed)


def test_a_failed_cell_can_be_built_again(workshop: Workshop, version: VersionRecord) -> None:
    with pytest.raises(WorkerError, match="starting Python for the variant took longer than 0 s") as caught:
        workshop.build(version, Precision.FP16, timeout_s=0.0)
    assert workshop.log_of(workshop.engines(version)[0]).endswith(f"\nfailed: {caught.value}\n")
    outcome = workshop.build(version, Precision.FP16)
    assert [each.status for each in workshop.engines(version)] == [EngineStatus.FAILED, EngineStatus.BUILT]
    assert not outcome.reused


def broken_toolchain(tmp_path: Path, script: str) -> Path:
    """An interpreter that breaks when it is to run the builder, and runs everything else."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase "$*" in *builders/ort.py*) {script};; esac\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def test_another_name_of_the_same_interpreter_is_the_same_toolchain(
    workshop: Workshop, version: VersionRecord, tmp_path: Path
) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (tmp_path / "bin" / "python3").symlink_to("python")
    first = workshop.fill(request_with(workshop, version, python)).engine
    again = workshop.fill(request_with(workshop, version, tmp_path / "bin" / "python3"))
    assert (again.reused, again.engine.id) == (True, first.id)
    other = workshop.fill(workshop.request(version, Precision.FP32))
    assert not other.reused


def request_with(workshop: Workshop, version: VersionRecord, python: Path) -> CellRequest:
    toolchain = replace(embedded_toolchain(), python=str(python))
    return workshop.request(version, Precision.FP32, toolchain=toolchain)


@pytest.mark.parametrize(
    ("script", "fact"),
    [
        ("kill -SEGV $$", "was killed by SIGSEGV"),
        ("kill -KILL $$", r"was killed by SIGKILL \(perhaps out of memory\)"),
        ("echo oh dear >&2; exit 7", "exited with code 7 without an answer; its last log line: oh dear"),
        ("echo hello", "printed garbage"),
    ],
)
def test_a_toolchain_that_breaks_leaves_a_failed_cell(
    workshop: Workshop, version: VersionRecord, tmp_path: Path, script: str, fact: str
) -> None:
    request = request_with(workshop, version, broken_toolchain(tmp_path, script))
    with pytest.raises(WorkerError, match=fact):
        workshop.fill(request)
    (failed,) = workshop.engines(version)
    assert failed.status is EngineStatus.FAILED
    assert workshop.log_of(failed).startswith("cell: ")


def test_an_interpreter_that_is_gone_leaves_a_failed_cell(
    workshop: Workshop, version: VersionRecord, tmp_path: Path
) -> None:
    with pytest.raises(WorkerError, match="cannot start the interpreter"):
        workshop.fill(request_with(workshop, version, tmp_path / "gone"))
    assert "cannot start the interpreter" in workshop.engines(version)[0].error


def test_ctrl_c_records_the_cell_as_failed_and_is_passed_on(
    workshop: Workshop, version: VersionRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    def press() -> None:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    def interrupt(*_: object, **__: object) -> None:
        threading.Thread(target=press).start()
        time.sleep(30)

    monkeypatch.setattr(backends.OrtBuilder, "build", interrupt)
    with pytest.raises(KeyboardInterrupt):
        workshop.build(version, Precision.FP32)
    (failed,) = workshop.engines(version)
    assert (failed.status, failed.error) == (EngineStatus.FAILED, "interrupted")


def test_a_damaged_source_is_not_built(workshop: Workshop, version: VersionRecord) -> None:
    path = next((workshop.folder / "store" / "blobs").rglob(version.source.digest))
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with pytest.raises(IntegrityError):
        workshop.build(version, Precision.FP32)
    assert workshop.engines(version)[0].status is EngineStatus.FAILED


def test_a_full_disk_is_reported_even_when_the_failure_cannot_be_recorded(
    workshop: Workshop, version: VersionRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise StorageError("no space left")

    monkeypatch.setattr(workshop.storage, "put_file", refuse)
    with pytest.raises(StorageError, match="no space left"):
        workshop.build(version, Precision.FP32)
    assert workshop.engines(version) == []


def test_two_builders_must_agree_on_the_bytes_of_a_variant(
    workshop: Workshop, version: VersionRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "record_variant", lambda *_, **__: ())
    with pytest.raises(BuildError, match="another build made the same variant with other bytes"):
        workshop.build(version, Precision.FP16)


def test_what_no_backend_can_build_is_refused_with_the_reason(workshop: Workshop) -> None:
    version = workshop.register(sequence_output())
    with pytest.raises(BuildError, match=r"net:1 cannot be built: .*sequence"):
        workshop.build(version, Precision.FP32)
    assert workshop.engines(version) == []


def test_another_target_than_the_cpu_is_refused(workshop: Workshop, version: VersionRecord) -> None:
    with pytest.raises(BuildError, match="onnxruntime builds for cpu, not for sm_90"):
        workshop.fill(workshop.request(version, Precision.FP32, target="sm_90"))


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"optimisation_level": "extreme"}, "'extreme' is none of disabled, basic, extended, all"),
        ({"op_types_to_exclude": ("LSTM",)}, "the model has no LSTM nodes to exclude"),
    ],
)
def test_options_that_mean_nothing_are_usage_errors(
    workshop: Workshop, version: VersionRecord, options: dict[str, object], fact: str
) -> None:
    with pytest.raises(UsageError, match=fact):
        workshop.build(version, Precision.FP16, **options)
    assert workshop.engines(version) == []


def test_the_plan_of_cells_says_build_reuse_or_refuse_and_writes_nothing(
    workshop: Workshop, version: VersionRecord
) -> None:
    built = workshop.build(version, Precision.FP32).engine
    requests = [
        workshop.request(version, precision)
        for precision in (Precision.FP32, Precision.FP16, Precision.INT8, Precision.BF16)
    ]
    plans = plan_cells(requests, database=workshop.database)
    assert [plan.action for plan in plans] == ["reuse", "build", "refuse", "refuse"]
    assert plans[0].reason == f"engine {built.id} has the same recipe"
    assert plans[1].steps
    assert "calibration" in plans[2].reason
    assert "BF16 kernels" in plans[3].reason
    assert workshop.engines(version) == [built]


def test_a_toolchain_of_another_version_is_another_cell(workshop: Workshop, version: VersionRecord) -> None:
    workshop.build(version, Precision.FP32)
    other = replace(embedded_toolchain(), version="0.0.1")
    (plan,) = plan_cells([workshop.request(version, Precision.FP32, toolchain=other)], database=workshop.database)
    assert plan.action == "build"


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


KILLED_BUILD = """
import os, signal, sys
from pathlib import Path
from modelreg.builders.backends import OrtBuilder
from modelreg.registry.words import Precision
from modelreg_testing.onnx_models import mlp
from modelreg_testing.workshop import Workshop

OrtBuilder.build = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
workshop = Workshop.open(Path(sys.argv[1]))
workshop.build(workshop.register(mlp()), Precision.FP32)
"""


@pytest.mark.slow
def test_the_folder_of_a_killed_build_goes_with_the_next_build(
    workshop: Workshop, version: VersionRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, other = tmp_path / "tmp", tmp_path / "other"
    place.mkdir()
    other.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(tempfile, "tempdir", None)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    done = subprocess.run([sys.executable, "-c", KILLED_BUILD, str(other)], env=env, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(list(place.glob("modelreg-build-*"))) == 1
    workshop.build(version, Precision.FP32)
    assert list(place.glob("modelreg-build-*")) == []


@pytest.mark.slow
def test_two_versions_of_one_model_do_not_share_engines(workshop: Workshop, version: VersionRecord) -> None:
    workshop.build(version, Precision.FP32)
    other = workshop.register(mlp())
    assert not workshop.build(other, Precision.FP32).reused


def test_a_missing_onnxruntime_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(MissingDependencyError, match="onnxruntime is not installed"):
        embedded_toolchain()


def test_build_cell_asks_for_nothing_but_the_registry(workshop: Workshop, version: VersionRecord) -> None:
    outcome = build_cell(
        workshop.request(version, Precision.FP32),
        database=workshop.database,
        storage=workshop.storage,
        progress=lambda *_: None,
        actor="somebody",
    )
    assert outcome.engine.created_by == "somebody"


def damage(workshop: Workshop, digest: str) -> Path:
    """Flip a bit of a stored blob; return its file."""
    path = next((workshop.folder / "store" / "blobs").rglob(digest))
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    return path


@pytest.mark.slow
def test_a_damaged_engine_is_built_again_and_its_blob_is_whole_then(workshop: Workshop, version: VersionRecord) -> None:
    engine = workshop.build(version, Precision.FP32).engine
    damage(workshop, engine.plan_digest)
    renewed, said = renew_damaged(
        workshop.request(version, Precision.FP32), database=workshop.database, storage=workshop.storage
    )
    assert renewed.rebuild
    assert said.startswith("engine 1 is damaged and is built again: ")
    again = workshop.fill(renewed)
    assert not again.reused
    assert workshop.storage.verify_blob(engine.plan_digest) == engine.size_bytes


def test_a_whole_engine_or_a_rebuild_is_not_renewed(workshop: Workshop, version: VersionRecord) -> None:
    workshop.build(version, Precision.FP32)
    request = workshop.request(version, Precision.FP32)
    for asked in (request, replace(request, rebuild=True), workshop.request(version, Precision.FP16)):
        assert renew_damaged(asked, database=workshop.database, storage=workshop.storage) == (asked, "")


@pytest.mark.slow
def test_a_damaged_variant_is_made_again_and_the_log_says_so(workshop: Workshop, version: VersionRecord) -> None:
    engine = workshop.build(version, Precision.FP16).engine
    damage(workshop, engine.variant_digest)
    again = workshop.fill(replace(workshop.request(version, Precision.FP16), rebuild=True)).engine
    assert again.variant_digest == engine.variant_digest
    assert "the variant made before is damaged and is made again" in workshop.log_of(again)
    workshop.storage.verify_blob(engine.variant_digest)
