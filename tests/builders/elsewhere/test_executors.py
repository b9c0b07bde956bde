"""What every executor promises, whatever builds behind it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from modelreg.builders.cells import CellOutcome
from modelreg.builders.elsewhere.cluster import Cluster
from modelreg.builders.elsewhere.executor import DaskExecutor
from modelreg.builders.executors import CellExecutor, LocalExecutor
from modelreg.builders.interface import OnProgress, ToolchainSpec
from modelreg.builders.matrix import Result, Workplace, fill_cells
from modelreg.builders.planning import CellRequest
from modelreg.registry.errors import BuildError
from modelreg.registry.words import EngineStatus, Precision
from modelreg_testing.dask_cluster import HeldPython
from modelreg_testing.onnx_models import conv_net, make_model, value
from modelreg_testing.workers import wait_until_gone
from modelreg_testing.workshop import Workshop

EXECUTORS = ("local", "dask")


@pytest.fixture(params=EXECUTORS)
def executor(request: pytest.FixtureRequest) -> CellExecutor:
    if request.param == "local":
        return LocalExecutor()
    cluster: Cluster = request.getfixturevalue("cluster")
    return DaskExecutor(cluster)


@pytest.fixture
def slow(executor: CellExecutor, held: HeldPython, held_toolchain: ToolchainSpec) -> Iterator[ToolchainSpec]:
    """Give the toolchain that holds its builds; in this process it lies where it is."""
    held.hold.touch()
    is_here = isinstance(executor, LocalExecutor)
    yield replace(held_toolchain, python=str(held.path)) if is_here else held_toolchain
    held.hold.unlink(missing_ok=True)


def fill(workshop: Workshop, executor: CellExecutor, requests: list[CellRequest], *, jobs: int = 4) -> list[Result]:
    place = Workplace(database=workshop.database, storage=workshop.storage, actor="tester", executor=executor)

    @contextmanager
    def open_step(_request: CellRequest) -> Iterator[OnProgress]:
        yield lambda fraction, message: workshop.progress.append((fraction, message))

    return fill_cells(requests, place, jobs=jobs, open_step=open_step)


def test_a_cell_is_built_and_recorded_with_its_log_variant_and_checks(
    workshop: Workshop, executor: CellExecutor
) -> None:
    version = workshop.register(conv_net())
    request = workshop.request(version, Precision.FP16)
    [built] = fill(workshop, executor, [request])
    assert not isinstance(built, Exception)
    engine = built.engine
    assert engine.status is EngineStatus.BUILT
    assert (engine.realised["storage"], engine.realised["checked"]["runs"]) == ("fp16", 2)
    assert engine.build_s > 0
    for digest in (engine.plan_digest, engine.variant_digest, engine.log_digest):
        workshop.storage.verify_blob(digest)
    assert workshop.log_of(engine).startswith("cell: net:1 fp16 for cpu with onnxruntime")
    assert any(message == "optimising the graph" for _, message in workshop.progress)
    assert [result.reused for result in fill(workshop, executor, [request]) if isinstance(result, CellOutcome)] == [
        True
    ]


def test_what_cannot_be_built_fails_once_with_its_reason_and_its_log(
    workshop: Workshop, executor: CellExecutor
) -> None:
    from onnx import helper

    node = helper.make_node("Optional", ["x"], ["y"], name="odd", domain="nobody.knows")
    model = make_model([node], inputs=[value("x", [4])], outputs=[value("y", [4])])
    model.opset_import.add(domain="nobody.knows", version=1)
    version = workshop.register(model)
    [failed] = fill(workshop, executor, [workshop.request(version, Precision.FP32)])
    assert type(failed) is BuildError
    assert "ONNX Runtime cannot build it" in str(failed)
    [engine] = workshop.engines(version)
    assert (engine.status, engine.error) == (EngineStatus.FAILED, str(failed))
    assert workshop.log_of(engine).startswith("cell: net:1 fp32 for cpu with onnxruntime")


def test_ctrl_c_ends_what_builds_and_records_the_cell_as_interrupted(
    workshop: Workshop, executor: CellExecutor, slow: ToolchainSpec, held: HeldPython
) -> None:
    version = workshop.register(conv_net())
    begun = len(held.pids())

    def interrupt() -> None:
        held.wait_for_build(begun + 1)
        time.sleep(0.5)  # the shell may be further than who started it, and does not end with its parent as workers do
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        fill(workshop, executor, [workshop.request(version, Precision.FP32, toolchain=slow)])
    [engine] = workshop.engines(version)
    assert (engine.status, engine.error) == (EngineStatus.FAILED, "interrupted")
    assert wait_until_gone(held.pids()[-1])
