"""The runner of TensorRT plans, as far as it goes without a GPU: what is refused before anything is loaded."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from modelreg.registry.errors import IntegrityError
from modelreg.registry.toolchains.trt_session import PlanRunError, choose_profile, read_checked
from modelreg.registry.words import Backend
from modelreg.runtime.runner import GpuLoad, RunError, WorkerRunner
from modelreg_testing.plans import rtx_plan

PLAN = b"ftrt" + bytes(20) + bytes([8, 6, 0, 12]) + os.urandom(64)


def profile(low: int, high: int) -> dict[str, dict[str, list[int]]]:
    return {"x": {"min": [low, 3], "opt": [low, 3], "max": [high, 3]}}


def load_of(target: str = "sm_90", version: str = "8.6.0.12") -> GpuLoad:
    return GpuLoad(digest=hashlib.sha256(PLAN).hexdigest(), version=version, built_for=(target,), target=target)


@pytest.mark.parametrize(
    ("position", "error", "fact"),
    [
        (0, IntegrityError, "is no TensorRT plan"),
        (27, IntegrityError, r"the plan is not loaded: its header says tensorrt 8\.6\.0\.13, not 8\.6\.0\.12"),
        (40, RunError, "the plan cannot be loaded: the plan has the digest .* it is not loaded"),
        (len(PLAN) - 1, RunError, "the plan cannot be loaded: the plan has the digest .* it is not loaded"),
    ],
)
def test_a_plan_with_a_flipped_byte_is_never_loaded(
    tmp_path: Path, position: int, error: type[Exception], fact: str
) -> None:
    damaged = bytearray(PLAN)
    damaged[position] ^= 1
    path = tmp_path / "model.plan"
    path.write_bytes(damaged)
    with pytest.raises(error, match=fact):
        WorkerRunner(path, backend=Backend.TENSORRT, gpu=load_of())


def test_a_plan_of_another_version_backend_or_target_is_never_loaded(tmp_path: Path) -> None:
    path = tmp_path / "model.plan"
    path.write_bytes(PLAN)
    with pytest.raises(IntegrityError, match=r"its header says tensorrt 8\.6\.0\.12, not 10\.3\.0\.26"):
        WorkerRunner(path, backend=Backend.TENSORRT, gpu=load_of(version="10.3.0.26"))
    with pytest.raises(IntegrityError, match="its header is of tensorrt, not of tensorrt-rtx"):
        WorkerRunner(path, backend=Backend.TENSORRT_RTX, gpu=load_of())
    path.write_bytes(rtx_plan("1.7.1.116", "sm_86"))
    with pytest.raises(IntegrityError, match="its header says sm_86, not sm_90"):
        WorkerRunner(path, backend=Backend.TENSORRT_RTX, gpu=load_of(version="1.7.1.116"))


def test_a_plan_is_not_loaded_where_its_gpu_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "model.plan"
    path.write_bytes(PLAN)
    with pytest.raises(RunError, match="it needs a GPU of sm_9999, and this host has"):
        WorkerRunner(path, backend=Backend.TENSORRT, gpu=load_of("sm_9999"))


def test_the_bytes_that_were_checked_are_the_bytes_that_are_given(tmp_path: Path) -> None:
    path = tmp_path / "model.plan"
    path.write_bytes(PLAN)
    assert read_checked(str(path), hashlib.sha256(PLAN).hexdigest()) == PLAN
    with pytest.raises(PlanRunError, match="it is not loaded"):
        read_checked(str(path), "0" * 64)


@pytest.mark.parametrize(("batch", "chosen"), [(1, 0), (4, 0), (5, 1), (64, 1), (0, None), (65, None)], ids=str)
def test_the_first_profile_that_covers_the_shapes_is_chosen(batch: int, chosen: int | None) -> None:
    assert choose_profile([profile(1, 4), profile(2, 64)], {"x": [batch, 3]}) == chosen


def test_a_profile_of_another_rank_covers_nothing() -> None:
    assert choose_profile([profile(1, 4)], {"x": [1, 3, 1]}) is None
