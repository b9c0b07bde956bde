# ruff: noqa: N801, N802, N815 - CUDA's names
"""The loop that times plans of TensorRT, on a pretended CUDA with clocks: what adds up, and is given back.

`tests/gpu/test_latency.py` runs the same loop on a GPU.
"""

from __future__ import annotations

import ctypes
import sys
import types
from collections.abc import Iterator
from enum import Enum
from typing import Any

import numpy as np
import pytest

from modelreg.registry.toolchains.cuda_memory import Device
from modelreg.registry.toolchains.trt_session import PlanRunError
from modelreg.runtime.trt_bench import measure, time_runs

UP_MS, RUN_MS, DOWN_MS = 1.0, 5.0, 2.0
ASKED = {"warmup_ms": 0.0, "duration_s": 0.0, "iterations": 7, "cuda_graph": False, "transfers": True}


class Stream:
    """A stream, with the time that it has come to."""

    def __init__(self) -> None:
        self.at_ms = 0.0
        self.is_captured = False


class Cuda(types.ModuleType):
    """So much of CUDA's runtime as is asked for; every call but events takes a stream forward."""

    class cudaMemcpyKind(Enum):
        cudaMemcpyHostToDevice = UP_MS
        cudaMemcpyDeviceToHost = DOWN_MS

    class cudaStreamCaptureMode(Enum):
        cudaStreamCaptureModeThreadLocal = 1

    def __init__(self) -> None:
        super().__init__("cuda.bindings.runtime")
        self.live: list[Any] = []
        self.memory: dict[int, Any] = {}
        self.launched = 0

    def _keep(self, made: Any) -> tuple[int, Any]:
        self.live.append(made)
        return 0, made

    def _drop(self, made: Any) -> tuple[int]:
        self.live.remove(made)
        return (0,)

    def _allocate(self, size: int) -> tuple[int, int]:
        buffer = (ctypes.c_ubyte * size)()
        address = ctypes.addressof(buffer)
        self.memory[address] = buffer
        return self._keep(address)

    cudaMalloc = cudaMallocHost = _allocate
    cudaFree = cudaFreeHost = cudaEventDestroy = cudaStreamDestroy = _drop

    def cudaStreamCreate(self) -> tuple[int, Stream]:
        return self._keep(Stream())

    def cudaEventCreate(self) -> tuple[int, list[float]]:
        return self._keep([float(len(self.live)), 0.0])

    def cudaEventRecord(self, event: list[float], stream: Stream) -> tuple[int]:
        event[1] = stream.at_ms
        return (0,)

    def cudaEventElapsedTime(self, first: list[float], last: list[float]) -> tuple[int, float]:
        return 0, last[1] - first[1]

    def cudaEventSynchronize(self, _event: Any) -> tuple[int]:
        return (0,)

    cudaStreamSynchronize = cudaEventSynchronize

    def cudaStreamWaitEvent(self, stream: Stream, event: list[float], _flags: int) -> tuple[int]:
        stream.at_ms = max(stream.at_ms, event[1])
        return (0,)

    def cudaMemcpyAsync(self, to: int, source: int, size: int, kind: Any, stream: Stream) -> tuple[int]:
        ctypes.memmove(to, source, size)
        stream.at_ms += kind.value
        return (0,)

    def cudaStreamBeginCapture(self, stream: Stream, _mode: Any) -> tuple[int]:
        stream.is_captured = True
        return (0,)

    def cudaStreamEndCapture(self, stream: Stream) -> tuple[int, str]:
        stream.is_captured = False
        return 0, "graph"

    def cudaGraphInstantiate(self, graph: str, _flags: int) -> tuple[int, str]:
        return 0, graph

    def cudaGraphDestroy(self, _graph: str) -> tuple[int]:
        return (0,)

    def cudaGraphLaunch(self, _graph: str, stream: Stream) -> tuple[int]:
        self.launched += 1
        stream.at_ms += RUN_MS
        return (0,)


class DType(Enum):
    FLOAT = 0


class Plan:
    """A loaded plan that doubles x into y; what `Session` offers to the loop."""

    inputs, outputs = ("x",), ("y",)

    def __init__(self, *, is_free: bool = False) -> None:
        self.device = Device()
        self.engine = self.context = self
        self.runs, self._is_free, self._shape = 0, is_free, (0,)
        self.addresses: dict[str, int] = {}

    def get_tensor_dtype(self, _name: str) -> DType:
        return DType.FLOAT

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return (-1,) if name == "y" and self._is_free else self._shape

    def get_tensor_address(self, name: str) -> int:
        return self.addresses[name]

    def bind(self, arrays: dict[str, Any]) -> None:
        self._shape = arrays["x"].shape
        self.addresses = {name: self.device.reserve(name, arrays["x"].nbytes) for name in "xy"}
        self.device.upload(self.addresses["x"], arrays["x"])

    def enqueue(self) -> None:
        if self.device.stream.is_captured:
            return
        self.runs += 1
        self.device.stream.at_ms += RUN_MS
        x, y = (np.ctypeslib.as_array(self.memory(name)).view(np.float32) for name in "xy")
        y[:] = 2 * x

    def memory(self, name: str) -> Any:
        found: Cuda = sys.modules["cuda.bindings.runtime"]  # type: ignore[assignment]
        return found.memory[self.addresses[name]]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    made = Cuda()
    for name in ("cuda", "cuda.bindings"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", made)
    yield made
    made.memory.clear()


def inputs() -> dict[str, Any]:
    return {"x": np.arange(12, dtype=np.float32)}


def ignore(_fraction: float | None, _message: str) -> None:
    pass


@pytest.mark.parametrize("streams", [1, 3])
def test_each_query_is_copied_in_run_and_copied_out_and_the_three_add_up(cuda: Cuda, streams: int) -> None:
    plans: list[Any] = [Plan() for _ in range(streams)]
    before = len(cuda.live)
    told, found = measure(plans, ASKED, inputs(), ignore)
    assert list(found) == ["gpu-compute", "enqueue", "h2d", "d2h", "latency"]
    queries = -(-7 // streams) * streams
    assert {name: len(times) for name, times in found.items()} == dict.fromkeys(found, queries)
    expected = {"gpu-compute": RUN_MS, "h2d": UP_MS, "d2h": DOWN_MS, "latency": UP_MS + RUN_MS + DOWN_MS}
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value)
    assert (found["enqueue"] >= 0).all()
    assert (told["streams"], told["transfers"], told["cuda_graph"]) == (streams, True, False)
    assert len(cuda.live) == before + 2 * streams  # the buffers of x and y; events, streams, pinned memory are back
    assert [plan.runs for plan in plans] == [1 + queries // streams] * streams
    np.testing.assert_array_equal(np.ctypeslib.as_array(plans[0].memory("y")).view(np.float32), 2 * inputs()["x"])


def test_without_transfers_a_query_is_the_run_alone(cuda: Cuda) -> None:
    _, found = measure([Plan()], {**ASKED, "transfers": False}, inputs(), ignore)  # type: ignore[list-item]
    assert list(found) == ["gpu-compute", "enqueue"]
    np.testing.assert_allclose(found["gpu-compute"], RUN_MS)
    assert not cuda.launched


def test_a_graph_is_recorded_once_and_launched_for_every_query(cuda: Cuda) -> None:
    plan: Any = Plan()
    told, found = measure([plan], {**ASKED, "cuda_graph": True}, inputs(), ignore)
    assert (plan.runs, cuda.launched, told["cuda_graph"]) == (1, 7, True)
    np.testing.assert_allclose(found["gpu-compute"], RUN_MS)


def test_warm_up_counts_for_nothing(cuda: Cuda) -> None:
    plan: Any = Plan()
    _, found = measure([plan], {**ASKED, "warmup_ms": 5.0}, inputs(), ignore)
    assert len(found["latency"]) == 7
    assert plan.runs > 8
    assert not cuda.launched


def test_an_output_whose_size_nobody_knows_before_is_not_copied(cuda: Cuda) -> None:
    plan: Any = Plan(is_free=True)
    with pytest.raises(PlanRunError, match="size of an output is known only after a run: use --noDataTransfers"):
        measure([plan], ASKED, inputs(), ignore)
    assert len(cuda.live) == 3  # the plan's stream and its two buffers
    _, found = measure([plan], {**ASKED, "transfers": False}, inputs(), ignore)
    assert len(found["gpu-compute"]) == 7
    assert not cuda.launched


def test_the_loop_for_comparisons_enqueues_without_waiting_and_gives_its_events_back(cuda: Cuda) -> None:
    plan: Any = Plan()
    before = len(cuda.live)
    told, found = time_runs(plan, ASKED, inputs(), ignore)
    assert list(found) == ["gpu-compute"]
    assert told["runs"] == len(found["gpu-compute"]) == 64
    np.testing.assert_allclose(found["gpu-compute"], RUN_MS)
    assert len(cuda.live) == before + 2
