"""Cells that are built, recorded, reused and planned, by the real builder for the CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime  # noqa: TID253 - a dependency, and what these tests look at
import pytest

from modelreg.builders.backends import embedded_toolchain
from modelreg.builders.cells import build_cell, plan_cells
from modelreg.builders.recipe import variant_recipe_digest
from modelreg.registry import engines
from modelreg.registry.clock import utc_now
from modelreg.registry.digests import json_digest
from modelreg.registry.errors import (
    BuildError,
    UsageError,
)
from modelreg.registry.garbage.database_facts import forget_blobs
from modelreg.registry.records import VersionRecord
from modelreg.registry.storage.marks import Mark, MarkedKind, MarkState, parse_mark
from modelreg.registry.words import Backend, EngineStatus, Precision
from modelreg_testing.onnx_models import (
    conv_images,
    conv_net,
    mlp,
    save_with_external_data,
    sequence_output,
)
from modelreg_testing.workshop import Workshop


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
    image = conv_images(3)
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
    workshop.build(version, Precision.INT8, calibration=workshop.calibration({"input.image": conv_images()}))
    fractions = [fraction for fraction, _ in workshop.progress if fraction is not None]
    assert fractions == sorted(fractions)
    assert 0.0 <= fractions[0] <= fractions[-1] <= 1.0
    assert any("calibrating, pass 2 of 2: 110 of 110" in message for _, message in workshop.progress)


def test_the_variant_is_found_by_the_recipe_of_its_engine(workshop: Workshop, version: VersionRecord) -> None:
    engine = workshop.build(version, Precision.FP16).engine
    with workshop.database.read() as connection:
        files = engines.find_variant(
            connection, source_digest=version.source.digest, recipe_digest=variant_recipe_digest(engine.recipe)
        )
    assert files is not None
    assert files[0].digest == engine.variant_digest
    assert workshop.storage.verify_blob(files[0].digest) == files[0].size_bytes


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


def test_external_data_goes_along(workshop: Workshop, tmp_path: Path) -> None:
    path = save_with_external_data(conv_net(), tmp_path / "in" / "model.onnx", location="data/w.bin")
    version = workshop.register(path)
    for precision in (Precision.FP32, Precision.FP16):
        engine = workshop.build(version, precision).engine
        plan = workshop.fetch(engine.files, str(precision))
        session = onnxruntime.InferenceSession(str(plan), providers=["CPUExecutionProvider"])
        assert session.run(None, {"image": conv_images(1)})[0].shape == (1, 10)


def test_the_golden_set_s_first_samples_are_tried(workshop: Workshop, version: VersionRecord) -> None:
    workshop.add_golden(version, {"input.image": conv_images(9), "output.logits": np.zeros((9, 10), np.float32)})
    engine = workshop.build(version, Precision.FP32).engine
    assert engine.realised["checked"] == {"inputs": "golden", "shapes": [{"image": [2, 1, 12, 12]}], "runs": 1}


def test_a_golden_set_smaller_than_the_fixed_batch_is_not_tried(workshop: Workshop) -> None:
    version = workshop.register(conv_net(batch=4))
    workshop.add_golden(version, {"input.image": conv_images(3)})
    assert workshop.build(version, Precision.FP32).engine.realised["checked"]["inputs"] == "random"


def test_a_golden_set_without_the_input_is_not_tried(workshop: Workshop, version: VersionRecord) -> None:
    workshop.add_golden(version, {"input.other": conv_images(3)})
    assert workshop.build(version, Precision.FP32).engine.realised["checked"]["inputs"] == "random"


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


@pytest.mark.slow
def test_two_versions_of_one_model_do_not_share_engines(workshop: Workshop, version: VersionRecord) -> None:
    workshop.build(version, Precision.FP32)
    other = workshop.register(mlp())
    assert not workshop.build(other, Precision.FP32).reused


def test_build_cell_asks_for_nothing_but_the_registry(workshop: Workshop, version: VersionRecord) -> None:
    outcome = build_cell(
        workshop.request(version, Precision.FP32),
        database=workshop.database,
        storage=workshop.storage,
        progress=lambda *_: None,
        actor="somebody",
    )
    assert outcome.engine.created_by == "somebody"
