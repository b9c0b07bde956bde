"""The bare loop runs against a pretended TensorRT whose plan doubles its input, so that its own faults show here."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from modelreg.registry.toolchains.process import Worker, WorkerJobError
from modelreg_testing.checkout import ROOT

TENSORRT = """
    import enum
    import numpy as np
    from cuda.bindings import runtime

    class TensorIOMode(enum.Enum):
        INPUT, OUTPUT = 0, 1

    class DataType(enum.Enum):
        FLOAT, HALF = 0, 1

    class LayerInformationFormat(enum.Enum):
        ONELINE, JSON = 0, 1

    class Logger:
        WARNING = 2
        def __init__(self, level): pass

    class Runtime:
        def __init__(self, logger): pass
        def deserialize_cuda_engine(self, plan): return Engine() if plan == b"plan" else None

    class Engine:
        num_io_tensors, num_layers = 2, 1
        def get_tensor_name(self, index): return ["y", "x"][index]
        def get_tensor_mode(self, name): return TensorIOMode.INPUT if name == "x" else TensorIOMode.OUTPUT
        def get_tensor_dtype(self, name): return DataType.FLOAT
        def create_execution_context(self): return Context()
        def create_engine_inspector(self): return Inspector()

    class Inspector:
        execution_context = None
        def get_engine_information(self, form):
            assert form is LayerInformationFormat.JSON
            return '{"Layers": ["dou\\x01ble"], "shape": %s}' % list(self.execution_context.shape)

    class Context:
        def __init__(self): self.shape, self.addresses = (-1, 3), {}
        def set_input_shape(self, name, shape):
            self.shape = tuple(shape)
            return shape[0] <= 8
        def get_tensor_shape(self, name): return self.shape
        def set_tensor_address(self, name, address): self.addresses[name] = address
        def execute_async_v3(self, stream):
            assert stream == 7
            x, y = (runtime.MEMORY[self.addresses[name]] for name in "xy")
            y.view(np.float32)[:] = 2 * x.view(np.float32)
            return True
"""
CUDA = """
    import ctypes, enum
    import numpy as np

    MEMORY, CLOCK = {}, [0.0]

    class cudaMemcpyKind(enum.Enum):
        cudaMemcpyHostToDevice = 1

    def cudaSetDevice(index): return (0,)
    def cudaFree(address): return (0 if MEMORY.pop(address, None) is not None or address == 0 else 1,)
    def cudaMalloc(size):
        address = 1000 + len(MEMORY)
        MEMORY[address] = np.zeros(size, np.uint8)
        return 0, address
    def cudaMemcpy(address, host, size, kind):
        MEMORY[address][:] = np.frombuffer(ctypes.string_at(host, size), np.uint8)
        return (0,)
    def cudaStreamCreate(): return 0, 7
    def cudaStreamSynchronize(stream): return (0,)
    def cudaEventCreate(): return 0, [0.0]
    def cudaEventRecord(event, stream):
        CLOCK[0] += 0.25
        event[0] = CLOCK[0]
        return (0,)
    def cudaEventElapsedTime(first, last): return 0, last[0] - first[0]
    def cudaEventDestroy(event): return (0,)
"""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    modules = tmp_path / "modules"
    (modules / "cuda" / "bindings").mkdir(parents=True)
    for name, text in (("tensorrt", TENSORRT), ("cuda/bindings/runtime", CUDA)):
        (modules / f"{name}.py").write_text(textwrap.dedent(text))
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={modules} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (tmp_path / "model.plan").write_bytes(b"plan")
    job = ROOT / "tests" / "gpu" / "bare_trt.py"
    with Worker.start(str(python), job, log_path=tmp_path / "log") as started:
        started.call("load", {"path": str(tmp_path / "model.plan")}, timeout_s=30)
        yield started


def request(iterations: int = 100) -> dict[str, float]:
    return {"warmup_ms": 1.0, "duration_s": 0.0, "iterations": iterations}


def test_every_run_is_timed_between_its_two_events(worker: Worker) -> None:
    for count in (4, 8):  # another shape takes other memory
        inputs = {"x": np.ones((count, 3), np.float32)}
        answer, arrays = worker.call("bench", request(), inputs, timeout_s=30)
        assert answer["runs"] == len(arrays["gpu_ms"]) == 128  # two times the runs in flight
        np.testing.assert_allclose(arrays["gpu_ms"].astype(np.float64), 0.25)


def test_the_inspector_is_told_the_shapes(worker: Worker, tmp_path: Path) -> None:
    worker.call("inspect", {"shapes": {"x": [5, 3]}, "to": str(tmp_path / "told.json")}, timeout_s=30)
    told = json.loads((tmp_path / "told.json").read_text(), strict=False)
    assert (len(told["Layers"]), told["shape"]) == (1, [5, 3])


def test_what_does_not_fit_is_refused(worker: Worker, tmp_path: Path) -> None:
    with pytest.raises(WorkerJobError, match=r"input x cannot be \[9, 3\]"):
        worker.call("bench", request(), {"x": np.ones((9, 3), np.float32)}, timeout_s=30)
    (tmp_path / "other.plan").write_bytes(b"other")
    with pytest.raises(WorkerJobError, match="the plan cannot be loaded"):
        worker.call("load", {"path": str(tmp_path / "other.plan")}, timeout_s=30)
