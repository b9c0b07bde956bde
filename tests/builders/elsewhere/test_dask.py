"""Cells on a real cluster: which worker gets what, and what happens when one dies or does not fit."""

from __future__ import annotations

import importlib.metadata
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from modelreg.builders.backends import embedded_toolchain
from modelreg.builders.cells import CellOutcome
from modelreg.builders.elsewhere.cluster import Cluster, Run, SchedulerGoneError
from modelreg.builders.elsewhere.executor import DaskExecutor
from modelreg.builders.elsewhere.resources import Resources
from modelreg.builders.interface import OnProgress, ToolchainSpec
from modelreg.builders.matrix import Result, Workplace, fill_cells
from modelreg.builders.planning import CellRequest, prepare_cell
from modelreg.registry.errors import BuildError, WorkerError
from modelreg.registry.records import VersionRecord
from modelreg.registry.storage.local import LocalStorage
from modelreg.registry.words import EngineStatus, Json, Precision
from modelreg_testing.dask_cluster import ClusterProcesses, HeldPython, dask_cluster
from modelreg_testing.onnx_models import conv_net
from modelreg_testing.workers import wait_until_gone
from modelreg_testing.workshop import Workshop

pytestmark = pytest.mark.slow

FP32 = Precision.FP32
VERSION = importlib.metadata.version("onnxruntime")


@pytest.fixture
def version(workshop: Workshop) -> VersionRecord:
    return workshop.register(conv_net())


def fill(workshop: Workshop, executor: DaskExecutor, *requests: CellRequest) -> list[Result]:
    place = Workplace(database=workshop.database, storage=workshop.storage, actor="tester", executor=executor)

    @contextmanager
    def open_step(_request: CellRequest) -> Iterator[OnProgress]:
        yield lambda fraction, message: workshop.progress.append((fraction, message))

    executor.require_ready([prepare_cell(request) for request in requests], workshop.storage)
    return fill_cells(requests, place, jobs=8, open_step=open_step)


def by_worker(results: list[Result]) -> list[str]:
    built = [result for result in results if isinstance(result, CellOutcome)]
    assert len(built) == len(results), results
    return [result.engine.realised["built_by"]["worker"] for result in built]


def test_a_cell_goes_to_the_worker_that_offers_its_toolchain_and_is_what_is_built_here(
    workshop: Workshop, version: VersionRecord, cluster: Cluster, held_toolchain: ToolchainSpec
) -> None:
    before = {blob.digest for blob in workshop.storage.iterate_blobs()}
    results = fill(workshop, DaskExecutor(cluster), workshop.request(version, FP32, toolchain=held_toolchain))
    assert by_worker(results) == ["one"]
    [engine] = workshop.engines(version)
    assert "built by worker one on " in workshop.log_of(engine)
    assert engine.toolchain.python == held_toolchain.python  # as registered: it is found again by that
    made = {blob.digest for blob in workshop.storage.iterate_blobs()} - before
    assert made == {engine.plan_digest, engine.log_digest}  # and nothing of the greeting
    assert workshop.build(version, FP32).engine.files == engine.files


def test_what_nobody_offers_fails_with_what_is_missing_and_what_is_there(
    workshop: Workshop, version: VersionRecord, cluster: Cluster
) -> None:
    other = elsewhere("trt86")
    [failed] = fill(workshop, DaskExecutor(cluster, wait_s=0.5), workshop.request(version, FP32, toolchain=other))
    assert str(failed) == (
        f"no worker offers trt86 (or onnxruntime-{VERSION}); there are 1 with held and onnxruntime (waited 0.5 s)"
    )
    assert workshop.engines(version)[0].error == str(failed)


def elsewhere(name: str) -> ToolchainSpec:
    """Return a toolchain of this ONNX Runtime that is nowhere on this host."""
    return replace(embedded_toolchain(), name=name, python="/nowhere/python")


def test_a_worker_that_dies_is_replaced_until_there_were_too_many(
    workshop: Workshop, version: VersionRecord, processes: ClusterProcesses, cluster: Cluster, held: HeldPython
) -> None:
    spec = elsewhere("mortal")
    env = {"MODELREG_TOOLCHAINS": f"mortal={held.path}"}
    processes.start("m1", "mortal=1", env=env, nanny=True)
    processes.start("m2", "mortal=1", env=env)
    processes.wait_for("m1", "m2")
    begun = len(held.pids())
    held.hold.touch()
    died: list[str] = []

    def kill_first() -> None:
        held.wait_for_build(begun + 1)
        died.append(next(name for name in ("m1", "m2") if (0.0, f"on worker {name}") in workshop.progress))
        processes.kill(died[0])
        held.hold.unlink()

    killer = threading.Thread(target=kill_first)
    killer.start()
    [built] = fill(workshop, DaskExecutor(cluster, retries=1), workshop.request(version, FP32, toolchain=spec))
    killer.join()
    assert by_worker([built]) == [{"m1": "m2", "m2": "m1"}[died[0]]]
    assert f"worker {died[0]} died at it before" in workshop.log_of(workshop.engines(version)[0])
    assert (None, f"worker {died[0]} died") in workshop.progress

    left = next(name for name in ("m1", "m2") if name != died[0])
    held.hold.touch()

    def kill_last() -> None:
        held.wait_for_build(begun + 3)
        processes.kill(left)

    killer = threading.Thread(target=kill_last)
    killer.start()
    request = replace(workshop.request(version, FP32, toolchain=spec), rebuild=True)
    [failed] = fill(workshop, DaskExecutor(cluster, retries=0, wait_s=0.0), request)
    killer.join()
    held.hold.unlink()
    assert isinstance(failed, WorkerError)
    assert str(failed) == f"the workers that built it died: {left}"
    assert workshop.engines(version)[-1].status is EngineStatus.FAILED


class LyingCluster:
    """A cluster whose workers build, and answer with something else."""

    def __init__(self, cluster: Cluster, lie: Callable[[Json], Json]) -> None:
        self._cluster, self._lie = cluster, lie

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def submit(self, name: str, order: Json, resources: Resources) -> Run:
        run = self._cluster.submit(name, order, resources)
        wait = run.wait

        def wait_and_lie(timeout_s: float) -> Json | None:
            body = wait(timeout_s)
            return None if body is None else self._lie(body)

        run.wait = wait_and_lie  # type: ignore[method-assign]
        return run


def name_another_plan(body: Json) -> Json:
    body["made"]["files"][0]["sha256"] = "0" * 64
    return body


def name_another_size(body: Json) -> Json:
    body["made"]["files"][0]["size"] += 1
    return body


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (name_another_plan, "is not in the store as the worker says"),
        (name_another_size, "bytes in the store, the worker says"),
        (lambda _: {"made": {"files": 3}, "dead": []}, "something else than what came of a cell: TypeError"),
        (lambda _: {}, "something else than what came of a cell"),
    ],
    ids=["digest", "size", "parts", "nothing"],
)
def test_what_a_worker_says_is_not_recorded_before_it_is_seen(
    workshop: Workshop, version: VersionRecord, cluster: Cluster, lie: Callable[[Json], Json], words: str
) -> None:
    executor = DaskExecutor(cast(Cluster, LyingCluster(cluster, lie)))
    [failed] = fill(workshop, executor, workshop.request(version, FP32))
    assert isinstance(failed, BuildError)
    assert words in str(failed)
    assert [each.status for each in workshop.engines(version)] == [EngineStatus.FAILED]


def test_another_modelreg_is_refused_before_anything_is_built(
    workshop: Workshop, version: VersionRecord, processes: ClusterProcesses, cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "modelreg-9.9.9.dist-info").mkdir()
    (tmp_path / "modelreg-9.9.9.dist-info" / "METADATA").write_text("Name: modelreg\nVersion: 9.9.9\n")
    processes.start("newer", "skewed=1", cwd=tmp_path)
    processes.wait_for("newer")
    skewed = elsewhere("skewed")
    ours = importlib.metadata.version("modelreg")
    with pytest.raises(BuildError, match=f"worker newer has modelreg 9.9.9 .* modelreg {ours} .* is here"):
        fill(workshop, DaskExecutor(cluster), workshop.request(version, FP32, toolchain=skewed))
    assert workshop.engines(version) == []
    processes.kill("newer")


def test_a_store_that_is_another_place_there_is_found_out_before_anything_is_built(
    workshop: Workshop, processes: ClusterProcesses, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One path that is two folders: each process sees its own working directory there.
    other = processes.folder / "store"
    LocalStorage.create(other)
    monkeypatch.chdir(workshop.folder)
    workshop.storage = LocalStorage(Path("/proc/self/cwd/store"))
    version = workshop.register(conv_net())
    request = workshop.request(version, FP32, toolchain=elsewhere("held"))
    blobs = {blob.digest for blob in workshop.storage.iterate_blobs()}
    with pytest.raises(BuildError, match="worker one does not reach the store /proc/self/cwd/store: "):
        fill(workshop, DaskExecutor(cluster), request)
    shutil.rmtree(other)
    with pytest.raises(BuildError, match="worker one does not reach the store /proc/self/cwd/store: "):
        fill(workshop, DaskExecutor(cluster), request)
    assert workshop.engines(version) == []
    assert {blob.digest for blob in workshop.storage.iterate_blobs()} == blobs


def test_a_scheduler_that_goes_away_fails_what_is_built_and_ends_it(
    workshop: Workshop, version: VersionRecord, held: HeldPython, held_toolchain: ToolchainSpec, tmp_path: Path
) -> None:
    begun = len(held.pids())
    held.hold.touch()
    with dask_cluster(tmp_path / "dask") as running:
        running.start("lonely", "held=1", env={"MODELREG_TOOLCHAINS": f"held={held.path}"})
        running.wait_for("lonely")

        def kill() -> None:
            held.wait_for_build(begun + 1)
            running.scheduler.kill()

        threading.Thread(target=kill).start()
        with Cluster.connect(running.address) as cluster:
            [failed] = fill(workshop, DaskExecutor(cluster), workshop.request(version, FP32, toolchain=held_toolchain))
        assert isinstance(failed, SchedulerGoneError)
        assert workshop.engines(version)[0].error == str(failed)
        assert wait_until_gone(held.pids()[-1], timeout_s=60)
    held.hold.unlink()


def test_no_scheduler_is_one_line() -> None:
    with pytest.raises(SchedulerGoneError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:1: "):
        Cluster.connect("tcp://127.0.0.1:1", timeout_s=0.5)
