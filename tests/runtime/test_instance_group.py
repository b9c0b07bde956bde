"""Several instances in real children, some of which are killed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from modelreg.registry.errors import WorkerError
from modelreg.registry.toolchains.pieces import Pieces, whole
from modelreg.registry.words import Backend
from modelreg.runtime.devices import Device
from modelreg.runtime.engines import Engine, WorkerEngine
from modelreg.runtime.instance_group import InstanceGroup, RequestLostError
from modelreg.runtime.runner import RunError, WorkerRunner
from modelreg_testing.serving import adder, eventually

Array = NDArray[Any]
X = np.zeros((2, 3), np.float32)
Places = tuple[Device, ...]


def places(number: int) -> Places:
    return tuple(Device(name=f"GPU {index}", target="cpu", number=index) for index in range(number))


@pytest.fixture
def open_child(tmp_path: Path) -> Callable[[Device], Engine]:
    plan = tmp_path / "model.onnx"
    plan.write_bytes(adder(1))
    return lambda _device: WorkerEngine(WorkerRunner(plan, backend=Backend.ONNXRUNTIME, threads=1))


@contextmanager
def group_of(open_engine: Callable[[Device], Engine], number: int = 3, **changes: Any) -> Iterator[InstanceGroup]:
    arguments: dict[str, Any] = {"warm": lambda engine: engine.run({"x": X}), "retry_s": 0.05} | changes
    made = InstanceGroup(places(number), open_engine, on_change=arguments.pop("on_change", lambda: None), **arguments)
    try:
        yield made
    finally:
        made.close()
        assert made.is_gone()


def kill_one(group: InstanceGroup, number: int = 0) -> None:
    pid = group.instances[number].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def test_a_killed_child_fails_nobodys_request_and_comes_back(open_child: Callable[[Device], Engine]) -> None:
    changes: list[int] = []
    failed: list[Exception] = []
    over = threading.Event()
    with group_of(open_child, on_change=lambda: changes.append(1)) as group:

        def ask() -> None:
            while not over.is_set():
                try:
                    assert group.run({"x": X})["y"].tolist() == [[1.0] * 3] * 2
                except Exception as error:
                    failed.append(error)
                    return

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        try:
            eventually(lambda: all(each.done > 20 for each in group.instances))
            pid = group.instances[1].pid
            kill_one(group, 1)
            eventually(lambda: len(changes) == 2)  # out, and back
            back = group.instances[1]
            assert (back.out_since, back.reason) == (None, "")
            assert back.pid not in (None, pid)
            done = back.done
            eventually(lambda: failed or group.instances[1].done > done + 20)
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert failed == []
        assert group.instances[1].failed >= 1
        assert [each.in_flight for each in group.instances] == [0, 0, 0]


def test_one_that_is_out_says_so_and_gets_no_requests(open_child: Callable[[Device], Engine]) -> None:
    with group_of(open_child, 2, retry_s=600.0) as group:
        kill_one(group)
        for _ in range(4):
            group.run({"x": X})
        first, second = group.instances
        assert first.out_since is not None
        assert "SIGKILL" in first.reason
        assert (first.pid, first.failed, second.done) == (None, 1, 4)
        assert len(group.members) == 1
        with pytest.raises(RunError):  # what the engine refuses is no failure of the device
            group.run({"x": np.zeros((2, 4), np.float32)})
        assert group.instances[1].out_since is None


def test_without_any_instance_the_group_is_dead(open_child: Callable[[Device], Engine]) -> None:
    with group_of(open_child, 2, retry_s=600.0) as group:
        for number in (0, 1):
            kill_one(group, number)
        for _ in range(2):
            with pytest.raises(WorkerError):
                group.run({"x": X})


class Poisoned:
    """An engine that dies of one number, as the process of a plan may."""

    profiles: Any = ()
    instances = ()
    waiting = 0
    deaths = 0

    def run(self, inputs: Mapping[str, Array | Pieces], *, until_s: float | None = None) -> dict[str, Array]:
        x = whole(inputs["x"])
        if x.flat[0] == 13:
            Poisoned.deaths += 1
            raise WorkerError("killed by the request")
        return {"y": x}

    def read_free_memory(self) -> int | None:
        return 5

    def close(self) -> None:
        pass

    def is_gone(self) -> bool:
        return True


def test_a_request_that_kills_ends_two_instances_and_no_more() -> None:
    Poisoned.deaths = 0
    with group_of(lambda _device: Poisoned(), 4, retry_s=600.0) as group:
        with pytest.raises(RequestLostError):
            group.run({"x": np.full((1, 3), 13.0)})
        assert Poisoned.deaths == 2
        with pytest.raises(RequestLostError):
            group.run_once({"x": np.full((1, 3), 13.0)})
        assert Poisoned.deaths == 3
        assert group.run({"x": X})["y"].tolist() == X.tolist()
        assert group.read_free_memory() == 5


def test_a_device_that_does_not_come_up_is_out_unless_it_is_needed() -> None:
    def open_engine(device: Device) -> Engine:
        if device.number == 1:
            raise RunError("out of memory")
        return Poisoned()

    with group_of(open_engine, 3, retry_s=600.0) as group:
        assert [each.reason for each in group.instances] == ["", "out of memory", ""]
        assert group.run({"x": X})["y"].tolist() == X.tolist()
    with pytest.raises(RunError, match="out of memory"), group_of(open_engine, 3, needed={"GPU 1"}):
        pass
    with group_of(open_engine, 3, needed={"GPU 0"}, retry_s=600.0):
        pass
    with pytest.raises(RunError, match="out of memory"), group_of(open_engine, 2, needed={"GPU 0", "GPU 1"}):
        pass


def test_devices_that_are_not_used_are_named(open_child: Callable[[Device], Engine]) -> None:
    unused = [(Device(name="GPU 7", target="sm_80", uuid="GPU-7"), "it is too old")]
    with group_of(open_child, 1, unused=unused) as group:
        assert [(each.device, each.reason) for each in group.instances] == [("GPU 0", ""), ("GPU 7", "it is too old")]
        assert group.size == 1
