"""Cells of TensorRT-RTX, from the registered source to the recorded engine."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from modelreg.builders import matrix, plan_jobs
from modelreg.builders.cells import CellOutcome
from modelreg.builders.interface import OnProgress
from modelreg.builders.matrix import Workplace, fill_cells
from modelreg.builders.planning import CellRequest
from modelreg.builders.profiles import ProfileShapes
from modelreg.builders.trt_options import TensorRTOptions
from modelreg.registry.errors import BuildError, CellRefusedError, PrecisionError, UsageError, WorkerError
from modelreg.registry.plans import PlanHeader, read_plan_header
from modelreg.registry.records import VersionRecord
from modelreg.registry.toolchains.process import Worker
from modelreg.registry.words import Backend, EngineStatus, Precision
from modelreg_testing.onnx_models import conv_images, conv_net
from modelreg_testing.toolchains import needs_rtx, rtx_toolchain
from modelreg_testing.workshop import Workshop, overflowing_net

pytestmark = [pytest.mark.slow, needs_rtx]

FP32, TF32, FP16, INT8 = Precision.FP32, Precision.TF32, Precision.FP16, Precision.INT8


@pytest.fixture
def version(workshop: Workshop) -> VersionRecord:
    return workshop.register(conv_net())


def request(workshop: Workshop, version: VersionRecord, precision: Precision, **options: object) -> CellRequest:
    target = str(options.pop("target", "sm_86"))
    toolchain = options.pop("toolchain", rtx_toolchain())
    if precision is INT8:
        options.setdefault("calibration", workshop.calibration({"input.image": conv_images()}))
    return workshop.request(version, precision, target=target, toolchain=toolchain, **options)  # type: ignore[arg-type]


def test_fp32_is_built_for_a_gpu_that_is_not_here(workshop: Workshop, version: VersionRecord) -> None:
    engine = workshop.fill(request(workshop, version, FP32)).engine
    assert (engine.status, engine.target.name) == (EngineStatus.BUILT, "sm_86")
    assert (engine.toolchain.backend, engine.toolchain.name) == (Backend.TENSORRT_RTX, "rtx")
    plan = workshop.fetch(engine.files, "plan")
    assert plan.name == "model.plan"
    header = read_plan_header(plan)
    assert (header.version, header.targets) == (engine.toolchain.version, ("sm_86",))
    assert (engine.realised["compute"], engine.realised["flags"]) == ("fp32", [])
    assert engine.realised["checked"]["runs"] == 0
    assert "ahead of time" in engine.realised["checked"]["reason"]
    assert "the plan was not run" in engine.realised["note"]
    assert engine.recipe["build"]["profiles"] == [
        {"image": {"min": [1, 1, 12, 12], "opt": [8, 1, 12, 12], "max": [64, 1, 12, 12]}}
    ]


def test_tf32_is_a_flag_of_its_own(workshop: Workshop, version: VersionRecord) -> None:
    engine = workshop.fill(request(workshop, version, TF32)).engine
    assert engine.recipe["flags"] == engine.realised["flags"] == ["TF32"]
    assert (engine.realised["compute"], engine.realised["converted"]) == ("tf32", 3)
    assert engine.plan_digest != workshop.fill(request(workshop, version, FP32)).engine.plan_digest


def test_fp16_carries_its_types_in_the_variant(workshop: Workshop, version: VersionRecord) -> None:
    engine = workshop.fill(request(workshop, version, FP16)).engine
    realised = engine.realised
    assert (realised["storage"], realised["compute"], realised["stayed"]) == ("fp16", "fp16", [])
    assert realised["converted"] >= 5
    assert engine.recipe["flags"] == []
    edges = realised["checked"]["edges"]
    assert {each["dtype"] for each in edges["inputs"] + edges["outputs"]} == {"float32"}
    assert workshop.fill(request(workshop, version, FP32)).engine.size_bytes != engine.size_bytes


def test_int8_reaches_every_weighted_node_and_is_stored_in_int8(workshop: Workshop, version: VersionRecord) -> None:
    engine = workshop.fill(request(workshop, version, INT8)).engine
    realised = engine.realised
    assert (realised["storage"], realised["compute"]) == ("int8", "int8")
    assert (realised["converted"], realised["stayed"]) == (3, [])
    settings = engine.recipe["variant"]["settings"]
    assert (settings["activation_type"], settings["activation_symmetric"]) == ("QInt8", True)
    assert settings["options"]["QuantizeBias"] is False
    fp32 = workshop.fill(request(workshop, version, FP32)).engine
    assert realised["checked"]["weight_bytes"] < 0.5 * fp32.realised["checked"]["weight_bytes"]


def test_excluded_nodes_stay_and_are_listed(workshop: Workshop, version: VersionRecord) -> None:
    int8 = workshop.fill(request(workshop, version, INT8, nodes_to_exclude=("conv2",))).engine.realised
    assert (int8["converted"], int8["kept"], int8["compute"]) == (2, ["conv2 (Conv)"], "mixed")
    fp16 = workshop.fill(request(workshop, version, FP16, op_types_to_exclude=("Gemm",))).engine.realised
    assert [label for label in fp16["kept"] if "Gemm" in label] == fp16["kept"]
    assert fp16["compute"] == "mixed"


def test_excluding_everything_is_a_failed_build(workshop: Workshop, version: VersionRecord) -> None:
    with pytest.raises(PrecisionError, match="its 3 weighted nodes are excluded"):
        workshop.fill(request(workshop, version, INT8, op_types_to_exclude=("Conv", "Gemm")))
    assert workshop.engines(version)[0].status is EngineStatus.FAILED


def test_a_variant_for_the_gpu_is_not_that_for_the_cpu(workshop: Workshop, version: VersionRecord) -> None:
    gpu = workshop.fill(request(workshop, version, INT8)).engine
    cpu = workshop.build(version, INT8, calibration=workshop.calibration({"input.image": conv_images()})).engine
    assert gpu.variant_digest != cpu.variant_digest
    fp16 = [workshop.fill(request(workshop, version, FP16, target=target)).engine for target in ("sm_86", "sm_120")]
    assert fp16[0].variant_digest == fp16[1].variant_digest
    assert fp16[0].plan_digest != fp16[1].plan_digest
    assert sum("converting to FP16" in message for _, message in workshop.progress) == 1


def test_the_same_cell_is_reused_and_another_profile_is_another_recipe(
    workshop: Workshop, version: VersionRecord
) -> None:
    first = workshop.fill(request(workshop, version, FP32)).engine
    again = workshop.fill(request(workshop, version, FP32))
    assert (again.reused, again.engine) == (True, first)
    shapes = ProfileShapes(opt={"image": (4, 1, 12, 12)})
    other = workshop.fill(request(workshop, version, FP32, profiles=(shapes,)))
    assert not other.reused
    assert other.engine.recipe["build"]["profiles"][0]["image"]["max"] == [4, 1, 12, 12]


def test_a_profile_that_does_not_fit_is_refused_before_any_build(workshop: Workshop, version: VersionRecord) -> None:
    shapes = ProfileShapes(opt={"picture": (4, 1, 12, 12)})
    with pytest.raises(UsageError, match="input 'picture' that the model does not have"):
        workshop.fill(request(workshop, version, FP32, profiles=(shapes,)))
    with pytest.raises(CellRefusedError, match=r"tensorrt-rtx .* has no --builderOptimizationLevel"):
        workshop.fill(request(workshop, version, FP32, tensorrt=TensorRTOptions(optimisation_level=5)))
    assert workshop.engines(version) == []


@pytest.mark.parametrize(
    ("target", "precision", "fact"),
    [
        ("sm_90", FP32, r"tensorrt-rtx \S+ builds for sm_75, .*, not for sm_90"),
        ("cpu", FP32, "not for cpu"),
        ("sm_86", Precision.BEST, "strongly typed and nothing is chosen"),
    ],
)
def test_what_it_cannot_build_is_refused_with_the_reason(
    workshop: Workshop, version: VersionRecord, target: str, precision: Precision, fact: str
) -> None:
    with pytest.raises(CellRefusedError, match=fact):
        workshop.fill(request(workshop, version, precision, target=target))
    assert workshop.engines(version) == []


def test_a_release_before_ahead_of_time_builds_is_refused(workshop: Workshop, version: VersionRecord) -> None:
    old = replace(rtx_toolchain(), version="1.3.0.35")
    with pytest.raises(CellRefusedError, match=r"before 1\.4 does not build for a GPU that is not there"):
        workshop.fill(request(workshop, version, FP16, toolchain=old))


def test_a_toolchain_that_changed_since_it_was_registered_fails_the_cell(
    workshop: Workshop, version: VersionRecord
) -> None:
    old = replace(rtx_toolchain(), version="1.4.0.76")
    with pytest.raises(BuildError, match=r"registered with TensorRT-RTX 1\.4\.0\.76, its interpreter has") as caught:
        workshop.fill(request(workshop, version, FP32, toolchain=old))
    assert "modelreg toolchain add" in caught.value.hint()
    assert workshop.engines(version)[0].status is EngineStatus.FAILED


def test_a_plan_whose_header_disagrees_fails_the_build(
    workshop: Workshop, version: VersionRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = PlanHeader(backend=Backend.TENSORRT_RTX, version=rtx_toolchain().version, targets=("sm_89",))
    monkeypatch.setattr(plan_jobs, "read_plan_header", lambda _path: header)
    with pytest.raises(BuildError, match="the plan is not what was asked: its header says sm_89, not sm_86"):
        workshop.fill(request(workshop, version, FP32))
    assert workshop.engines(version)[0].files == ()


@pytest.fixture
def quick_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the child's start take 5 s at most; give a folder."""
    start = Worker.start
    monkeypatch.setattr(Worker, "start", lambda *args, **options: start(*args, **{**options, "timeout_s": 5.0}))
    return tmp_path


def broken_python(tmp_path: Path, script: str) -> str:
    """An interpreter that breaks when it is to run the builder of TensorRT-RTX."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase "$*" in *builders/trt_rtx.py*) {script};; esac\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return str(python)


@pytest.mark.parametrize(
    ("script", "fact"),
    [
        ("kill -SEGV $$", "was killed by SIGSEGV"),
        ("kill -KILL $$", r"was killed by SIGKILL \(perhaps out of memory\)"),
        ("echo oh dear >&2; exit 7", "exited with code 7 .*oh dear"),
        ("echo garbage", "printed garbage"),
        ("exec sleep 60", r"took longer than"),
    ],
)
def test_a_builder_that_breaks_leaves_one_failed_cell_with_its_log(
    workshop: Workshop, version: VersionRecord, quick_start: Path, script: str, fact: str
) -> None:
    toolchain = replace(rtx_toolchain(), python=broken_python(quick_start, script))
    with pytest.raises(WorkerError, match=fact):
        workshop.fill(request(workshop, version, FP32, toolchain=toolchain))
    (failed,) = workshop.engines(version)
    assert (failed.status, failed.files) == (EngineStatus.FAILED, ())
    assert workshop.log_of(failed).startswith("cell: net:1 fp32 for sm_86 with tensorrt-rtx")
    assert workshop.fill(request(workshop, version, FP32)).engine.status is EngineStatus.BUILT


def test_an_op_without_importer_is_a_failed_cell_that_names_it(workshop: Workshop, tmp_path: Path) -> None:
    from onnx import helper

    from modelreg_testing.onnx_models import make_model, value

    node = helper.make_node("Det", ["x"], ["y"], name="volume")
    version = workshop.register(make_model([node], inputs=[value("x", [4, 4])], outputs=[value("y", [])]))
    with pytest.raises(BuildError, match=r"cannot parse the model: volume \(Det\): there is no importer for this op"):
        workshop.fill(request(workshop, version, FP32))


class Steps:
    """Counts how many cells are at work at once."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.begun: list[str] = []
        self._lock = threading.Lock()

    @contextmanager
    def open(self, cell: CellRequest) -> Iterator[OnProgress]:
        with self._lock:
            self.begun.append(f"{cell.cell.precision} {cell.cell.target}")
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            yield lambda _fraction, _doing: None
        finally:
            with self._lock:
                self.now -= 1


def fill(workshop: Workshop, requests: list[CellRequest], steps: Steps, *, jobs: int) -> list[matrix.Result]:
    place = Workplace(database=workshop.database, storage=workshop.storage, actor="tester")
    return fill_cells(requests, place, jobs=jobs, open_step=steps.open)


def test_cells_are_built_side_by_side_and_come_back_in_order(workshop: Workshop, version: VersionRecord) -> None:
    cells = [(FP32, "sm_86"), (FP16, "sm_86"), (FP16, "sm_89"), (FP32, "sm_120"), (FP16, "sm_120")]
    steps = Steps()
    requests = [request(workshop, version, precision, target=target) for precision, target in cells]
    results = fill(workshop, requests, steps, jobs=3)
    engines = [result.engine for result in results if isinstance(result, CellOutcome)]
    assert [(engine.precision, engine.target.name) for engine in engines] == cells
    assert 2 <= steps.most <= 3
    # The first FP16 cell makes the variant; the other two begin when it is there.
    assert steps.begun.index("fp16 sm_86") < steps.begun.index("fp16 sm_89")
    assert len({engine.variant_digest for engine in engines if engine.precision is FP16}) == 1
    one_by_one = fill(workshop, requests, Steps(), jobs=1)
    assert all(isinstance(result, CellOutcome) and result.reused for result in one_by_one)


def test_a_failed_cell_does_not_stop_the_others(workshop: Workshop, tmp_path: Path) -> None:
    version = workshop.register(overflowing_net())
    broken = replace(rtx_toolchain(), python=broken_python(tmp_path, "kill -SEGV $$"), name="broken")
    requests = [
        request(workshop, version, FP32, toolchain=broken),
        request(workshop, version, FP32),
        request(workshop, version, FP32, target="sm_75"),
    ]
    crashed, built, refused = fill(workshop, requests, Steps(), jobs=3)
    assert isinstance(crashed, WorkerError)
    assert isinstance(built, CellOutcome)
    assert "FP32 GEMM is not supported" in str(refused)
    assert sorted(engine.status for engine in workshop.engines(version)) == ["built", "failed", "failed"]


def test_ctrl_c_ends_all_cells_and_records_them(workshop: Workshop, version: VersionRecord, tmp_path: Path) -> None:
    slow = replace(rtx_toolchain(), python=broken_python(tmp_path, "exec sleep 60"), name="slow")
    requests = [request(workshop, version, FP32, toolchain=slow, target=target) for target in ("sm_86", "sm_89")]
    steps = Steps()

    def interrupt() -> None:
        while len(steps.begun) < 2:
            time.sleep(0.05)
        time.sleep(1.5)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        fill(workshop, requests, steps, jobs=2)
    assert time.monotonic() - began < 20
    assert [(engine.status, engine.error) for engine in workshop.engines(version)] == [
        (EngineStatus.FAILED, "interrupted")
    ] * 2


@pytest.mark.parametrize("name", ["blk[0]/mm", "r]x", "a\nb"])
def test_a_node_may_have_any_name(workshop: Workshop, name: str) -> None:
    model = conv_net()
    model.graph.node[0].name = name
    engine = workshop.fill(request(workshop, workshop.register(model), FP16)).engine
    assert engine.realised["stayed"] == []
    assert engine.realised["converted"] == len([each for each in model.graph.node if each.op_type != "Softmax"])
