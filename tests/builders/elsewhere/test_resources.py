from __future__ import annotations

from pathlib import Path

import pytest

from modelreg.builders.elsewhere.resources import (
    ClusterWorker,
    alternatives,
    building_on_workers,
    choose_resources,
    describe_missing,
    offering,
)
from modelreg.builders.interface import Cell, ToolchainSpec
from modelreg.registry.records import VersionRecord
from modelreg.registry.words import Backend, Precision
from modelreg_testing.onnx_models import mlp
from modelreg_testing.workshop import Workshop


@pytest.fixture
def version(tmp_path: Path) -> VersionRecord:
    return Workshop.open(tmp_path).register(mlp())


def cell(version: VersionRecord, backend: Backend, target: str) -> Cell:
    spec = ToolchainSpec(name="mine", backend=backend, version="10.3.0", python="/opt/python")
    return Cell(version=version, target=target, precision=Precision.FP16, toolchain=spec)


def worker(name: str, **resources: float) -> ClusterWorker:
    return ClusterWorker(address=f"tcp://{name}", name=name, resources=resources)


@pytest.mark.parametrize(
    ("backend", "target", "asked"),
    [
        (Backend.ONNXRUNTIME, "cpu", [{"mine": 1.0}, {"onnxruntime-10.3.0": 1.0}]),
        (Backend.TENSORRT_RTX, "sm_90", [{"mine": 1.0}, {"tensorrt-rtx-10.3.0": 1.0}]),
        (Backend.TENSORRT, "sm_90", [{"mine": 1.0, "sm_90": 1.0}, {"tensorrt-10.3.0": 1.0, "sm_90": 1.0}]),
    ],
)
def test_only_what_is_built_on_the_device_asks_for_it(
    version: VersionRecord, backend: Backend, target: str, asked: list[dict[str, float]]
) -> None:
    assert alternatives(cell(version, backend, target)) == asked


def test_a_worker_must_offer_all_of_it(version: VersionRecord) -> None:
    asked = {"mine": 1.0, "sm_90": 1.0}
    able = worker("able", mine=2, sm_90=1)
    workers = [worker("a", mine=1), worker("b", sm_90=1), worker("c", mine=1, sm_90=0), able]
    assert offering(workers, asked) == [able]


def test_the_name_goes_before_the_version_where_workers_offer_both(version: VersionRecord) -> None:
    wanted = cell(version, Backend.TENSORRT, "sm_90")
    by_version = ClusterWorker(address="v", name="v", resources={"tensorrt-10.3.0": 1, "sm_90": 1})
    assert choose_resources(wanted, [by_version]) == {"tensorrt-10.3.0": 1.0, "sm_90": 1.0}
    assert choose_resources(wanted, [by_version, worker("n", mine=1, sm_90=1)]) == {"mine": 1.0, "sm_90": 1.0}
    assert choose_resources(wanted, [worker("other", mine=1, sm_89=1)]) is None


def test_what_is_missing_is_named_with_what_there_is(version: VersionRecord) -> None:
    wanted = cell(version, Backend.TENSORRT, "sm_90")
    assert describe_missing(wanted, []) == (
        "no worker offers mine (or tensorrt-10.3.0) and sm_90; there are no workers"
    )
    workers = [worker("a", mine=1, sm_89=1), worker("b", mine=1, sm_89=1), worker("c")]
    assert describe_missing(wanted, workers).endswith("; there are 2 with mine and sm_89, 1 with nothing")


def test_workers_may_have_gpus_that_this_host_has_not() -> None:
    here = ToolchainSpec(
        name="trt",
        backend=Backend.TENSORRT,
        version="10.3.0",
        python="/p",
        details={"targets": ["sm_86"], "cuda": "12"},
    )
    there = building_on_workers(here, ["cpu", "sm_86", "sm_90"])
    assert there.details == {"targets": ["sm_86", "sm_90"], "cuda": "12"}
    ahead_of_time = ToolchainSpec(name="rtx", backend=Backend.TENSORRT_RTX, version="1.7", python="/p")
    assert building_on_workers(ahead_of_time, ["sm_90"]) == ahead_of_time
